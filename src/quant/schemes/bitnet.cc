// BitNet b1.58 (Ma et al. 2024) as transformers stores it: weights of -1, 0 and 1.
//
//   <module>.weight        (N/4, K) u8    four ternary digits, stored as 0, 1, 2, to a byte: rows
//   r,
//                                         r + N/4, r + N/2, r + 3N/4 from the lowest bits up
//                   or     (N, K)  bf16 | f16 | f32 holding -1, 0 and 1 (autobitlinear)
//   <module>.weight_scale  ()      bf16 | f16 | f32
//
//   w = digit / weight_scale      linear_class bitlinear
//   w = digit * weight_scale      linear_class autobitlinear
//
// With quantization_mode online the file has float weights, rounded while loading:
//
//   s = 1 / max(mean |w|, 1e-5)      digit = clamp(round(w s), -1, 1)      w' = digit / s
//
// Activations are s8 per token.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "quant/activations.h"
#include "quant/keys.h"
#include "quant/scheme.h"
#include "quant/stored.h"

namespace nibble::quant {
namespace {

using tensor::DType;
using tensor::TensorInfo;
using tensor::TensorView;

enum class Stored { kPacked, kDigits, kFloats };

class BitnetMethod : public LinearMethod {
 public:
  BitnetMethod(const LinearLayer& layer, const TensorLookup& tensors, Stored stored, bool divides)
      : stored_(stored), divides_(divides) {
    const int64_t n = layer.n, k = layer.k;
    // A byte holds rows from everywhere, a mean is one of all weights: no part of the outputs.
    if (stored == Stored::kPacked) {
      specs_ = {wanted(Slot::kWeight, "weight", {DType::kU8}, {(n + 3) / 4, k}, {0, n}, {1})};
    } else {
      specs_ = {wanted(Slot::kWeight, "weight", kFloats, {n, k}, {0}, {1})};
    }
    if (stored == Stored::kFloats) {
      specs_[0].along_n = {0, n};
      specs_[0].along_k = {1, k};
    } else {
      specs_.push_back(wanted(Slot::kScale, "weight_scale", kFloats, {}, {}, {}));
    }
    add_bias(layer, tensors, specs_);
  }

  std::string_view scheme() const override { return "bitnet"; }

  tensor::WeightFormat weight_format() const override {
    tensor::WeightFormat format;
    format.element = tensor::Element::kS2;
    format.scaled = true;
    format.group_n = 0;
    return format;
  }

  tensor::ActivationFormat activation_format() const override {
    return per_token(ActivationType::kS8);
  }

  std::vector<WeightSpec> create_weights() const override { return specs_; }

  Result<tensor::QuantizedWeight> process_weights_after_loading(
      int64_t n, int64_t k, const RawWeights& raw) const override {
    tensor::QuantizedWeight out = empty_weight(n, k);
    NIBBLE_ASSIGN(out.code_owner, tensor::Buffer::allocate(static_cast<size_t>(n * k)));
    out.code = {DType::kU8, {n, k}, out.code_owner.data(), out.code_owner.size()};
    if (stored_ == Stored::kFloats) {
      NIBBLE_TRY(round(raw, out));
      return out;
    }
    NIBBLE_TRY(stored_ == Stored::kPacked ? unpack(raw, out) : read_digits(raw, out));
    NIBBLE_ASSIGN(const TensorView* view, need(raw, Slot::kScale, "weight_scale", {}));
    NIBBLE_ASSIGN(out.scale, read_floats(*view, "weight_scale"));
    if (divides_ && out.scale[0] == 0) {
      return fail(ErrorCode::kCorrupt, "weight_scale is 0, but the weights are divided by it");
    }
    if (divides_) out.scale[0] = 1.0f / out.scale[0];
    return out;
  }

 private:
  static Result<void> unpack(const RawWeights& raw, tensor::QuantizedWeight& out) {
    const int64_t rows = (out.n + 3) / 4;
    NIBBLE_ASSIGN(const TensorView* view, need(raw, Slot::kWeight, "weight", {rows, out.k}));
    const auto code = out.code_owner.as<int8_t>();
    for (int64_t n = 0; n < out.n; ++n) {
      const std::byte* row = view->data + n % rows * out.k;
      for (int64_t k = 0; k < out.k; ++k) {
        const int digit = static_cast<int>(row[k]) >> 2 * (n / rows) & 3;
        if (digit == 3) {
          return fail(ErrorCode::kCorrupt,
                      fmt::format("weight: the digit of output {}, input {} is 3; ternary digits "
                                  "are 0, 1 and 2",
                                  n, k));
        }
        code[static_cast<size_t>(n * out.k + k)] = static_cast<int8_t>(digit - 1);
      }
    }
    return {};
  }

  static Result<void> read_digits(const RawWeights& raw, tensor::QuantizedWeight& out) {
    NIBBLE_ASSIGN(const TensorView* view, need(raw, Slot::kWeight, "weight", {out.n, out.k}));
    NIBBLE_ASSIGN(const std::vector<float> value, read_floats(*view, "weight"));
    const auto code = out.code_owner.as<int8_t>();
    for (size_t i = 0; i < value.size(); ++i) {
      code[i] = static_cast<int8_t>(std::clamp(value[i], -1.0f, 1.0f));
      if (static_cast<float>(code[i]) == value[i]) continue;
      return fail(ErrorCode::kCorrupt,
                  fmt::format("{} is {}; beside a weight_scale, weights are -1, 0 or 1",
                              element_name("weight", view->shape, i), value[i]));
    }
    return {};
  }

  static Result<void> round(const RawWeights& raw, tensor::QuantizedWeight& out) {
    NIBBLE_ASSIGN(const TensorView* view, need(raw, Slot::kWeight, "weight", {out.n, out.k}));
    NIBBLE_ASSIGN(const std::vector<float> value, read_floats(*view, "weight"));
    double sum = 0;
    for (float v : value) sum += std::fabs(v);
    const auto mean = static_cast<float>(sum / static_cast<double>(value.size()));
    const float scale = 1.0f / std::max(mean, 1e-5f);
    const auto code = out.code_owner.as<int8_t>();
    for (size_t i = 0; i < value.size(); ++i) {
      code[i] = static_cast<int8_t>(std::clamp(std::nearbyint(value[i] * scale), -1.0f, 1.0f));
    }
    out.scale = {1.0f / scale};
    return {};
  }

  Stored stored_;
  bool divides_;
  std::vector<WeightSpec> specs_;
};

constexpr std::string_view kKnown =
    "quant_method linear_class quantization_mode use_rms_norm modules_to_not_convert";
constexpr std::string_view kHarmless = "rms_norm_eps bits";

class BitnetConfig : public QuantizationConfig {
 public:
  std::string_view scheme() const override { return "bitnet"; }
  std::vector<const NameMatcher*> matchers() const override { return {&not_converted_}; }

  Result<std::unique_ptr<LinearMethod>> linear_method(const LinearLayer& layer,
                                                      const TensorLookup& tensors) const override {
    NIBBLE_ASSIGN(const std::optional<size_t> left_alone, not_converted_.match(layer.module));
    const TensorInfo* weight = find_tensor(tensors, layer.module, "weight");
    const bool scaled = find_tensor(tensors, layer.module, "weight_scale") != nullptr;
    if (weight == nullptr) return unquantized_method(layer, tensors);  // its error says so
    if (!tensor::is_plain_float(weight->dtype)) {
      return method(layer, tensors, Stored::kPacked, !auto_);
    }
    // What is stored outranks the list: a scale makes digits of floats.
    if (scaled) return method(layer, tensors, Stored::kDigits, !auto_);
    // Only a list can say which floats are to be rounded; head and embedding never are.
    const bool outside = layer.module.find("layers.") == std::string::npos &&
                         layer.module.find(".h.") == std::string::npos;
    if (!online_ || left_alone || outside) return unquantized_method(layer, tensors);
    return method(layer, tensors, Stored::kFloats, false);
  }

  Result<void> read(const base::Json& dictionary) {
    check_keys(dictionary, kKnown, kHarmless, warnings);
    NIBBLE_ASSIGN(const std::string linear,
                  choice_key(dictionary, "linear_class", {"bitlinear", "autobitlinear"}));
    NIBBLE_ASSIGN(const std::string mode,
                  choice_key(dictionary, "quantization_mode", {"offline", "online"}));
    NIBBLE_ASSIGN(const bool norm, bool_key_or(dictionary, "use_rms_norm", false));
    if (norm) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("{}: use_rms_norm is true: a norm in front of every linear layer is "
                              "not done yet",
                              dictionary.where()));
    }
    auto_ = linear == "autobitlinear";
    online_ = auto_ && mode == "online";
    NIBBLE_ASSIGN(not_converted_,
                  names_list(dictionary, {"modules_to_not_convert"}, Says::kLeftAlone));
    return {};
  }

 private:
  static Result<std::unique_ptr<LinearMethod>> method(const LinearLayer& layer,
                                                      const TensorLookup& tensors, Stored stored,
                                                      bool divides) {
    return std::unique_ptr<LinearMethod>(
        std::make_unique<BitnetMethod>(layer, tensors, stored, divides));
  }

  bool auto_ = false, online_ = false;
  NameMatcher not_converted_;
};

bool claims(const CheckpointFacts& facts) { return !facts.gguf && facts.method == "bitnet"; }

Result<std::unique_ptr<QuantizationConfig>> parse(const CheckpointFacts& facts) {
  return parse_dictionary<BitnetConfig>(
      facts,
      "bitnet needs a quantization_config that says linear_class: it decides whether weight_scale "
      "multiplies or divides");
}

}  // namespace

extern const Scheme bitnet_scheme;
const Scheme bitnet_scheme = {"bitnet", {}, claims, parse};

}  // namespace nibble::quant
