// FP8 (`quant_method: "fp8"`): weights of one byte with a scale per tensor, output or block.
//
//   <module>.weight            (N, K)   e4m3 | e5m2 | their fnuz forms
//   <module>.weight_scale_inv  () | (N) | (N, 1) | (ceil(N/bn), ceil(K/bk))   f32 | bf16 | f16 |
//   e8m0
//         or weight_scale, or one per part (q, k, v) of a layer that is stored fused
//   <module>.input_scale       ()       static activations (transformers writes activation_scale)
//
//   w[n, k] = weight[n, k] * scale      also for the name weight_scale_inv: it multiplies
//
// Blocks are those of `weight_block_size`, (128, 128) as DeepSeek has them; the last one of a row
// or column is short where the size does not divide. (transformers 5 instead stretches the blocks.)
// Activations are e4m3: per tensor when static; else per token, per token and bk inputs with
// blocks.
#include <fmt/format.h>

#include <algorithm>

#include "quant/scaled_codes.h"
#include "quant/scheme.h"
#include "quant/stored.h"

namespace nibble::quant {
namespace {

using tensor::DType;
using tensor::TensorInfo;

// modules_to_convert and kv_cache_scheme are known and not asked: the stored tensors say it.
constexpr std::string_view kKnown =
    "quant_method activation_scheme weight_block_size ignored_layers modules_to_not_convert "
    "scale_fmt "
    "fmt store_dtype expert_dtype modules_to_convert kv_cache_scheme";
constexpr std::string_view kHarmless = "dequantize kv_cache_quant_method meta";

class Fp8Config : public QuantizationConfig {
 public:
  std::string_view scheme() const override { return "fp8"; }
  std::vector<const NameMatcher*> matchers() const override { return {&ignored_}; }

  std::string unused_reason(const TensorInfo& info) const override {
    return cache_scale_reason(info);
  }

  Result<std::unique_ptr<LinearMethod>> linear_method(const LinearLayer& layer,
                                                      const TensorLookup& tensors) const override {
    NIBBLE_TRY(ignored_.match(layer.module));  // to know which rules match nothing
    const TensorInfo* weight = find_tensor(tensors, layer.module, "weight");
    // What is stored outranks the list. (The shared method also reports a missing weight.)
    if (weight == nullptr || tensor::is_plain_float(weight->dtype)) {
      return unquantized_method(layer, tensors);
    }
    if (!is_fp8(weight->dtype)) {
      return fail(ErrorCode::kCorrupt,
                  fmt::format("{}: expected a type of fp8 or a plain float, found {}", weight->name,
                              tensor::name(weight->dtype)));
    }
    for (std::string_view suffix : {"weight_scale_inv", "weight_scale"}) {
      const TensorInfo* scale = find_tensor(tensors, layer.module, suffix);
      if (scale == nullptr) continue;
      ScaledCodes codes{.scheme = "fp8",
                        .element = element_of_fp8(weight->dtype),
                        .code_types = kFp8Types,
                        .scale = std::string(suffix)};
      NIBBLE_ASSIGN(codes.area, area_of(layer, *scale, block_, "weight_block_size"));
      codes.activation = activation();
      codes.input_scale_unused = "activation_scheme is dynamic";
      if (find_tensor(tensors, layer.module, "input_scale") == nullptr &&
          find_tensor(tensors, layer.module, "activation_scale") != nullptr) {
        codes.input_scale = "activation_scale";  // transformers' name
      }
      return scaled_codes_method(layer, tensors, std::move(codes));
    }
    return no_scale(layer, *weight, tensors);
  }

  Result<void> read(const base::Json& dictionary) {
    const std::string& where = dictionary.where();
    check_keys(dictionary, kKnown, kHarmless, warnings);
    NIBBLE_TRY(dictionary.get_string("activation_scheme"));  // it has no default
    NIBBLE_ASSIGN(const std::string activation,
                  choice_key(dictionary, "activation_scheme", {"dynamic", "static"}));
    NIBBLE_TRY(choice_key(dictionary, "scale_fmt", {"float", "ue8m0"}));
    NIBBLE_TRY(choice_key(dictionary, "expert_dtype", {"fp8"}));
    NIBBLE_TRY(choice_key(dictionary, "store_dtype", {"fp8"}));
    is_static_ = activation == "static";
    NIBBLE_TRY(read_block(dictionary));
    if (is_static_ && block_.n != 0) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("{}: activation_scheme is static, but weight_block_size is given; "
                              "block weights have dynamic activations",
                              where));
    }
    std::vector<std::string> names;
    for (const char* key : {"ignored_layers", "modules_to_not_convert"}) {
      NIBBLE_ASSIGN(const std::vector<std::string> more, names_key(dictionary, key));
      names.insert(names.end(), more.begin(), more.end());
    }
    NIBBLE_ASSIGN(ignored_, NameMatcher::compile(std::move(names), where + ": ignored_layers"));
    return {};
  }

  // Without a dictionary (--quantization fp8) the tensors say the rest.
  void infer(const TensorLookup& tensors) {
    for (const TensorInfo& info : tensors.all) {
      const std::string_view name = info.name;
      if (name.size() > 12 && name.substr(name.size() - 12) == ".input_scale") {
        is_static_ = true;
      }
    }
    notes.push_back(fmt::format("no quantization_config: activations taken as {}",
                                is_static_ ? "static, for there are input scales" : "dynamic"));
  }

 private:
  Result<void> read_block(const base::Json& dictionary) {
    const base::Json* size = dictionary.find_set("weight_block_size");
    if (size == nullptr) return {};
    if (!size->is_array() || size->as_array().size() != 2 || !size->as_array()[0].is_int() ||
        !size->as_array()[1].is_int() || size->as_array()[0].as_int() <= 0 ||
        size->as_array()[1].as_int() <= 0) {
      return fail(ErrorCode::kCorrupt,
                  fmt::format("{}: weight_block_size: expected two positive integers, found {}",
                              dictionary.where(), size->dump()));
    }
    block_ = {size->as_array()[0].as_int(), size->as_array()[1].as_int()};
    return {};
  }

  // Per tensor when static; else per token, per token and bk inputs with blocks.
  tensor::ActivationFormat activation() const {
    using Activation = tensor::ActivationFormat;
    Activation out;
    out.type = Activation::Type::kE4M3;
    out.is_static = is_static_;
    if (is_static_) out.granularity = Activation::Granularity::kTensor;
    if (block_.n != 0) {
      out.granularity = Activation::Granularity::kGroup;
      out.group = block_.k;
    }
    return out;
  }

  static Failure no_scale(const LinearLayer& layer, const TensorInfo& weight,
                          const TensorLookup& tensors) {
    std::string found;
    for (const TensorInfo& info : tensors.all) {
      if (info.name.rfind(layer.module + ".", 0) != 0 ||
          info.name.find("scale") == std::string::npos ||
          info.name.find("input_scale") != std::string::npos) {
        continue;
      }
      found = fmt::format(" ({} is no name of this format)", info.name);
      break;
    }
    return fail(
        ErrorCode::kNotFound,
        fmt::format("{} is {}, but has no scale: neither weight_scale_inv nor weight_scale is "
                    "stored{}",
                    weight.name, tensor::name(weight.dtype), found));
  }

  Area block_;  // (0, 0): no blocks
  bool is_static_ = false;
  NameMatcher ignored_;
};

bool claims(const CheckpointFacts& facts) { return !facts.gguf && facts.method == "fp8"; }

Result<std::unique_ptr<QuantizationConfig>> parse(const CheckpointFacts& facts) {
  auto config = std::make_unique<Fp8Config>();
  if (facts.quantization == nullptr) {
    config->infer(facts.tensors);
  } else {
    NIBBLE_TRY(config->read(*facts.quantization));
  }
  return std::unique_ptr<QuantizationConfig>(std::move(config));
}

constexpr std::string_view kAliases[] = {"finegrained_fp8"};

}  // namespace

extern const Scheme fp8_scheme;
const Scheme fp8_scheme = {"fp8", kAliases, claims, parse};

}  // namespace nibble::quant
