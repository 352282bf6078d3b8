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

#include "quant/scheme.h"
#include "quant/stored.h"

namespace nibble::quant {
namespace {

using tensor::DType;
using tensor::Element;
using tensor::TensorInfo;
using tensor::TensorView;

const std::vector<DType> kWeights = {DType::kE4M3, DType::kE4M3FNUZ, DType::kE5M2,
                                     DType::kE5M2FNUZ};
const std::vector<DType> kScales = {DType::kF32, DType::kBF16, DType::kF16, DType::kE8M0};

enum class Granularity { kTensor, kPart, kChannel, kBlock };

struct Block {
  int64_t n = 0, k = 0;  // 0: no blocks
};

struct Shared {
  Block block;
  bool is_static = false;
};

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

Element element_of(DType dtype) {
  return dtype == DType::kE4M3       ? Element::kE4M3
         : dtype == DType::kE4M3FNUZ ? Element::kE4M3FNUZ
         : dtype == DType::kE5M2     ? Element::kE5M2
                                     : Element::kE5M2FNUZ;
}

Result<std::vector<float>> read_scales(const TensorView& view, std::string_view suffix) {
  NIBBLE_ASSIGN(std::vector<float> scale, read_floats(view, suffix));
  for (size_t i = 0; i < scale.size(); ++i) {
    if (scale[i] > 0) continue;
    return fail(ErrorCode::kCorrupt, fmt::format("{} is {}; a scale is positive",
                                                 element_name(suffix, view.shape, i), scale[i]));
  }
  return scale;
}

class Fp8Method : public LinearMethod {
 public:
  Fp8Method(const LinearLayer& layer, const TensorLookup& tensors, const Shared& shared,
            Granularity granularity, const TensorInfo& scale, std::string_view suffix)
      : shared_(shared),
        granularity_(granularity),
        scale_suffix_(suffix),
        n_(layer.n),
        parts_(layer.parts),
        scale_type_(scale.dtype) {
    dtype_ = find_tensor(tensors, layer.module, "weight")->dtype;
    tensor::Shape shape;
    ShardAxis along_n, along_k;
    if (granularity == Granularity::kPart) shape = {static_cast<int64_t>(parts_.size())};
    if (granularity == Granularity::kChannel) shape = {layer.n}, along_n = {0};
    if (granularity == Granularity::kBlock) {
      const Block& b = shared.block;
      shape = {ceil_div(layer.n, b.n), ceil_div(layer.k, b.k)};
      along_n = {0, b.n};
      along_k = {1, b.k};
    }
    specs_ = {
        wanted(Slot::kWeight, "weight", kWeights, {layer.n, layer.k}, {0}, {1}),
        wanted(Slot::kScale, scale_suffix_, kScales, shape, along_n, along_k),
    };
    add_input_scale(layer, tensors);
    add_bias(layer, tensors, specs_);
  }

  std::string_view scheme() const override { return "fp8"; }

  tensor::WeightFormat weight_format() const override {
    tensor::WeightFormat format;
    format.element = element_of(dtype_);
    format.scaled = true;
    format.scale_type = scale_type_;
    if (granularity_ == Granularity::kTensor) format.group_n = 0;
    if (granularity_ == Granularity::kBlock) {
      format.group_n = shared_.block.n;
      format.group_k = shared_.block.k;
    }
    return format;
  }

  tensor::ActivationFormat activation_format() const override {
    using Activation = tensor::ActivationFormat;
    Activation out;
    out.type = Activation::Type::kE4M3;
    out.is_static = shared_.is_static;
    if (shared_.is_static) out.granularity = Activation::Granularity::kTensor;
    if (granularity_ == Granularity::kBlock) {
      out.granularity = Activation::Granularity::kGroup;
      out.group = shared_.block.k;
    }
    return out;
  }

  std::vector<WeightSpec> create_weights() const override { return specs_; }

  Result<tensor::QuantizedWeight> process_weights_after_loading(
      int64_t n, int64_t k, const RawWeights& raw) const override {
    NIBBLE_ASSIGN(const TensorView* weight, need(raw, Slot::kWeight, "weight", {n, k}));
    NIBBLE_TRY(check_float8(*weight, k));
    tensor::Shape shape = specs_[1].shape;
    if (granularity_ == Granularity::kChannel) shape = {n};
    if (granularity_ == Granularity::kBlock) {
      shape = {ceil_div(n, shared_.block.n), ceil_div(k, shared_.block.k)};
    }
    NIBBLE_ASSIGN(const TensorView* scales, need(raw, Slot::kScale, scale_suffix_, shape));
    tensor::QuantizedWeight out;
    out.format = weight_format();
    out.activation = activation_format();
    out.n = n;
    out.k = k;
    NIBBLE_ASSIGN(out.scale, read_scales(*scales, scale_suffix_));
    if (granularity_ == Granularity::kPart) out.scale = one_per_output(out.scale, n);
    if (shared_.is_static) {
      NIBBLE_ASSIGN(out.input_scale, read_input_scale(raw));
    }
    out.code = *weight;
    return out;
  }

 private:
  void add_input_scale(const LinearLayer& layer, const TensorLookup& tensors) {
    const TensorInfo* stored = find_tensor(tensors, layer.module, "input_scale");
    const TensorInfo* other = find_tensor(tensors, layer.module, "activation_scale");
    input_suffix_ = stored == nullptr && other != nullptr ? "activation_scale" : "input_scale";
    if (stored == nullptr) stored = other;
    if (!shared_.is_static && stored == nullptr) return;
    WeightSpec spec = wanted(Slot::kInputScale, input_suffix_, kFloats, {}, {}, {});
    if (stored != nullptr &&
        squeezed(stored->shape) == squeezed({static_cast<int64_t>(parts_.size())})) {
      spec.shape = stored->shape;
    }
    if (!shared_.is_static) {
      spec.slot = Slot::kUnused;
      spec.required = false;
      spec.unused = "activation_scheme is dynamic";
    }
    specs_.push_back(std::move(spec));
  }

  // One scale for x, so that the parts of a fused layer must agree on theirs.
  Result<float> read_input_scale(const RawWeights& raw) const {
    const TensorView* view = raw.get(Slot::kInputScale);
    if (view == nullptr) {
      return fail(
          ErrorCode::kNotFound,
          fmt::format("{}: the tensor is missing, but activation_scheme is static", input_suffix_));
    }
    NIBBLE_ASSIGN(view, need(raw, Slot::kInputScale, input_suffix_, specs_[2].shape));
    NIBBLE_ASSIGN(const std::vector<float> scale, read_scales(*view, input_suffix_));
    for (float s : scale) {
      if (s == scale[0]) continue;
      return fail(
          ErrorCode::kUnsupported,
          fmt::format("{}: the parts of a fused layer have the input scales {}; one product "
                      "needs one",
                      input_suffix_, fmt::join(scale, ", ")));
    }
    return scale[0];
  }

  // A rank has the same share of each part.
  std::vector<float> one_per_output(const std::vector<float>& of_part, int64_t n) const {
    std::vector<float> out;
    for (size_t i = 0; i < parts_.size(); ++i) {
      out.insert(out.end(), static_cast<size_t>(parts_[i] * n / n_), of_part[i]);
    }
    return out;
  }

  Shared shared_;
  Granularity granularity_;
  std::string scale_suffix_, input_suffix_;
  int64_t n_;
  std::vector<int64_t> parts_;
  DType scale_type_, dtype_;
  std::vector<WeightSpec> specs_;
};

// modules_to_convert and kv_cache_scheme are known and not asked: the stored tensors say it.
constexpr std::string_view kKnown =
    "quant_method activation_scheme weight_block_size ignored_layers modules_to_not_convert "
    "scale_fmt "
    "fmt store_dtype expert_dtype modules_to_convert kv_cache_scheme";
constexpr std::string_view kHarmless = "dequantize kv_cache_quant_method meta";
constexpr std::string_view kCacheScales[] = {".k_scale",
                                             ".v_scale",
                                             ".q_scale",
                                             ".kv_scale",
                                             ".prob_scale",
                                             ".prob_output_scale",
                                             ".k_proj.output_scale",
                                             ".v_proj.output_scale",
                                             ".q_proj.output_scale",
                                             ".k_cache.scale",
                                             ".v_cache.scale",
                                             ".k_zero_point",
                                             ".v_zero_point",
                                             ".q_zero_point"};

class Fp8Config : public QuantizationConfig {
 public:
  std::string_view scheme() const override { return "fp8"; }
  std::vector<const NameMatcher*> matchers() const override { return {&ignored_}; }

  std::string unused_reason(const TensorInfo& info) const override {
    for (std::string_view suffix : kCacheScales) {
      const std::string_view name = info.name;
      if (name.size() > suffix.size() && name.substr(name.size() - suffix.size()) == suffix) {
        return "a scale of a quantized KV cache; the cache here is not quantized";
      }
    }
    return {};
  }

  Result<std::unique_ptr<LinearMethod>> linear_method(const LinearLayer& layer,
                                                      const TensorLookup& tensors) const override {
    NIBBLE_TRY(ignored_.match(layer.module));  // to know which rules match nothing
    const TensorInfo* weight = find_tensor(tensors, layer.module, "weight");
    // What is stored outranks the list. (The shared method also reports a missing weight.)
    if (weight == nullptr || tensor::is_plain_float(weight->dtype)) {
      return unquantized_method(layer, tensors);
    }
    if (std::find(kWeights.begin(), kWeights.end(), weight->dtype) == kWeights.end()) {
      return fail(ErrorCode::kCorrupt,
                  fmt::format("{}: expected a type of fp8 or a plain float, found {}", weight->name,
                              tensor::name(weight->dtype)));
    }
    for (std::string_view suffix : {"weight_scale_inv", "weight_scale"}) {
      const TensorInfo* scale = find_tensor(tensors, layer.module, suffix);
      if (scale == nullptr) continue;
      NIBBLE_ASSIGN(const Granularity granularity, granularity_of(layer, *scale));
      return std::unique_ptr<LinearMethod>(
          std::make_unique<Fp8Method>(layer, tensors, shared_, granularity, *scale, suffix));
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
    shared_.is_static = activation == "static";
    NIBBLE_TRY(read_block(dictionary));
    if (shared_.is_static && shared_.block.n != 0) {
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
        shared_.is_static = true;
      }
    }
    notes.push_back(
        fmt::format("no quantization_config: activations taken as {}",
                    shared_.is_static ? "static, for there are input scales" : "dynamic"));
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
    shared_.block = {size->as_array()[0].as_int(), size->as_array()[1].as_int()};
    return {};
  }

  // The shape of the scale decides what it scales.
  Result<Granularity> granularity_of(const LinearLayer& layer, const TensorInfo& scale) const {
    const tensor::Shape shape = squeezed(scale.shape);
    const Block& b = shared_.block;
    std::string blocks = "weight_block_size is not given";
    if (b.n != 0) {
      const tensor::Shape expected = {ceil_div(layer.n, b.n), ceil_div(layer.k, b.k)};
      if (shape == squeezed(expected)) return Granularity::kBlock;
      blocks = fmt::format("one per block of {} x {} is {}", b.n, b.k, tensor::to_string(expected));
    }
    if (shape.empty()) return Granularity::kTensor;
    if (shape == tensor::Shape{layer.n}) return Granularity::kChannel;
    if (shape == tensor::Shape{static_cast<int64_t>(layer.parts.size())}) return Granularity::kPart;
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: {} is neither one scale nor one per output ({}); {}", scale.name,
                            tensor::to_string(scale.shape), layer.n, blocks));
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

  Shared shared_;
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
