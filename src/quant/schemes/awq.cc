// AWQ (Lin et al. 2023) as AutoAWQ stores it, layout "gemm".
//
//   <module>.qweight  (K, N/8) s32   eight 4-bit codes along N, in the order below
//   <module>.qzeros   (g, N/8) s32   zero points, packed likewise
//   <module>.scales   (g, N)         f16 | bf16 | f32
//
//   word c:   bits  28..31  24..27  20..23  16..19  12..15  8..11  4..7  0..3
//   output 8c +         7       5       3       1       6      4     2     0
//
//   w[n, k] = (q[k, n] - z[g, n]) * s[g, n]      g = k / G; the stored zero point is the zero point
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "quant/packed_words.h"
#include "quant/scheme.h"
#include "quant/stored.h"

namespace nibble::quant {
namespace {

using tensor::DType;
using tensor::TensorView;

constexpr std::array<int, 8> kShift = {0, 16, 4, 20, 8, 24, 12, 28};  // of outputs 8c, 8c + 1, ...

uint8_t code_of(uint32_t word, int output) { return word >> kShift[output] & 15; }

// qweight (K, N/8) -> codes (N, K). Tiles of 8 outputs by 64 inputs, because the rows of the result
// lie K apart.
void unpack(const std::byte* qweight, int64_t n, int64_t k, uint8_t* code) {
  constexpr int64_t kColumns = 64;
  uint8_t tile[8][kColumns];
  for (int64_t c = 0; c < n / 8; ++c) {
    for (int64_t first = 0; first < k; first += kColumns) {
      const int64_t columns = std::min(kColumns, k - first);
      for (int64_t i = 0; i < columns; ++i) {
        const uint32_t word = read_word(qweight, (first + i) * (n / 8) + c);
        for (int j = 0; j < 8; ++j) tile[j][i] = code_of(word, j);
      }
      for (int64_t j = 0; j < 8; ++j) {
        std::memcpy(code + (8 * c + j) * k + first, tile[j], static_cast<size_t>(columns));
      }
    }
  }
}

class AwqMethod : public LinearMethod {
 public:
  AwqMethod(const LinearLayer& layer, const TensorLookup& tensors, int64_t group)
      : group_(group >= layer.k ? 0 : group),
        scale_type_(scale_type(find_tensor(tensors, layer.module, "scales"))) {
    const int64_t n = layer.n, k = layer.k, g = groups(k);
    const ShardAxis by_group = group_ == 0 ? ShardAxis{} : ShardAxis{0, group_};
    specs_ = {
        wanted(Slot::kWeight, "qweight", {DType::kS32}, {k, n / 8}, {1, 8}, {0}),
        wanted(Slot::kZero, "qzeros", {DType::kS32}, {g, n / 8}, {1, 8}, by_group),
        wanted(Slot::kScale, "scales", kFloats, {g, n}, {1}, by_group),
    };
    add_bias(layer, tensors, specs_);
  }

  std::string_view scheme() const override { return "awq"; }

  tensor::WeightFormat weight_format() const override {
    tensor::WeightFormat format;
    format.element = tensor::Element::kU4;
    format.scaled = true;
    format.group_k = group_;
    format.scale_type = scale_type_;
    format.zero = tensor::ZeroKind::kInteger;
    return format;
  }

  std::vector<WeightSpec> create_weights() const override { return specs_; }

  Result<tensor::QuantizedWeight> process_weights_after_loading(
      int64_t n, int64_t k, const RawWeights& raw) const override {
    const int64_t g = groups(k), words = n / 8;
    NIBBLE_ASSIGN(const TensorView* qweight, need(raw, Slot::kWeight, "qweight", {k, words}));
    NIBBLE_ASSIGN(const TensorView* qzeros, need(raw, Slot::kZero, "qzeros", {g, words}));
    NIBBLE_ASSIGN(const TensorView* scales, need(raw, Slot::kScale, "scales", {g, n}));
    tensor::QuantizedWeight out;
    out.format = weight_format();
    out.n = n;
    out.k = k;
    NIBBLE_ASSIGN(const std::vector<float> scale, read_floats(*scales, "scales"));
    out.scale = transposed(scale, g, n);
    out.zero.resize(out.scale.size());
    for (int64_t row = 0; row < g; ++row) {
      for (int64_t c = 0; c < words; ++c) {
        const uint32_t word = read_word(qzeros->data, row * words + c);
        for (int i = 0; i < 8; ++i) {
          out.zero[static_cast<size_t>((8 * c + i) * g + row)] = code_of(word, i);
        }
      }
    }
    NIBBLE_ASSIGN(out.code_owner, tensor::Buffer::allocate(static_cast<size_t>(n * k)));
    unpack(qweight->data, n, k, reinterpret_cast<uint8_t*>(out.code_owner.data()));
    out.code = {DType::kU8, {n, k}, out.code_owner.data(), out.code_owner.size()};
    return out;
  }

 private:
  int64_t groups(int64_t k) const { return group_ == 0 ? 1 : (k + group_ - 1) / group_; }

  int64_t group_;  // 0: all inputs
  DType scale_type_;
  std::vector<WeightSpec> specs_;
};

// lm_head is known and not asked: the stored tensors say it.
constexpr std::string_view kKnown =
    "bits w_bit group_size q_group_size zero_point version format checkpoint_format method "
    "quant_method pack_dtype modules_to_not_convert lm_head";
// How the weights were found, or how another engine should run them.
constexpr std::string_view kHarmless =
    "backend do_fuse fuse_max_seq_len modules_to_fuse exllama_config meta desc_act sym "
    "damp_percent "
    "true_sequential model_name_or_path use_cuda_fp16";

class AwqConfig : public QuantizationConfig {
 public:
  std::string_view scheme() const override { return "awq"; }
  std::vector<const NameMatcher*> matchers() const override { return {&not_converted_}; }

  Result<std::unique_ptr<LinearMethod>> linear_method(const LinearLayer& layer,
                                                      const TensorLookup& tensors) const override {
    NIBBLE_ASSIGN(const std::optional<size_t> left_alone, not_converted_.match(layer.module));
    // What is stored outranks the list.
    if (find_tensor(tensors, layer.module, "qweight") == nullptr &&
        (left_alone || find_tensor(tensors, layer.module, "weight") != nullptr)) {
      return unquantized_method(layer, tensors);
    }
    if (layer.n % 8 != 0) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("{}: {} outputs do not fill whole words of eight 4-bit codes",
                              layer.module, layer.n));
    }
    return std::unique_ptr<LinearMethod>(std::make_unique<AwqMethod>(layer, tensors, group_));
  }

  Result<void> read(const base::Json& dictionary) {
    const std::string& where = dictionary.where();
    check_keys(dictionary, kKnown, kHarmless, warnings);
    const bool old_names = dictionary.find_set("bits") == nullptr;
    NIBBLE_ASSIGN(const int64_t bits, int_key(dictionary, old_names ? "w_bit" : "bits"));
    if (bits != 4) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("{}: {} is {}; AWQ weights of 4 bits are read", where,
                              old_names ? "w_bit" : "bits", bits));
    }
    const bool old_group = dictionary.find_set("group_size") == nullptr;
    NIBBLE_ASSIGN(group_, group_size_key(dictionary, old_group ? "q_group_size" : "group_size"));
    NIBBLE_ASSIGN(const bool zero_point, dictionary.get_bool_or("zero_point", true));
    if (!zero_point) {
      notes.push_back(
          fmt::format("{}: zero_point is false; the stored zero points are used", where));
    }
    // The layouts share tensor names: the label alone tells them apart.
    for (const char* key : {"version", "format", "checkpoint_format"}) {
      NIBBLE_TRY(choice_key(dictionary, key, {"gemm"}));
    }
    NIBBLE_TRY(choice_key(dictionary, "method", {"awq"}));
    NIBBLE_TRY(choice_key(dictionary, "pack_dtype", {"int32"}));
    NIBBLE_ASSIGN(std::vector<std::string> names, names_key(dictionary, "modules_to_not_convert"));
    NIBBLE_ASSIGN(not_converted_,
                  NameMatcher::compile(std::move(names), where + ": modules_to_not_convert"));
    return {};
  }

 private:
  int64_t group_ = 0;
  NameMatcher not_converted_;
};

bool claims(const CheckpointFacts& facts) { return !facts.gguf && facts.method == "awq"; }

Result<std::unique_ptr<QuantizationConfig>> parse(const CheckpointFacts& facts) {
  if (facts.quantization == nullptr) {
    return fail(ErrorCode::kNotFound,
                "awq needs a quantization_config (or quant_config.json) that says bits and "
                "group_size");
  }
  auto config = std::make_unique<AwqConfig>();
  NIBBLE_TRY(config->read(*facts.quantization));
  return std::unique_ptr<QuantizationConfig>(std::move(config));
}

constexpr std::string_view kAliases[] = {"awq_marlin", "auto_awq", "autoawq"};

}  // namespace

extern const Scheme awq_scheme;
const Scheme awq_scheme = {"awq", kAliases, claims, parse};

}  // namespace nibble::quant
