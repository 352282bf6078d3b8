// GGUF: every tensor says its own block type, so there is nothing to configure.
//
//   <module>.weight  (N, K)  a GGUF type       <module>.bias  (N)  f32
//
// `module` is the file's own name, such as blk.0.attn_q. The block types are in gguf_blocks.cc.
#include <fmt/format.h>

#include "quant/gguf_blocks.h"
#include "quant/scheme.h"
#include "quant/stored.h"

namespace nibble::quant {
namespace {

class GgufMethod : public LinearMethod {
 public:
  GgufMethod(const LinearLayer& layer, const TensorLookup& tensors, tensor::DType dtype)
      : dtype_(dtype), k_(layer.k) {
    // slice.h adds that blocks stay whole.
    specs_ = {wanted(Slot::kWeight, "weight", {dtype}, {layer.n, layer.k}, {0}, {1})};
    add_bias(layer, tensors, specs_);
  }

  std::string_view scheme() const override { return "gguf"; }
  tensor::WeightFormat weight_format() const override { return gguf_format(dtype_, k_); }
  std::vector<WeightSpec> create_weights() const override { return specs_; }

  Result<tensor::QuantizedWeight> process_weights_after_loading(
      int64_t n, int64_t k, const RawWeights& raw) const override {
    const tensor::TensorView* weight = raw.get(Slot::kWeight);
    if (weight == nullptr) return fail(ErrorCode::kNotFound, "weight: the tensor is missing");
    return gguf_to_canonical(dtype_, n, k, *weight);
  }

 private:
  tensor::DType dtype_;
  int64_t k_;
  std::vector<WeightSpec> specs_;
};

class GgufConfig : public QuantizationConfig {
 public:
  std::string_view scheme() const override { return "gguf"; }
  Result<std::unique_ptr<LinearMethod>> linear_method(const LinearLayer& layer,
                                                      const TensorLookup& tensors) const override {
    const tensor::TensorInfo* stored = find_tensor(tensors, layer.module, "weight");
    if (stored == nullptr || tensor::is_plain_float(stored->dtype)) {
      return unquantized_method(layer, tensors);
    }
    if (!gguf_readable(stored->dtype)) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("{}: its type {} is not one that weights are read from", stored->name,
                              tensor::name(stored->dtype)));
    }
    return std::unique_ptr<LinearMethod>(
        std::make_unique<GgufMethod>(layer, tensors, stored->dtype));
  }
};

bool claims(const CheckpointFacts& facts) { return facts.gguf; }

Result<std::unique_ptr<QuantizationConfig>> parse(const CheckpointFacts&) {
  return std::unique_ptr<QuantizationConfig>(std::make_unique<GgufConfig>());
}

}  // namespace

extern const Scheme gguf_scheme;
const Scheme gguf_scheme = {"gguf", {}, claims, parse};

}  // namespace nibble::quant
