// QoQ, QServe's W4A8 (`quant_method: "qoq"`; Lin et al. 2024): 4-bit codes that become int8 on the
// way to the product. Activations are int8 per token.
//
//   <module>.qweight    (N, K/2)    s8    two codes a byte, in tiles (below)
//   <module>.s1_scales  (N)         f16
//
//   group_size -1:      <module>.s1_szeros  (N) f16         w = q * s1[n] - s1_szeros[n]
//   group_size 128:     <module>.s2_scales  (K/128, N) s8
//                       <module>.s2_zeros   (K/128, N) s8
//                                           w = (q * s2[g, n] + s2_zeros[g, n]) * s1[n]
//
// s2_zeros already is -zero * s2, and q * s2 + s2_zeros an int8, summed in bytes that wrap. Both
// are exact in float32, so that the second form is u4 codes, scales s2 * s1 and offsets s2_zeros *
// s1.
//
// qweight: tiles of 32 outputs by 32 inputs, those of the same outputs one after the other, 512
// bytes each. In a tile n = 16 a + 8 b + c and k = 16 d + 4 e + f, a, b, d < 2, c < 8, e, f < 4:
//
//   byte 64 c + 16 e + 8 d + 4 b + f        low half a = 0, high half a = 1
//
// s2_*: among 32 outputs, position p holds output 8 (p mod 4) + p / 4, as QServe's converter writes
// and its kernels read them. deepcompressor 0.1.0 agrees on qweight, but among 16 outputs its
// position p holds output 8 (p mod 2) + p / 2. No tensor shows it, but its file is always called
// quant_model.pt, which QServe's never is. Neither tool writes a quantization_config.
#include <fmt/format.h>

#include <algorithm>

#include "quant/activations.h"
#include "quant/keys.h"
#include "quant/scheme.h"
#include "quant/stored.h"

namespace nibble::quant {
namespace {

using tensor::DType;
using tensor::TensorView;

constexpr int64_t kTile = 32, kGroup = 128;

void unpack(const std::byte* qweight, int64_t n, int64_t k, uint8_t* code) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(qweight);
  for (int64_t row = 0; row < n; ++row) {
    const int64_t a = row % kTile / 16, b = row % 16 / 8, c = row % 8;
    const uint8_t* tiles = bytes + row / kTile * kTile * (k / 2) + 64 * c + 4 * b;
    for (int64_t i = 0; i < k; ++i) {
      const int64_t d = i % kTile / 16, e = i % 16 / 4, f = i % 4;
      const uint8_t byte = tiles[i / kTile * 512 + 16 * e + 8 * d + f];
      code[row * k + i] = a == 0 ? byte & 15 : byte >> 4;
    }
  }
}

// The sum q * s2 + s2_zeros is taken in bytes that wrap, so that a stored zero may stand for one
// 256 lower. The one that brings every code of the group into int8.
Result<int> zero_of(const uint8_t* code, int scale, int stored, int64_t row, int64_t group) {
  const auto [low, high] = std::minmax_element(code, code + kGroup);
  for (const int zero : {stored, stored - 256, stored + 256}) {
    const int a = *low * scale + zero, b = *high * scale + zero;
    if (std::min(a, b) >= -128 && std::max(a, b) <= 127) return zero;
  }
  return fail(ErrorCode::kCorrupt,
              fmt::format("s2_scales: output {}, group {}: codes {} to {} times {} plus {} are no "
                          "int8, also not as bytes that wrap",
                          row, group, *low, *high, scale, stored));
}

// Where output n stands in a row of s2_scales: `lanes` outputs, 8 apart, stand together.
int64_t place_of(int64_t n, int64_t lanes) {
  const int64_t run = 8 * lanes;
  return n / run * run + n % 8 * lanes + n % run / 8;
}
constexpr int64_t kQServe = 4, kDeepCompressor = 2;  // lanes

class QoqMethod : public LinearMethod {
 public:
  QoqMethod(const LinearLayer& layer, const TensorLookup& tensors, bool grouped, int64_t lanes)
      : grouped_(grouped), lanes_(lanes) {
    const int64_t n = layer.n, k = layer.k;
    const ShardAxis tiles = {0, kTile, kTile}, columns = {1, kTile, kTile};
    specs_ = {
        // Tiles of one range of inputs are no rectangle of the stored tensor: inputs are not cut.
        wanted(Slot::kWeight, "qweight", {DType::kS8, DType::kU8}, {n, k / 2}, tiles,
               {1, k, k / 2}),
        wanted(Slot::kScale, "s1_scales", kFloats, {n}, {0}, {}),
    };
    if (grouped) {
      const tensor::Shape shape = {k / kGroup, n};
      specs_.push_back(
          wanted(Slot::kScale2, "s2_scales", {DType::kS8}, shape, columns, {0, kGroup}));
      specs_.push_back(wanted(Slot::kZero, "s2_zeros", {DType::kS8}, shape, columns, {0, kGroup}));
    } else {
      specs_.push_back(wanted(Slot::kZero, "s1_szeros", kFloats, {n}, {0}, {}));
    }
    scale_type_ =
        grouped ? DType::kF32 : scale_type(find_tensor(tensors, layer.module, "s1_scales"));
    add_bias(layer, tensors, specs_);
  }

  std::string_view scheme() const override { return "qoq"; }

  tensor::WeightFormat weight_format() const override {
    tensor::WeightFormat format;
    format.element = tensor::Element::kU4;
    format.scaled = true;
    format.group_k = grouped_ ? kGroup : 0;
    format.scale_type = scale_type_;
    format.zero = tensor::ZeroKind::kOffset;
    return format;
  }

  tensor::ActivationFormat activation_format() const override {
    return per_token(ActivationType::kS8);
  }

  std::vector<WeightSpec> create_weights() const override { return specs_; }

  Result<tensor::QuantizedWeight> process_weights_after_loading(
      int64_t n, int64_t k, const RawWeights& raw) const override {
    NIBBLE_ASSIGN(const TensorView* qweight, need(raw, Slot::kWeight, "qweight", {n, k / 2}));
    NIBBLE_ASSIGN(const TensorView* s1, need(raw, Slot::kScale, "s1_scales", {n}));
    tensor::QuantizedWeight out = empty_weight(n, k);
    NIBBLE_ASSIGN(out.code_owner, tensor::Buffer::allocate(static_cast<size_t>(n * k)));
    unpack(qweight->data, n, k, reinterpret_cast<uint8_t*>(out.code_owner.data()));
    out.code = {DType::kU8, {n, k}, out.code_owner.data(), out.code_owner.size()};
    NIBBLE_ASSIGN(out.scale, read_floats(*s1, "s1_scales"));
    if (grouped_) {
      NIBBLE_TRY(read_groups(raw, out));
    } else {
      NIBBLE_ASSIGN(const TensorView* szeros, need(raw, Slot::kZero, "s1_szeros", {n}));
      NIBBLE_ASSIGN(out.offset, read_floats(*szeros, "s1_szeros"));
      for (float& offset : out.offset) offset = -offset;
    }
    return out;
  }

 private:
  // The second level; `out.scale` holds s1 and gets s1 * s2.
  Result<void> read_groups(const RawWeights& raw, tensor::QuantizedWeight& out) const {
    const int64_t n = out.n, k = out.k, groups = k / kGroup;
    NIBBLE_ASSIGN(const TensorView* scales, need(raw, Slot::kScale2, "s2_scales", {groups, n}));
    NIBBLE_ASSIGN(const TensorView* zeros, need(raw, Slot::kZero, "s2_zeros", {groups, n}));
    const std::vector<float> s1 = std::move(out.scale);
    const auto* s2 = reinterpret_cast<const int8_t*>(scales->data);
    const auto* z2 = reinterpret_cast<const int8_t*>(zeros->data);
    const auto* code = reinterpret_cast<const uint8_t*>(out.code.data);
    out.scale.resize(static_cast<size_t>(n * groups));
    out.offset.resize(static_cast<size_t>(n * groups));
    for (int64_t row = 0; row < n; ++row) {
      const float first = s1[static_cast<size_t>(row)];
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t place = g * n + place_of(row, lanes_);
        const int scale = s2[place];
        NIBBLE_ASSIGN(const int zero,
                      zero_of(code + row * k + g * kGroup, scale, z2[place], row, g));
        const auto at = static_cast<size_t>(row * groups + g);
        out.scale[at] = static_cast<float>(scale) * first;
        out.offset[at] = static_cast<float>(zero) * first;
      }
    }
    return {};
  }

  bool grouped_;
  int64_t lanes_;
  DType scale_type_;
  std::vector<WeightSpec> specs_;
};

class QoqConfig : public QuantizationConfig {
 public:
  std::string_view scheme() const override { return "qoq"; }
  std::vector<const NameMatcher*> matchers() const override { return {&not_converted_}; }

  Result<std::unique_ptr<LinearMethod>> linear_method(const LinearLayer& layer,
                                                      const TensorLookup& tensors) const override {
    if (find_tensor(tensors, layer.module, "qweight") == nullptr) {
      return unquantized_method(layer, tensors);
    }
    const bool groups = find_tensor(tensors, layer.module, "s2_scales") != nullptr;
    const bool szeros = find_tensor(tensors, layer.module, "s1_szeros") != nullptr;
    if ((groups && group_ == -1) || (szeros && group_ == kGroup)) {
      return fail(ErrorCode::kCorrupt,
                  fmt::format("{}: group_size is {}, but {}.{} is stored, which belongs to {}",
                              where_, group_, layer.module, groups ? "s2_scales" : "s1_szeros",
                              groups ? kGroup : int64_t{-1}));
    }
    const bool grouped = groups || group_ == kGroup;
    const int64_t inputs = grouped ? kGroup : kTile;
    if (layer.n % kTile != 0 || layer.k % inputs != 0) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("{}: {} outputs and {} inputs do not fill tiles of {} x {}",
                              layer.module, layer.n, layer.k, kTile, inputs));
    }
    return std::unique_ptr<LinearMethod>(
        std::make_unique<QoqMethod>(layer, tensors, grouped, lanes_));
  }

  void read_files(const std::vector<std::string>& files) {
    if (std::find(files.begin(), files.end(), "quant_model.pt") == files.end()) return;
    lanes_ = kDeepCompressor;
    notes.push_back(
        "quant_model.pt is what deepcompressor writes: s2_scales and s2_zeros are taken in its "
        "order, not in QServe's");
  }

  Result<void> read(const base::Json& dictionary) {
    where_ = dictionary.where();
    check_keys(dictionary, "quant_method wbits bits group_size modules_to_not_convert",
               "version zero_point", warnings);
    NIBBLE_ASSIGN(const int64_t bits,
                  int_key_or(dictionary, dictionary.find_set("wbits") ? "wbits" : "bits", 4));
    NIBBLE_ASSIGN(group_, int_key(dictionary, "group_size"));
    if (bits != 4 || (group_ != -1 && group_ != kGroup)) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("{}: wbits is {} and group_size {}; QoQ has 4 and -1 or {}", where_,
                              bits, group_, kGroup));
    }
    NIBBLE_ASSIGN(not_converted_,
                  names_list(dictionary, {"modules_to_not_convert"}, Says::kLeftAlone));
    return {};
  }

 private:
  std::string where_;
  int64_t group_ = 0;  // 0: the tensors say it
  int64_t lanes_ = kQServe;
  NameMatcher not_converted_;
};

bool claims(const CheckpointFacts& facts) { return !facts.gguf && method_of(facts) == "qoq"; }

Result<std::unique_ptr<QuantizationConfig>> parse(const CheckpointFacts& facts) {
  auto config = std::make_unique<QoqConfig>();
  if (facts.quantization != nullptr) NIBBLE_TRY(config->read(*facts.quantization));
  config->read_files(facts.files);
  return std::unique_ptr<QuantizationConfig>(std::move(config));
}

constexpr std::string_view kAliases[] = {"qserve"};

}  // namespace

extern const Scheme qoq_scheme;
const Scheme qoq_scheme = {"qoq", kAliases, claims, parse};

}  // namespace nibble::quant
