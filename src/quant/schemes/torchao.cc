// TorchAO (`quant_method: torchao`): every parameter is stored as the class of tensor it was in
// Python; torchao_tensor.h has how names and descriptions are spelled. G is the group of inputs.
//
//   class                      inner tensors
//   Float8Tensor               qdata (N, K) e4m3 | e5m2, scale f32 of rows, groups, blocks or all
//   Int8Tensor                 qdata (N, K) s8, scale and zero_point likewise
//   IntxUnpackedToInt8Tensor   the same, with codes of 1 to 8 bits
//   Int4Tensor                 qdata (N, K/2) nibbles, scale and zero_point (K/G, N), floats both
//   Int4TilePackedTo4dTensor   qdata (N/8, K/128, 32, 4), scale_and_zero (K/G, N, 2), floats
//   Int4PlainInt32Tensor       qdata (N, K/8) words, scale and zero_point (K/G, N)
//   MXTensor                   qdata (N, K) | (N, K/2), scale e8m0, swizzled (scaled_codes.h)
//   NVFP4Tensor                qdata (N, K/2), scale e4m3, swizzled, and per_tensor_scale
//
// torchao_ints.h draws the integers. Int8Tensor and the int4 classes may have act_pre_scale (K), by
// which the inputs are multiplied first. Files of torch.save from torchao 0.12 and before hold
// AffineQuantizedTensor (tensor_impl: int_data, scale, zero_point; packed_weight, scale_and_zero;
// or float8_data, scale), which LinearActivationQuantizedTensor may wrap.
//
// What a layer is, its description says; of config.json only the lists and the mapping are read:
// where every weight of it is symmetric, zero points are stored and are all 0.
#include <fmt/format.h>

#include <algorithm>

#include "quant/keys.h"
#include "quant/scaled_codes.h"
#include "quant/scheme.h"
#include "quant/schemes/torchao_activations.h"
#include "quant/schemes/torchao_ints.h"
#include "quant/schemes/torchao_tensor.h"
#include "quant/stored.h"

namespace nibble::quant {
namespace {

using base::Json;
using tensor::ActivationFormat;
using tensor::DType;
using tensor::Element;
using tensor::TensorInfo;
using tensor::ZeroKind;
using torchao::Instance;
using torchao::Ints;
using torchao::Order;

using Method = std::unique_ptr<LinearMethod>;

// Why the tensors of a class are not read.
const char* why_not(std::string_view type) {
  constexpr std::pair<std::string_view, const char*> kKernelPrivate[] = {
      {"Int4PreshuffledTensor", "they are in the order of one GPU kernel"},
      {"Int4MarlinSparseTensor", "they are in the order of one GPU kernel"},
      {"Int4OpaqueTensor", "their order depends on the CPU that wrote them"},
      {"IntxOpaqueTensor", "their order depends on the CPU that wrote them"},
      {"Float8OpaqueTensor", "their order depends on the CPU that wrote them"},
      {"UIntxBitPackedTensor", "they are in the order of one GPU kernel"},
      {"Sparse2x4CUTLASSFloat8Tensor", "they are in the order of one GPU kernel"},
      {"Float8Sparse2x4_1DData1DMetadataTensor", "they are in the order of one GPU kernel"},
      {"Float8Sparse2x4_2DData2DMetadataTensor", "they are in the order of one GPU kernel"},
  };
  for (const auto& [name, why] : kKernelPrivate) {
    if (name == type) return why;
  }
  return "this class is not read";
}

Failure unread(const LinearLayer& layer, const Instance& of, std::string_view why) {
  return fail(ErrorCode::kUnsupported,
              fmt::format("{}.weight is TorchAO's {}: {}", layer.module, of.type, why));
}

// An attribute that is a list of whole numbers; empty when it is none.
std::vector<int64_t> numbers(const Instance& of, std::string_view attribute) {
  std::vector<int64_t> out;
  const Json* list = of.find(attribute);
  if (list == nullptr || !list->is_array()) return out;
  for (const Json& v : list->as_array()) out.push_back(v.is_int() ? v.as_int() : -1);
  return out;
}

// The area of a scale, from block_size: (outputs, inputs).
Result<Area> area_of_blocks(const LinearLayer& layer, const Instance& of) {
  const std::vector<int64_t> block = numbers(of, "block_size");
  const bool fits = block.size() == 2 && block[0] >= 1 && block[0] <= layer.n && block[1] >= 1 &&
                    block[1] <= layer.k && layer.k % block[1] == 0;
  if (!fits) {
    const Json* found = of.find("block_size");
    return unread(layer, of,
                  fmt::format("block_size is {}, and the weight ({}, {})",
                              found == nullptr ? "missing" : found->dump(), layer.n, layer.k));
  }
  return Area{block[0] == layer.n && block[0] != 1 ? 0 : block[0],
              block[1] == layer.k ? 0 : block[1]};
}

// block_size of classes that have one number of it, for groups of inputs.
Result<int64_t> group_of(const LinearLayer& layer, const Instance& of) {
  const Json* block = of.find("block_size");
  if (block != nullptr && block->is_array()) {
    NIBBLE_ASSIGN(const Area area, area_of_blocks(layer, of));
    if (area.n == 1) return area.k == 0 ? layer.k : area.k;
  }
  if (block != nullptr && block->is_int() && block->as_int() >= 1) return block->as_int();
  return unread(layer, of,
                fmt::format("expected a block_size of one output, found {}",
                            block == nullptr ? "none" : block->dump()));
}

// "int4" -> 4, "uint3" -> 3; 0: another type.
int64_t bits_of(std::string_view dtype) {
  if (dtype.starts_with("u")) dtype.remove_prefix(1);
  if (dtype.size() != 4 || !dtype.starts_with("int") || dtype[3] < '1' || dtype[3] > '8') return 0;
  return dtype[3] - '0';
}

class TorchaoConfig : public QuantizationConfig {
 public:
  std::string_view scheme() const override { return "torchao"; }
  std::vector<const NameMatcher*> matchers() const override { return {&not_converted_}; }

  Result<Method> linear_method(const LinearLayer& layer,
                               const TensorLookup& tensors) const override {
    NIBBLE_ASSIGN(const std::optional<Instance> weight,
                  torchao::weight_of(descriptions_, tensors, layer.module));
    if (!weight) return unquantized_method(layer, tensors);
    return method_of_instance(layer, tensors, *weight, {});
  }

  Result<void> read(const CheckpointFacts& facts) {
    if (facts.metadata != nullptr) {
      NIBBLE_ASSIGN(descriptions_, torchao::read_descriptions(*facts.metadata));
    }
    if (facts.quantization == nullptr) return {};
    const Json& dictionary = *facts.quantization;
    check_keys(dictionary, "quant_method quant_type modules_to_not_convert",
               "quant_type_kwargs include_input_output_embeddings include_embedding "
               "untie_embedding_weights",
               warnings);
    NIBBLE_ASSIGN(not_converted_,
                  names_list(dictionary, {"modules_to_not_convert"}, Says::kLeftAlone));
    const Json* type = dictionary.find_set("quant_type");
    if (type == nullptr) return {};
    find_claims(*type);
    if (wide_tiles_) {
      warnings.push_back(fmt::format(
          "{}: int4_tile_packed_ntile is 16, which AMD's cards need; tiles that one of them wrote "
          "are in another order, which nothing in the files tells from the one that is read",
          facts.quantization_where));
    }
    return {};
  }

 private:
  // Whether the config's weights are symmetric, asymmetric, or both: every `mapping_type` of it;
  // and whether any has tiles of 16 outputs.
  void find_claims(const Json& value) {
    if (value.is_array()) {
      for (const Json& v : value.as_array()) find_claims(v);
    }
    if (!value.is_object()) return;
    for (const auto& [key, v] : value.as_object()) {
      find_claims(v);
      wide_tiles_ |= key == "int4_tile_packed_ntile" && v.is_int() && v.as_int() == 16;
      if (key != "mapping_type" && key != "weight_mapping_type") continue;
      const Json* member = v.is_string() ? &v : v.find_set("_data");
      if (member == nullptr || !member->is_string()) continue;
      (member->as_string().starts_with("SYM") ? symmetric_ : asymmetric_) = true;
    }
  }

  Result<Method> method_of_instance(const LinearLayer& layer, const TensorLookup& tensors,
                                    const Instance& of, const ActivationFormat& inputs) const {
    if (of.type == "Float8Tensor") return float8(layer, tensors, of);
    if (of.type == "Int8Tensor") return int8(layer, tensors, of);
    if (of.type == "IntxUnpackedToInt8Tensor" || of.type == "IntxUnpackedTensor") {
      return intx(layer, tensors, of);
    }
    if (of.type == "Int4Tensor") return int4(layer, tensors, of);
    if (of.type == "Int4TilePackedTo4dTensor") {
      NIBBLE_ASSIGN(const int64_t group, group_of(layer, of));
      return tiles(layer, tensors, of, "qdata", group, {});
    }
    if (of.type == "Int4PlainInt32Tensor") return int4_words(layer, tensors, of);
    if (of.type == "MXTensor") return mx(layer, tensors, of);
    if (of.type == "NVFP4Tensor") return nvfp4(layer, tensors, of);
    if (of.type == "AffineQuantizedTensor") return affine(layer, tensors, of, inputs);
    if (of.type == "LinearActivationQuantizedTensor") {
      NIBBLE_ASSIGN(const std::optional<Instance> inner, of.wrapped("original_weight_tensor"));
      if (!inner) return unread(layer, of, "it wraps no tensor of TorchAO's");
      NIBBLE_ASSIGN(const ActivationFormat format, torchao::activation_of_function(of));
      return method_of_instance(layer, tensors, *inner, format);
    }
    return unread(layer, of, why_not(of.type));
  }

  Result<Method> float8(const LinearLayer& layer, const TensorLookup& tensors,
                        const Instance& of) const {
    ScaledCodes codes{.scheme = scheme(), .code_types = kFp8Types};
    codes.weight = of.suffix("qdata");
    codes.scale = of.suffix("scale");
    NIBBLE_ASSIGN(codes.area, area_of_blocks(layer, of));
    NIBBLE_ASSIGN(codes.activation, torchao::float8_activation(layer, of));
    return float8_codes(layer, tensors, std::move(codes));
  }

  static Result<Method> float8_codes(const LinearLayer& layer, const TensorLookup& tensors,
                                     ScaledCodes codes) {
    const TensorInfo* stored = find_tensor(tensors, layer.module, codes.weight);
    if (stored != nullptr && is_fp8(stored->dtype)) codes.element = element_of_fp8(stored->dtype);
    return scaled_codes_method(layer, tensors, std::move(codes));
  }

  Result<Method> int8(const LinearLayer& layer, const TensorLookup& tensors,
                      const Instance& of) const {
    Ints ints;
    NIBBLE_ASSIGN(ints.area, area_of_blocks(layer, of));
    add_scales(layer, tensors, of, ints);
    ints.zeros_are_0 = "weights of an Int8Tensor are symmetric";
    ints.input_scale = of.suffix("act_quant_scale");
    ints.input_zero = of.suffix("act_quant_zero_point");
    const bool is_static = of.has("act_quant_scale", tensors, layer.module);
    NIBBLE_ASSIGN(ints.activation, torchao::int8_activation(layer, of, is_static));
    if (is_static && !ints.activation.asymmetric) {
      ints.unused.emplace_back(ints.input_zero, "of inputs that are symmetric");
    }
    return torchao::ints_method(layer, tensors, std::move(ints));
  }

  Result<Method> intx(const LinearLayer& layer, const TensorLookup& tensors,
                      const Instance& of) const {
    Ints ints;
    ints.bits = bits_of(of.dtype("target_dtype"));
    if (ints.bits == 0) {
      return unread(layer, of, fmt::format("its target_dtype is {:?}", of.dtype("target_dtype")));
    }
    NIBBLE_ASSIGN(ints.area, area_of_blocks(layer, of));
    add_scales(layer, tensors, of, ints);
    set_zeros(ints);
    NIBBLE_ASSIGN(ints.activation, torchao::intx_activation(layer, of));
    return torchao::ints_method(layer, tensors, std::move(ints));
  }

  static void add_scales(const LinearLayer& layer, const TensorLookup& tensors, const Instance& of,
                         Ints& ints) {
    ints.codes = of.suffix("qdata");
    ints.scale = of.suffix("scale");
    if (of.has("zero_point", tensors, layer.module)) ints.zero = of.suffix("zero_point");
    add_factor(layer, tensors, of, ints);
  }

  static void add_factor(const LinearLayer& layer, const TensorLookup& tensors, const Instance& of,
                         Ints& ints) {
    if (of.has("act_pre_scale", tensors, layer.module)) {
      ints.input_factor = of.suffix("act_pre_scale");
    }
  }

  // Stored zero points are 0 where the config says symmetric of every weight.
  void set_zeros(Ints& ints) const {
    if (ints.zero.empty()) return;
    if (symmetric_ && !asymmetric_) {
      ints.zeros_are_0 = "config.json calls the weights symmetric (mapping_type)";
    } else {
      ints.zero_kind = ZeroKind::kInteger;
    }
  }

  Result<Method> int4(const LinearLayer& layer, const TensorLookup& tensors,
                      const Instance& of) const {
    if (layer.k % 2 != 0) return unread(layer, of, "an odd number of inputs has no nibbles");
    Ints ints{.order = Order::kNibbles, .bits = 4};
    NIBBLE_ASSIGN(const int64_t group, group_of(layer, of));
    ints.area = {1, group == layer.k ? 0 : group};
    ints.transposed = true;
    add_scales(layer, tensors, of, ints);
    ints.zero = of.suffix("zero_point");
    ints.zero_kind = ZeroKind::kOffset;
    NIBBLE_ASSIGN(ints.activation, torchao::int4_activation(layer, of));
    return torchao::ints_method(layer, tensors, std::move(ints));
  }

  Result<Method> tiles(const LinearLayer& layer, const TensorLookup& tensors, const Instance& of,
                       std::string_view codes, int64_t group,
                       const ActivationFormat& activation) const {
    if (group != 32 && group != 64 && group != 128 && group != 256) {
      return unread(layer, of, fmt::format("tiles have groups of 32 to 256, not {}", group));
    }
    const TensorInfo* stored = find_tensor(tensors, layer.module, of.suffix(codes));
    if (stored != nullptr && (stored->shape.size() != 4 || stored->shape[3] != 4)) {
      return unread(layer, of,
                    fmt::format("{} {}: only inner_k_tiles of 8 are read, (N/8, K/128, 32, 4)",
                                stored->name, tensor::to_string(stored->shape)));
    }
    Ints ints{.order = Order::kTiles, .code_types = {DType::kS32}, .bits = 4};
    // int4_tile_packed_ntile 16 fills up further.
    const int64_t tiles = (layer.n + 7) / 8;
    if (stored != nullptr && tiles % 2 != 0 && stored->shape[0] == tiles + 1) ints.tile_n = 16;
    ints.area = {1, group};
    ints.codes = of.suffix(codes);
    ints.scale = of.suffix("scale_and_zero");
    ints.zero_kind = ZeroKind::kOffset;
    ints.activation = activation;
    add_factor(layer, tensors, of, ints);
    return torchao::ints_method(layer, tensors, std::move(ints));
  }

  Result<Method> int4_words(const LinearLayer& layer, const TensorLookup& tensors,
                            const Instance& of) const {
    Ints ints{.order = Order::kWords, .code_types = {DType::kS32}, .bits = 4, .is_signed = false};
    NIBBLE_ASSIGN(const int64_t group, group_of(layer, of));
    ints.area = {1, group == layer.k ? 0 : group};
    ints.transposed = true;
    add_scales(layer, tensors, of, ints);
    const TensorInfo* zero = find_tensor(tensors, layer.module, ints.zero);
    if (layer.k % 8 != 0 || zero == nullptr || zero->dtype != DType::kS8) {
      return unread(layer, of, "only those for Intel's GPUs are read, which have s8 zero points");
    }
    ints.zero_kind = ZeroKind::kInteger;
    return torchao::ints_method(layer, tensors, std::move(ints));
  }

  // Codes of 8 or 4 bits with a scale of a byte for each group, in whatever order.
  static Result<ScaledCodes> grouped(const LinearLayer& layer, const TensorLookup& tensors,
                                     const Instance& of, int64_t group,
                                     std::vector<DType> scale_types) {
    const Json* block = of.find("block_size");
    if (block == nullptr || !block->is_int() || block->as_int() != group) {
      return unread(layer, of, fmt::format("only blocks of {} inputs are read", group));
    }
    for (const char* old : {"_scale_e8m0", "_scale_e4m3"}) {
      if (find_tensor(tensors, layer.module, of.suffix(old)) == nullptr) continue;
      return unread(layer, of, "torchao 0.13 and 0.14 wrote it, in another order of nibbles");
    }
    ScaledCodes codes{.scheme = "torchao"};
    codes.weight = of.suffix("qdata");
    codes.scale = of.suffix("scale");
    codes.scale_types = std::move(scale_types);
    codes.area = {1, group};
    const Json* swizzled = of.find("is_swizzled_scales");
    if (swizzled != nullptr && !swizzled->is_bool()) {
      return fail(ErrorCode::kCorrupt,
                  fmt::format("the description of {}.weight has is_swizzled_scales {}; expected "
                              "true or false",
                              layer.module, swizzled->dump()));
    }
    codes.swizzled = swizzled != nullptr && swizzled->as_bool();
    return codes;
  }

  Result<Method> mx(const LinearLayer& layer, const TensorLookup& tensors,
                    const Instance& of) const {
    NIBBLE_ASSIGN(ScaledCodes codes, grouped(layer, tensors, of, 32, {DType::kE8M0, DType::kU8}));
    NIBBLE_ASSIGN(codes.activation, torchao::mx_activation(layer, of));
    const std::string type = of.dtype("elem_dtype");
    if (type == "float4_e2m1fn_x2" && layer.k % 2 == 0) {
      codes.element = Element::kE2M1;
      codes.codes = Codes::kNibblesK;
      codes.code_types = {DType::kU8};
      return scaled_codes_method(layer, tensors, std::move(codes));
    }
    if (type != "float8_e4m3fn" && type != "float8_e5m2") {
      return unread(layer, of, "only e4m3, e5m2 and e2m1 elements are read");
    }
    codes.code_types = {type == "float8_e5m2" ? DType::kE5M2 : DType::kE4M3};
    return float8_codes(layer, tensors, std::move(codes));
  }

  Result<Method> nvfp4(const LinearLayer& layer, const TensorLookup& tensors,
                       const Instance& of) const {
    NIBBLE_ASSIGN(ScaledCodes codes, grouped(layer, tensors, of, 16, {DType::kE4M3}));
    if (layer.k % 16 != 0) return unread(layer, of, "its blocks are of 16 inputs");
    codes.element = Element::kE2M1;
    codes.codes = Codes::kNibblesK;
    codes.code_types = {DType::kU8};
    if (of.has("per_tensor_scale", tensors, layer.module)) {
      codes.scale2 = of.suffix("per_tensor_scale");
    }
    const bool stored = of.has("act_per_tensor_scale", tensors, layer.module);
    codes.input_scale = stored ? of.suffix("act_per_tensor_scale") : "";
    NIBBLE_ASSIGN(codes.activation, torchao::nvfp4_activation(layer, of));
    return scaled_codes_method(layer, tensors, std::move(codes));
  }

  Result<Method> affine(const LinearLayer& layer, const TensorLookup& tensors, const Instance& of,
                        const ActivationFormat& inputs) const {
    NIBBLE_ASSIGN(std::optional<Instance> impl, of.wrapped("tensor_impl"));
    if (!impl) {  // 0.6 and before
      NIBBLE_ASSIGN(impl, of.wrapped("layout_tensor"));
    }
    if (!impl) return unread(layer, of, "it has no tensor_impl");
    NIBBLE_ASSIGN(const Area area, area_of_blocks(layer, of));
    if (impl->type.starts_with("Float8AQT")) {
      ScaledCodes codes{.scheme = scheme(), .code_types = kFp8Types};
      codes.weight = impl->suffix("float8_data");
      codes.scale = impl->suffix("scale");
      codes.area = area;
      codes.activation = inputs;
      return float8_codes(layer, tensors, std::move(codes));
    }
    if (impl->type.starts_with("TensorCoreTiledAQT")) {
      return tiles(layer, tensors, *impl, "packed_weight", area.k == 0 ? layer.k : area.k, inputs);
    }
    if (!impl->type.starts_with("PlainAQT") && impl->type != "QDQTensorImpl") {
      return unread(layer, of, fmt::format("its tensor_impl is {}, which is not read", impl->type));
    }
    Ints ints;
    ints.codes = impl->suffix("int_data");
    ints.scale = impl->suffix("scale");
    ints.area = area;
    ints.activation = inputs;
    const TensorInfo* codes = find_tensor(tensors, layer.module, ints.codes);
    ints.is_signed = codes == nullptr || codes->dtype != DType::kU8;
    ints.code_types = {DType::kS8, DType::kU8};
    if (impl->has("zero_point", tensors, layer.module)) {
      ints.zero = impl->suffix("zero_point");
      ints.zero_kind = ZeroKind::kInteger;
    }
    NIBBLE_TRY(read_range(layer, of, ints));
    return torchao::ints_method(layer, tensors, std::move(ints));
  }

  // quant_min and quant_max; absent, all of the byte. How zero points count.
  static Result<void> read_range(const LinearLayer& layer, const Instance& of, Ints& ints) {
    const Json* least = of.find("quant_min");
    const Json* most = of.find("quant_max");
    if (least != nullptr && most != nullptr && least->is_int() && most->is_int()) {
      const auto of_a_byte = [](int64_t v) { return std::clamp<int64_t>(v, -256, 256); };
      const int64_t range = of_a_byte(most->as_int()) - of_a_byte(least->as_int());
      for (ints.bits = 1; ints.bits < 8 && range >= int64_t{1} << ints.bits;) ++ints.bits;
      if (ints.bits < 8 && least->as_int() >= 0) ints.is_signed = false;  // also in bytes of s8
    }
    const Json* domain = of.find("zero_point_domain");
    const Json* member = domain == nullptr ? nullptr : domain->find_set("_data");
    const std::string name = member != nullptr && member->is_string() ? member->as_string() : "INT";
    if (name == "NONE") ints.zero.clear(), ints.zero_kind = ZeroKind::kNone;
    if (name == "FLOAT") return unread(layer, of, "its zero points are floats");
    return {};
  }

  torchao::Descriptions descriptions_;
  NameMatcher not_converted_;
  // What the config says of weights.
  bool symmetric_ = false, asymmetric_ = false, wide_tiles_ = false;
};

bool claims(const CheckpointFacts& facts) { return !facts.gguf && method_of(facts) == "torchao"; }

Result<std::unique_ptr<QuantizationConfig>> parse(const CheckpointFacts& facts) {
  auto config = std::make_unique<TorchaoConfig>();
  NIBBLE_TRY(config->read(facts));
  return std::unique_ptr<QuantizationConfig>(std::move(config));
}

}  // namespace

extern const Scheme torchao_scheme;
const Scheme torchao_scheme = {"torchao", {}, claims, parse};

}  // namespace nibble::quant
