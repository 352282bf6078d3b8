// bitsandbytes (Dettmers et al.): QLoRA's 4-bit blocks and LLM.int8, as transformers saves them.
//
// 4 bits: the weight in one row, N K codes, two a byte, the first in the high half; blocks of B
// codes, that may cross the rows, share an absmax (bitsandbytes_blocks.h has its tensors).
//
//   <module>.weight   (N K / 2, 1)  u8    or as many bytes of a float (quant_storage)
//
//   w[i] = quant_map[code[i]] * absmax[i / B]                                   i = n K + k
//
// 8 bits: a scale per output. Activations are int8 per token, but for those of llm_int8_threshold
// or more, which stay floats with their whole columns, for all tokens of a call.
//
//   <module>.weight         (N, K)  s8
//   <module>.SCB            (N)     f32   absmax of the row
//   <module>.weight_format  ()      u8    0: rows. 1 to 3 are layouts of old GPUs' tensor cores
//
//   w[n, k] = code * (SCB[n] * (1/127))
#include <fmt/format.h>

#include <numeric>

#include "quant/keys.h"
#include "quant/scheme.h"
#include "quant/schemes/bitsandbytes_blocks.h"
#include "quant/stored.h"

namespace nibble::quant {
namespace {

using tensor::DType;
using tensor::Element;
using tensor::TensorInfo;
using tensor::TensorView;

// A tensor with one index for every `unit` consecutive weights. Where units do not cross rows it is
// a matrix that happens to be stored in one row; else it is cut only where a row and a unit end
// together, and never along K.
WeightSpec run_of(Slot slot, std::string suffix, std::vector<DType> dtypes, int64_t n, int64_t k,
                  int64_t unit) {
  WeightSpec spec;
  if (k % unit == 0) {
    spec = wanted(slot, std::move(suffix), std::move(dtypes), {n, k / unit}, {0}, {1, unit});
  } else {
    const int64_t rows = unit / std::gcd(unit, k);
    spec = wanted(slot, std::move(suffix), std::move(dtypes), {ceil_div(n * k, unit)},
                  {0, rows, rows * k / unit}, {0, k});
  }
  spec.flattened = true;
  return spec;
}

class FourBitMethod : public LinearMethod {
 public:
  FourBitMethod(const LinearLayer& layer, const TensorLookup& tensors, BnbBlocks blocks)
      : b_(std::move(blocks)),
        group_(std::gcd(layer.k, b_.size)),
        scale_type_(b_.nested != 0 ? DType::kF32 : b_.absmax) {
    const int64_t n = layer.n, k = layer.k;
    specs_ = {
        run_of(Slot::kWeight, "weight", {DType::kU8, DType::kBF16, DType::kF16, DType::kF32}, n, k,
               2 * b_.storage),
        run_of(Slot::kScale, "weight.absmax", b_.nested != 0 ? std::vector{DType::kU8} : kFloats, n,
               k, b_.size),
        wanted(Slot::kTable, "weight.quant_map", {DType::kF32}, {16}, {}, {}),
        wanted(Slot::kShape, b_.state, {DType::kU8}, b_.bytes, {}, {}),
    };
    if (b_.nested != 0) {
      specs_.push_back(
          run_of(Slot::kScale2, "weight.nested_absmax", {DType::kF32}, n, k, b_.size * b_.nested));
      specs_.push_back(
          wanted(Slot::kTable2, "weight.nested_quant_map", {DType::kF32}, {256}, {}, {}));
    }
    add_bias(layer, tensors, specs_);
  }

  std::string_view scheme() const override { return "bitsandbytes"; }

  tensor::WeightFormat weight_format() const override {
    tensor::WeightFormat format;
    format.element = b_.element;
    format.scaled = true;
    format.group_k = group_ == b_.k ? 0 : group_;
    format.scale_type = scale_type_;
    return format;
  }

  std::vector<WeightSpec> create_weights() const override { return specs_; }

  Result<tensor::QuantizedWeight> process_weights_after_loading(
      int64_t n, int64_t k, const RawWeights& raw) const override {
    tensor::QuantizedWeight out = empty_weight(n, k);
    NIBBLE_ASSIGN(const std::vector<float> absmax, read_bnb_absmax(b_, n * k, raw));
    const int64_t groups = out.groups(), width = group_ == b_.k ? k : group_;
    out.scale.resize(static_cast<size_t>(n * groups));
    for (int64_t row = 0; row < n; ++row) {
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t block = (row * k + g * width) / b_.size;
        out.scale[static_cast<size_t>(row * groups + g)] = absmax[static_cast<size_t>(block)];
      }
    }
    const int64_t elements = ceil_div(n * k, 2 * b_.storage);
    NIBBLE_ASSIGN(const TensorView* weight, need_count(raw, Slot::kWeight, "weight", elements));
    NIBBLE_ASSIGN(out.code_owner, tensor::Buffer::allocate(static_cast<size_t>(n * k)));
    const auto code = out.code_owner.as<uint8_t>();
    for (size_t i = 0; i < code.size(); ++i) {
      const auto byte = static_cast<uint8_t>(weight->data[i / 2]);
      code[i] = i % 2 == 0 ? byte >> 4 : byte & 15;
    }
    out.code = {DType::kU8, {n, k}, out.code_owner.data(), out.code_owner.size()};
    return out;
  }

 private:
  BnbBlocks b_;
  int64_t group_;  // inputs that surely share a block, wherever their row begins
  DType scale_type_;
  std::vector<WeightSpec> specs_;
};

class Int8Method : public LinearMethod {
 public:
  Int8Method(const LinearLayer& layer, const TensorLookup& tensors, float threshold)
      : threshold_(threshold) {
    specs_ = {
        wanted(Slot::kWeight, "weight", {DType::kS8}, {layer.n, layer.k}, {0}, {1}),
        wanted(Slot::kScale, "SCB", {DType::kF32}, {layer.n}, {0}, {}),
        optional_tensor(wanted(Slot::kExtra, "weight_format", {DType::kU8}, {}, {}, {}),
                        "rows, as all that are saved today"),
    };
    add_bias(layer, tensors, specs_);
  }

  std::string_view scheme() const override { return "bitsandbytes"; }

  tensor::WeightFormat weight_format() const override {
    tensor::WeightFormat format;
    format.element = Element::kS8;
    format.scaled = true;
    return format;
  }

  tensor::ActivationFormat activation_format() const override {
    tensor::ActivationFormat out;
    out.type = tensor::ActivationFormat::Type::kS8;
    out.outlier = threshold_;
    return out;
  }

  std::vector<WeightSpec> create_weights() const override { return specs_; }

  Result<tensor::QuantizedWeight> process_weights_after_loading(
      int64_t n, int64_t k, const RawWeights& raw) const override {
    NIBBLE_ASSIGN(const TensorView* weight, need(raw, Slot::kWeight, "weight", {n, k}));
    NIBBLE_ASSIGN(const TensorView* absmax, need(raw, Slot::kScale, "SCB", {n}));
    if (raw.get(Slot::kExtra) != nullptr) {
      NIBBLE_ASSIGN(const TensorView* layout, need(raw, Slot::kExtra, "weight_format", {}));
      if (const auto id = static_cast<int>(layout->data[0]); id != 0) {
        return fail(ErrorCode::kUnsupported,
                    fmt::format("weight_format is {}, a layout of an old GPU's tensor cores; 0 "
                                "(row) is read: save the model again with bitsandbytes 0.45 or "
                                "later",
                                id));
      }
    }
    tensor::QuantizedWeight out = empty_weight(n, k);
    NIBBLE_ASSIGN(out.scale, read_floats(*absmax, "SCB"));
    for (float& scale : out.scale) scale *= 1.0f / 127.0f;
    out.code = *weight;
    return out;
  }

 private:
  float threshold_;
  std::vector<WeightSpec> specs_;
};

// Which layers are quantized and how the stored tensors say; the keys about them are not asked.
constexpr std::string_view kKnown =
    "quant_method load_in_4bit load_in_8bit bnb_4bit_quant_type bnb_4bit_use_double_quant "
    "bnb_4bit_quant_storage llm_int8_skip_modules llm_int8_threshold llm_int8_has_fp16_weight";
// What another engine computes in, and where it keeps the weights.
constexpr std::string_view kHarmless =
    "bnb_4bit_compute_dtype llm_int8_enable_fp32_cpu_offload bnb_4bit_blocksize";

class BitsandbytesConfig : public QuantizationConfig {
 public:
  std::string_view scheme() const override { return "bitsandbytes"; }
  std::vector<const NameMatcher*> matchers() const override { return {&skipped_}; }

  Result<std::unique_ptr<LinearMethod>> linear_method(const LinearLayer& layer,
                                                      const TensorLookup& tensors) const override {
    NIBBLE_ASSIGN(std::optional<BnbBlocks> blocks, find_bnb_blocks(layer, tensors));
    if (blocks) {
      return std::unique_ptr<LinearMethod>(
          std::make_unique<FourBitMethod>(layer, tensors, std::move(*blocks)));
    }
    const TensorInfo* weight = find_tensor(tensors, layer.module, "weight");
    // What is stored outranks the list. (The shared method also reports a missing weight.)
    if (weight == nullptr || tensor::is_plain_float(weight->dtype)) {
      return unquantized_method(layer, tensors);
    }
    if (weight->dtype == DType::kS8) {
      return std::unique_ptr<LinearMethod>(
          std::make_unique<Int8Method>(layer, tensors, threshold_));
    }
    return fail(
        ErrorCode::kNotFound,
        fmt::format("{} is {} {}, but has no quant_state.bitsandbytes__nf4 (or fp4), which "
                    "says how to read it",
                    weight->name, tensor::name(weight->dtype), tensor::to_string(weight->shape)));
  }

  Result<void> read(const base::Json& dictionary) {
    check_keys(dictionary, kKnown, kHarmless, warnings);
    NIBBLE_ASSIGN(const double threshold, double_key_or(dictionary, "llm_int8_threshold", 6.0));
    if (!(threshold >= 0 && threshold <= 1e9)) {
      return fail(ErrorCode::kCorrupt,
                  fmt::format("{}: llm_int8_threshold: expected 0 (no outliers) or a positive "
                              "number, found {}",
                              dictionary.where(), threshold));
    }
    threshold_ = static_cast<float>(threshold);
    NIBBLE_ASSIGN(skipped_, names_list(dictionary, {"llm_int8_skip_modules"}, Says::kLeftAlone));
    return {};
  }

 private:
  float threshold_ = 6.0f;
  NameMatcher skipped_;
};

bool claims(const CheckpointFacts& facts) { return !facts.gguf && facts.method == "bitsandbytes"; }

Result<std::unique_ptr<QuantizationConfig>> parse(const CheckpointFacts& facts) {
  return parse_dictionary<BitsandbytesConfig>(facts);
}

constexpr std::string_view kAliases[] = {"bnb", "bitsandbytes-4bit", "bitsandbytes-8bit",
                                         "bitsandbytes-nf4", "bitsandbytes-fp4"};

}  // namespace

extern const Scheme bitsandbytes_scheme;
const Scheme bitsandbytes_scheme = {"bitsandbytes", kAliases, claims, parse};

}  // namespace nibble::quant
