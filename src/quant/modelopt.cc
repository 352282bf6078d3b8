#include "quant/modelopt.h"

#include <fmt/format.h>

#include <algorithm>

#include "quant/activations.h"
#include "quant/keys.h"
#include "quant/scaled_codes.h"
#include "quant/scheme.h"
#include "quant/stored.h"

namespace nibble::quant {
namespace {

using tensor::ActivationFormat;
using tensor::DType;
using tensor::Element;
using tensor::TensorInfo;

// How the weights of a layer are stored.
//
//   kFp8    weight (N, K) e4m3           weight_scale () | (N) | (ceil(N/128), 1, ceil(K/128), 1)
//   kMxfp8  weight (N, K) e4m3           weight_scale (N, K/32) u8, which is e8m0
//   kInt8   weight (N, K) s8             weight_scale (N)
//   kInt4   weight (N/2, K) u8           weight_scale (N, K/G)
//   kNvfp4  weight (N, K/2) u8           weight_scale (N, K/G) e4m3, weight_scale_2 ()
//   kMxfp4  weight (N, K/2) u8           weight_scale (N, K/32) u8, which is e8m0
//   kW4afp8 weight (N, K/2) s8           weight_scale_inv (N, K/128)
//
// The FP8 linears of W4AFP8 are DeepSeek's: weight_scale_inv (ceil(N/128), ceil(K/128)).
enum class Kind { kFp8, kMxfp8, kInt8, kInt4, kNvfp4, kMxfp4, kW4afp8 };

constexpr std::string_view kKindNames[] = {"FP8",   "MXFP8", "INT8",         "INT4 in groups",
                                           "NVFP4", "MXFP4", "W4AFP8's int4"};
std::string_view name_of(Kind kind) { return kKindNames[static_cast<int>(kind)]; }

const ActivationFormat kFloatInput = {};
const ActivationFormat kStaticE4M3 = stored_scale(ActivationType::kE4M3);
const ActivationFormat kTokenE4M3 = per_token(ActivationType::kE4M3);
const ActivationFormat kGroupE4M3 = per_group(ActivationType::kE4M3, 128);
const ActivationFormat kStaticS8 = stored_scale(ActivationType::kS8);
// ModelOpt rounds the scales of MX groups up.
const ActivationFormat kMxE4M3 = per_group(ActivationType::kE4M3, 32, ScaleRule::kE8M0Ceil);
const ActivationFormat kMxE2M1 = per_group(ActivationType::kE2M1, 32, ScaleRule::kE8M0Ceil);
const ActivationFormat kNvE2M1 = per_group(ActivationType::kE2M1, 16, ScaleRule::kE4M3);

struct Algorithm {
  std::string_view name;
  Kind kind;
  ActivationFormat activation;
};

// The weight-only "PB_WO" keeps floats, as ModelOpt's own run of it does.
const Algorithm kAlgorithms[] = {
    {"FP8", Kind::kFp8, kStaticE4M3},
    {"FP8_PER_CHANNEL_PER_TOKEN", Kind::kFp8, kTokenE4M3},
    {"FP8_PB_WO", Kind::kFp8, kFloatInput},
    {"FP8_PB_REAL", Kind::kFp8, kFloatInput},
    {"W4A16_AWQ", Kind::kInt4, kFloatInput},
    {"INT4_AWQ", Kind::kInt4, kFloatInput},
    {"W4A8_AWQ", Kind::kInt4, kStaticE4M3},
    {"NVFP4", Kind::kNvfp4, kNvE2M1},
    {"NVFP4_AWQ", Kind::kNvfp4, kNvE2M1},
    {"W4A16_NVFP4", Kind::kNvfp4, kFloatInput},
    {"W4A8_NVFP4_FP8", Kind::kNvfp4, kStaticE4M3},
    {"MXFP8", Kind::kMxfp8, kMxE4M3},
    {"MXFP4", Kind::kMxfp4, kMxE2M1},
    {"W4A8_MXFP4_FP8", Kind::kMxfp4, kTokenE4M3},
    {"W8A16", Kind::kInt8, kFloatInput},
    {"W8A8_SQ_PER_CHANNEL", Kind::kInt8, kStaticS8},
};
constexpr std::string_view kMixed = "MIXED_PRECISION";

std::string upper(std::string text) {
  for (char& c : text) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  return text;
}

const Algorithm* find_algorithm(std::string_view name) {
  for (const Algorithm& a : kAlgorithms) {
    if (a.name == name) return &a;
  }
  return nullptr;
}

// quant_algo and group_size of a dictionary or of one entry of quantized_layers.
Result<ModelOptAlgo> read_algo(const base::Json& dictionary, bool top) {
  ModelOptAlgo out;
  const base::Json* algo = dictionary.find_set("quant_algo");
  if (algo != nullptr) {
    NIBBLE_ASSIGN(std::string name, dictionary.get_string("quant_algo"));
    out.name = upper(std::move(name));
  }
  if (out.name == "NVFP4_SVD") {
    return fail(ErrorCode::kUnsupported,
                fmt::format("{}: quant_algo is NVFP4_SVD, whose low-rank part (svdquant_lora_a, "
                            "svdquant_lora_b) is not computed here",
                            dictionary.where()));
  }
  if (out.name == "NO_QUANT") out.name.clear();
  if (!out.name.empty() && !(top && out.name == kMixed) && find_algorithm(out.name) == nullptr) {
    std::vector<std::string_view> known;
    for (const Algorithm& a : kAlgorithms) known.push_back(a.name);
    if (top) known.push_back(kMixed);
    return fail(ErrorCode::kUnsupported,
                fmt::format("{}: quant_algo is \"{}\"; known are: {}", dictionary.where(), out.name,
                            fmt::join(known, ", ")));
  }
  NIBBLE_ASSIGN(out.group, int_key_or(dictionary, "group_size", 0));
  if (out.group < 0) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: group_size: expected a positive number, found {}",
                            dictionary.where(), out.group));
  }
  return out;
}

// "FP8" or {"type": "float", "num_bits": 8}, as one word: to compare two files.
Result<std::string> kv_cache_word(const base::Json& dictionary) {
  const base::Json* scheme = dictionary.find_set("kv_cache_scheme");
  if (scheme == nullptr || !scheme->is_object()) {
    const char* key = scheme == nullptr ? "kv_cache_quant_algo" : "kv_cache_scheme";
    NIBBLE_ASSIGN(std::string name, dictionary.get_string_or(key, ""));
    return upper(std::move(name));
  }
  NIBBLE_ASSIGN(const std::string type, scheme->get_string_or("type", "float"));
  NIBBLE_ASSIGN(const int64_t bits, int_key_or(*scheme, "num_bits", 8));
  if (type == "float" && bits == 8) return std::string("FP8");
  return fmt::format("{}{}", upper(type), bits);
}

// config_groups repeats for other readers what quant_algo says.
constexpr std::string_view kKnown =
    "quant_method quant_algo group_size kv_cache_quant_algo kv_cache_scheme exclude_modules ignore "
    "quantized_layers config_groups producer has_zero_point pre_quant_scale";
constexpr std::string_view kHarmless =
    "smoothquant_val clamp_val use_meta_recipe targets packed_modules_mapping version "
    "quantization_status format";

std::string_view first_missing(const std::vector<std::string>& of,
                               const std::vector<std::string>& in) {
  for (const std::string& name : of) {
    if (std::find(in.begin(), in.end(), name) == in.end()) return name;
  }
  return {};
}

std::string shown(const ModelOptAlgo& algo) {
  const std::string name = algo.name.empty() ? "none" : algo.name;
  return algo.group == 0 ? name : fmt::format("{} with group_size {}", name, algo.group);
}

bool differ(const ModelOptAlgo& a, const ModelOptAlgo& b) {
  return a.name != b.name || (a.group != 0 && b.group != 0 && a.group != b.group);
}

std::string describe(const TensorInfo& info) {
  return fmt::format("{} {} {}", info.name, tensor::name(info.dtype),
                     tensor::to_string(info.shape));
}

// One layer's tensors, and what they are.
class StoredLayer {
 public:
  StoredLayer(const LinearLayer& layer, const TensorInfo& weight, const ScaleBeside& scale)
      : layer_(layer),
        weight_(&weight),
        scale_(scale.info),
        inverse_(scale.suffix == "weight_scale_inv") {}

  bool inverse() const { return inverse_; }

  Result<Kind> kind() const {
    const tensor::Shape bytes = {layer_.n, layer_.k}, along_k = {layer_.n, layer_.k / 2},
                        along_n = {layer_.n / 2, layer_.k};
    const DType weight = weight_->dtype, scale = scale_->dtype;
    const bool e8m0 = scale == DType::kU8 || scale == DType::kE8M0;
    const tensor::Shape& shape = weight_->shape;
    if (is_fp8(weight) && shape == bytes) return e8m0 ? Kind::kMxfp8 : Kind::kFp8;
    if (weight == DType::kS8 && shape == bytes && !inverse_) return Kind::kInt8;
    if (weight == DType::kS8 && shape == along_k && inverse_) return Kind::kW4afp8;
    if (weight == DType::kU8 && shape == along_k && scale == DType::kE4M3) return Kind::kNvfp4;
    if (weight == DType::kU8 && shape == along_k && e8m0) return Kind::kMxfp4;
    if (weight == DType::kU8 && shape == along_n && tensor::is_plain_float(scale)) {
      return Kind::kInt4;
    }
    return fail(ErrorCode::kCorrupt,
                fmt::format("{} with {} is nothing that ModelOpt stores for {} outputs and {} "
                            "inputs",
                            describe(*weight_), describe(*scale_), layer_.n, layer_.k));
  }

  std::string text() const {
    return fmt::format("{} with {}", describe(*weight_), describe(*scale_));
  }

  ScaledCodes codes(Kind kind) const {
    ScaledCodes out{.code_types = {weight_->dtype},
                    .scale = inverse_ ? "weight_scale_inv" : "weight_scale"};
    switch (kind) {
      case Kind::kFp8:
      case Kind::kMxfp8:
        out.element = element_of_fp8(weight_->dtype);
        break;
      case Kind::kInt8:
        out.element = Element::kS8;
        break;
      case Kind::kInt4:
        out.element = Element::kS4;
        out.codes = Codes::kNibblesN;
        out.unused = {{"weight_scale_2", "it belongs to the step from int4 to e4m3 in hardware"}};
        break;
      case Kind::kW4afp8:
        out.element = Element::kS4;
        out.codes = Codes::kNibblesK;
        break;
      case Kind::kNvfp4:
        out.scale2 = "weight_scale_2";
        [[fallthrough]];
      case Kind::kMxfp4:
        out.element = Element::kE2M1;
        out.codes = Codes::kNibblesK;
        break;
    }
    return out;
  }

  // The area of a scale: from its shape, checked against the group size that was said.
  Result<Area> area(Kind kind, const ModelOptAlgo& algo, std::string_view where) const {
    switch (kind) {
      case Kind::kInt8:
        return area_of(layer_, *scale_, {}, "a size of blocks");
      case Kind::kFp8:
        return fp8_area();
      case Kind::kMxfp8:
      case Kind::kMxfp4:
        return group_area(32, "the format has groups of 32");
      case Kind::kW4afp8:
        return group_area(128, "the format has groups of 128");
      case Kind::kInt4:
      case Kind::kNvfp4:
        break;
    }
    if (algo.group != 0) {
      return group_area(algo.group, fmt::format("{} says group_size {}", where, algo.group));
    }
    // Not said (the flat spelling leaves it out): groups of equal size.
    const tensor::Shape& shape = scale_->shape;
    const int64_t groups = shape.size() == 2 && shape[1] > 0 ? shape[1] : 1;
    const int64_t group = ceil_div(layer_.k, groups);
    return group_area(group, fmt::format("no group_size is given, and groups of equal size "
                                         "would have {}",
                                         group));
  }

 private:
  Result<Area> fp8_area() const {
    const tensor::Shape shape = squeezed(scale_->shape);
    const tensor::Shape blocks = {ceil_div(layer_.n, 128), ceil_div(layer_.k, 128)};
    if (scale_->shape.size() >= 2 && !shape.empty() && shape == squeezed(blocks)) {
      return Area{128, 128};
    }
    return area_of(layer_, *scale_, shape.size() < 2 ? Area{} : Area{128, 128}, "the format");
  }

  Result<Area> group_area(int64_t group, std::string_view claim) const {
    const tensor::Shape expected = {layer_.n, ceil_div(layer_.k, group)};
    if (squeezed(scale_->shape) != squeezed(expected)) {
      return fail(ErrorCode::kCorrupt, fmt::format("{} is {}, but {}, which makes {}", scale_->name,
                                                   tensor::to_string(scale_->shape), claim,
                                                   tensor::to_string(expected)));
    }
    return group >= layer_.k ? kPerOutput : Area{1, group};
  }

  const LinearLayer& layer_;
  const TensorInfo* weight_;
  const TensorInfo* scale_;
  bool inverse_;
};

// An algorithm that may have written a layer, and what it does to inputs.
struct Candidate {
  std::string_view name;
  ActivationFormat activation;
};

// The algorithms that store a layer so, the likeliest first; never none. One with static scales
// stores an input scale; groups of 32 NVFP4 codes are those of W4A8_NVFP4_FP8; DeepSeek's blocks,
// which W4AFP8 folders have too, were written for groups of 128 inputs.
std::vector<Candidate> candidates(Kind kind, const StoredLayer& stored, const Area& area,
                                  bool input_scale) {
  if (kind == Kind::kW4afp8) return {{"W4AFP8", kStaticE4M3}};
  std::vector<Candidate> out;
  if (kind == Kind::kFp8 && stored.inverse())
    out.push_back({"FP8 in DeepSeek's blocks", kGroupE4M3});
  for (const bool scaled : {true, false}) {
    if (scaled && !input_scale) continue;
    for (const Algorithm& a : kAlgorithms) {
      const ActivationFormat& x = a.activation;
      if (a.kind != kind || scaled != (x.is_static || x == kNvE2M1)) continue;
      if (kind == Kind::kNvfp4 && scaled && (area.k == 16) != (x == kNvE2M1)) continue;
      if (kind == Kind::kFp8 && !scaled && (area.n == 1) != (x == kTokenE4M3)) continue;
      out.push_back({a.name, x});
    }
    if (!out.empty()) return out;
  }
  return out;
}

// What is done to the inputs of a layer for which no algorithm is named.
Result<ActivationFormat> unnamed_activation(const std::vector<Candidate>& candidates,
                                            const StoredLayer& stored, std::string_view where,
                                            ModelOptInputs inputs) {
  const Candidate& first = candidates.front();
  for (const Candidate& other : candidates) {
    if (inputs != ModelOptInputs::kShown || other.activation == first.activation) continue;
    return fail(ErrorCode::kUnsupported,
                fmt::format("{} does not name this layer, but it is stored quantized ({}), as {} "
                            "and {} do it, whose inputs differ; name its algorithm there",
                            where, stored.text(), first.name, other.name));
  }
  return first.activation;
}

}  // namespace

Result<ModelOptSettings> read_modelopt(const base::Json& dictionary,
                                       std::vector<std::string>& warnings) {
  const base::Json* nested = dictionary.find_set("quantization");
  if (nested != nullptr && !nested->is_object()) {
    return fail(ErrorCode::kCorrupt, fmt::format("{}: quantization: expected an object, found {}",
                                                 dictionary.where(), nested->describe()));
  }
  if (nested != nullptr) check_keys(dictionary, "producer quant_method quantization", "", warnings);
  const base::Json& inner = nested != nullptr ? *nested : dictionary;
  check_keys(inner, kKnown, kHarmless, warnings);
  ModelOptSettings out;
  out.where = inner.where();
  NIBBLE_ASSIGN(out.algo, read_algo(inner, true));
  NIBBLE_ASSIGN(out.kv_cache, kv_cache_word(inner));
  for (const char* key : {"exclude_modules", "ignore"}) {
    NIBBLE_ASSIGN(const std::vector<std::string> names, names_key(inner, key));
    out.exclude.insert(out.exclude.end(), names.begin(), names.end());
  }
  NIBBLE_ASSIGN(const base::JsonObject layers, objects_key(inner, "quantized_layers"));
  for (const auto& [name, entry] : layers) {
    NIBBLE_ASSIGN(ModelOptAlgo algo, read_algo(entry, false));
    out.layers.emplace_back(name, std::move(algo));
  }
  return out;
}

std::string difference(const ModelOptSettings& a, const ModelOptSettings& b) {
  const auto say = [&](std::string_view what, std::string_view in_a, std::string_view in_b) {
    return fmt::format("{}: {} is {}, but {} says {}; keep the one that is true", a.where, what,
                       in_a, b.where, in_b);
  };
  if (!a.algo.name.empty() && !b.algo.name.empty() && differ(a.algo, b.algo)) {
    return say("quant_algo", shown(a.algo), shown(b.algo));
  }
  if (!a.kv_cache.empty() && !b.kv_cache.empty() && a.kv_cache != b.kv_cache) {
    return say("the KV cache", a.kv_cache, b.kv_cache);
  }
  if (!a.exclude.empty() && !b.exclude.empty()) {
    if (const auto name = first_missing(a.exclude, b.exclude); !name.empty()) {
      return say(fmt::format("\"{}\"", name), "excluded", "nothing of it");
    }
    if (const auto name = first_missing(b.exclude, a.exclude); !name.empty()) {
      return say(fmt::format("\"{}\"", name), "not excluded", "it is");
    }
  }
  if (a.layers.empty() || b.layers.empty()) return {};
  for (const auto* side : {&a, &b}) {
    const ModelOptSettings& other = side == &a ? b : a;
    for (const auto& [name, algo] : side->layers) {
      const auto it = std::find_if(other.layers.begin(), other.layers.end(),
                                   [&n = name](const auto& entry) { return entry.first == n; });
      const ModelOptAlgo theirs = it == other.layers.end() ? ModelOptAlgo{} : it->second;
      if (!differ(algo, theirs)) continue;
      return say(fmt::format("layer {}", name), shown(side == &a ? algo : theirs),
                 shown(side == &a ? theirs : algo));
    }
  }
  return {};
}

Result<std::unique_ptr<LinearMethod>> modelopt_method(
    std::string_view scheme, const LinearLayer& layer, const TensorLookup& tensors,
    const ModelOptAlgo& algo, std::string_view where, ModelOptInputs inputs) {
  const TensorInfo* weight = find_tensor(tensors, layer.module, "weight");
  if (weight == nullptr || tensor::is_plain_float(weight->dtype)) {
    return unquantized_method(layer, tensors);
  }
  NIBBLE_ASSIGN(const ScaleBeside scale, scale_beside(layer, tensors, *weight));
  const StoredLayer stored(layer, *weight, scale);
  NIBBLE_ASSIGN(const Kind kind, stored.kind());
  const Algorithm* algorithm = find_algorithm(algo.name);
  if (algorithm != nullptr && algorithm->kind != kind) {
    return fail(ErrorCode::kCorrupt, fmt::format("{} says {}, but the layer is stored as {}: {}",
                                                 where, algo.name, name_of(kind), stored.text()));
  }
  ScaledCodes codes = stored.codes(kind);
  codes.scheme = scheme;
  NIBBLE_ASSIGN(codes.area, stored.area(kind, algo, where));
  const bool input_scale = find_tensor(tensors, layer.module, "input_scale") != nullptr;
  if (algorithm != nullptr) {
    codes.activation = algorithm->activation;
  } else {
    NIBBLE_ASSIGN(codes.activation,
                  unnamed_activation(candidates(kind, stored, codes.area, input_scale), stored,
                                     where, inputs));
  }
  if (inputs == ModelOptInputs::kLeftAlone) codes.activation = kFloatInput;
  codes.input_scale_unused = codes.activation == kFloatInput ? "the activations are not quantized"
                                                             : "the activations are dynamic";
  if (find_tensor(tensors, layer.module, "pre_quant_scale") != nullptr) {
    codes.input_factor = "pre_quant_scale";
  }
  return scaled_codes_method(layer, tensors, std::move(codes));
}

}  // namespace nibble::quant
