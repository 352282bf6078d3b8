// W2A8: a format made up for docs/adding-a-scheme.md. Weights of 2 bits in groups of 32,
// activations of 8 bits per token.
//
//   <module>.weight_packed  (N, K/4)  u8    four codes a byte, the lowest bits first
//   <module>.weight_scale   (N, K/32) f32
//
//   w[n, k] = (code - 2) * weight_scale[n, k / 32]      codes 0..3 are -2..1
#include <fmt/format.h>

#include "quant/scheme.h"
#include "quant/stored.h"

namespace nibble::quant {
namespace {

using tensor::DType;
using tensor::TensorView;

constexpr int64_t kGroup = 32;

class W2A8Method : public LinearMethod {
 public:
  W2A8Method(const LinearLayer& layer, const TensorLookup& tensors) {
    const int64_t n = layer.n, k = layer.k;
    specs_ = {
        wanted(Slot::kWeight, "weight_packed", {DType::kU8}, {n, k / 4}, {0}, {1, 4}),
        wanted(Slot::kScale, "weight_scale", {DType::kF32}, {n, k / kGroup}, {0}, {1, kGroup}),
    };
    add_bias(layer, tensors, specs_);
  }

  std::string_view scheme() const override { return "w2a8"; }

  tensor::WeightFormat weight_format() const override {
    tensor::WeightFormat format;
    format.element = tensor::Element::kS2;
    format.scaled = true;
    format.group_k = kGroup;
    format.scale_type = DType::kF32;
    return format;
  }

  tensor::ActivationFormat activation_format() const override {
    tensor::ActivationFormat format;
    format.type = tensor::ActivationFormat::Type::kS8;
    format.granularity = tensor::ActivationFormat::Granularity::kToken;
    return format;
  }

  std::vector<WeightSpec> create_weights() const override { return specs_; }

  Result<tensor::QuantizedWeight> process_weights_after_loading(
      int64_t n, int64_t k, const RawWeights& raw) const override {
    NIBBLE_ASSIGN(const TensorView* packed, need(raw, Slot::kWeight, "weight_packed", {n, k / 4}));
    NIBBLE_ASSIGN(const TensorView* scales,
                  need(raw, Slot::kScale, "weight_scale", {n, k / kGroup}));
    tensor::QuantizedWeight out = empty_weight(n, k);
    NIBBLE_ASSIGN(out.scale, read_floats(*scales, "weight_scale"));
    NIBBLE_ASSIGN(out.code_owner, tensor::Buffer::allocate(static_cast<size_t>(n * k)));
    auto* code = reinterpret_cast<int8_t*>(out.code_owner.data());
    for (int64_t i = 0; i < n * k; ++i) {
      const auto byte = static_cast<uint8_t>(packed->data[i / 4]);
      code[i] = static_cast<int8_t>((byte >> 2 * (i % 4) & 3) - 2);
    }
    out.code = {DType::kU8, {n, k}, out.code_owner.data(), out.code_owner.size()};
    return out;
  }

 private:
  std::vector<WeightSpec> specs_;
};

class W2A8Config : public QuantizationConfig {
 public:
  std::string_view scheme() const override { return "w2a8"; }

  Result<std::unique_ptr<LinearMethod>> linear_method(const LinearLayer& layer,
                                                      const TensorLookup& tensors) const override {
    // What is stored decides; a layer left alone by the writer stays plain.
    if (find_tensor(tensors, layer.module, "weight_packed") == nullptr) {
      return unquantized_method(layer, tensors);
    }
    if (layer.k % kGroup != 0) {
      return fail(ErrorCode::kUnsupported, fmt::format("{}: {} inputs are no whole groups of {}",
                                                       layer.module, layer.k, kGroup));
    }
    return std::unique_ptr<LinearMethod>(std::make_unique<W2A8Method>(layer, tensors));
  }
};

bool claims(const CheckpointFacts& facts) { return !facts.gguf && facts.method == "w2a8"; }

Result<std::unique_ptr<QuantizationConfig>> parse(const CheckpointFacts& facts) {
  auto config = std::make_unique<W2A8Config>();
  if (facts.quantization != nullptr) {
    check_keys(*facts.quantization, "quant_method", "", config->warnings);
  }
  return std::unique_ptr<QuantizationConfig>(std::move(config));
}

}  // namespace

extern const Scheme w2a8_scheme;
const Scheme w2a8_scheme = {"w2a8", {}, claims, parse};

}  // namespace nibble::quant
