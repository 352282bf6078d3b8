// Plain floats, as most models are published.
//
//   <module>.weight  (N, K)  bf16 | f16 | f32 | f64 (f64 is rounded to f32)
//   <module>.bias    (N)
#include <fmt/format.h>

#include <cstring>

#include "quant/scheme.h"
#include "quant/stored.h"

namespace nibble::quant {
namespace {

using tensor::DType;
using tensor::Element;

class UnquantizedMethod : public LinearMethod {
 public:
  UnquantizedMethod(const LinearLayer& layer, const TensorLookup& tensors) {
    specs_ = {wanted(Slot::kWeight, "weight", {DType::kBF16, DType::kF16, DType::kF32, DType::kF64},
                     {layer.n, layer.k}, {0}, {1})};
    add_bias(layer, tensors, specs_);
    const tensor::TensorInfo* stored = find_tensor(tensors, layer.module, "weight");
    dtype_ = stored == nullptr ? DType::kBF16 : stored->dtype;
  }

  std::string_view scheme() const override { return "unquantized"; }

  tensor::WeightFormat weight_format() const override {
    tensor::WeightFormat format;
    format.element = dtype_ == DType::kBF16  ? Element::kBF16
                     : dtype_ == DType::kF16 ? Element::kF16
                                             : Element::kF32;
    if (dtype_ == DType::kF64) format.stored_as = "f64 as f32";
    return format;
  }

  std::vector<WeightSpec> create_weights() const override { return specs_; }

  Result<tensor::QuantizedWeight> process_weights_after_loading(
      int64_t n, int64_t k, const RawWeights& raw) const override {
    const tensor::TensorView* weight = raw.get(Slot::kWeight);
    if (weight == nullptr) return fail(ErrorCode::kNotFound, "weight: the tensor is missing");
    const std::optional<uint64_t> bytes = tensor::byte_count(dtype_, {n, k});
    if (weight->dtype != dtype_ || weight->bytes != bytes) {
      return fail(ErrorCode::kCorrupt,
                  fmt::format("weight: expected {} ({}, {}), found {} {}", tensor::name(dtype_), n,
                              k, tensor::name(weight->dtype), tensor::to_string(weight->shape)));
    }
    tensor::QuantizedWeight out = empty_weight(n, k);
    if (dtype_ != DType::kF64) {
      out.code = *weight;
      return out;
    }
    const auto count = static_cast<size_t>(n * k);
    NIBBLE_ASSIGN(out.code_owner, tensor::Buffer::allocate(count * sizeof(float)));
    const auto narrow = out.code_owner.as<float>();
    for (size_t i = 0; i < count; ++i) {
      double value;
      std::memcpy(&value, weight->data + i * sizeof value, sizeof value);
      narrow[i] = static_cast<float>(value);
    }
    out.code = {DType::kF32, {n, k}, out.code_owner.data(), out.code_owner.size()};
    return out;
  }

 private:
  std::vector<WeightSpec> specs_;
  DType dtype_;
};

class UnquantizedConfig : public QuantizationConfig {
 public:
  std::string_view scheme() const override { return "unquantized"; }
  Result<std::unique_ptr<LinearMethod>> linear_method(const LinearLayer& layer,
                                                      const TensorLookup& tensors) const override {
    return unquantized_method(layer, tensors);
  }
};

// HQQ's own files name no method (schemes/hqq.cc).
bool claims(const CheckpointFacts& facts) {
  return !facts.gguf && facts.method.empty() && !stores_suffix(facts.tensors, ".W_q");
}

// What helps where a config is lost: the names of GPTQ's and AWQ's tensors are enough to read them.
std::string lost_hint(const TensorLookup& tensors) {
  std::string_view known;
  for (const tensor::TensorInfo& info : tensors.all) {
    if (info.name.ends_with(".g_idx")) known = "gptq";
    if (!info.name.ends_with(".qweight") || info.shape.size() != 2 || !known.empty()) continue;
    const std::string module = info.name.substr(0, info.name.size() - sizeof ".qweight" + 1);
    const tensor::TensorInfo* scales = find_tensor(tensors, module, "scales");
    if (scales == nullptr || scales->shape.size() != 2) continue;
    known = scales->shape[1] == info.shape[1] ? "gptq" : "awq";
  }
  return fmt::format(", or give its lost config with --quantization-config{}",
                     known.empty() ? ""
                                   : fmt::format("; its tensors are named as {0}'s, which "
                                                 "--quantization {0} reads by their shapes",
                                                 known));
}

// A checkpoint that claims nothing must hold nothing quantized: codes are never read as weights.
Result<std::unique_ptr<QuantizationConfig>> parse(const CheckpointFacts& facts) {
  for (const tensor::TensorInfo& info : facts.tensors.all) {
    if (!is_quantized_tensor(info)) continue;
    const bool lost = facts.quantization == nullptr;
    return fail(ErrorCode::kUnsupported,
                fmt::format("{}, but {} is stored as {} {}; name the scheme with --quantization{}",
                            lost ? "the checkpoint has no quantization_config"
                                 : facts.quantization_where + " has no quant_method",
                            info.name, tensor::name(info.dtype), tensor::to_string(info.shape),
                            !lost ? "" : lost_hint(facts.tensors)));
  }
  auto config = std::make_unique<UnquantizedConfig>();
  if (facts.quantization != nullptr) {
    config->notes.push_back(
        fmt::format("{} has no quant_method and no tensor is quantized: read "
                    "as an unquantized checkpoint",
                    facts.quantization_where));
  }
  return std::unique_ptr<QuantizationConfig>(std::move(config));
}

constexpr std::string_view kAliases[] = {"none"};

}  // namespace

Result<std::unique_ptr<LinearMethod>> unquantized_method(const LinearLayer& layer,
                                                         const TensorLookup& tensors) {
  return std::unique_ptr<LinearMethod>(std::make_unique<UnquantizedMethod>(layer, tensors));
}

extern const Scheme unquantized_scheme;
const Scheme unquantized_scheme = {"unquantized", kAliases, claims, parse};

}  // namespace nibble::quant
