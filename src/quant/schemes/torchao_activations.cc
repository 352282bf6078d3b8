#include "quant/schemes/torchao_activations.h"

#include <fmt/format.h>

#include "quant/activations.h"

namespace nibble::quant::torchao {
namespace {

using base::Json;
using tensor::ActivationFormat;

Failure undone(const LinearLayer& layer, const Instance& of, std::string_view what) {
  return fail(ErrorCode::kUnsupported,
              fmt::format("{}.weight is TorchAO's {}, whose inputs have {}, which is not done",
                          layer.module, of.type, what));
}

// A member of an enum, by its name.
std::string member_of(const Json* value) {
  const Json* name = value == nullptr || value->is_string() ? value : value->find_set("_data");
  return name != nullptr && name->is_string() ? name->as_string() : "";
}

// The arguments of the inputs' quantization; nullopt: the inputs are left alone.
Result<std::optional<Instance>> arguments_of(const LinearLayer& layer, const Instance& of) {
  const Json* found = of.find("act_quant_kwargs");
  if (found == nullptr) return std::optional<Instance>();
  if (attributes_of(*found) == nullptr) {
    return undone(layer, of, "act_quant_kwargs of " + found->dump());
  }
  return std::optional(Instance{class_of(*found), *attributes_of(*found), "", {}});
}

// Blocks of another size than the one that is done; without a size it is that one.
Result<void> check_block(const LinearLayer& layer, const Instance& of, const Instance& arguments,
                         int64_t size) {
  const Json* found = arguments.find("block_size");
  if (found == nullptr || (found->is_int() && found->as_int() == size)) return {};
  return undone(layer, of, "blocks of " + found->dump());
}

ActivationFormat s8_per_token() {
  ActivationFormat out = per_token(ActivationType::kS8);
  out.reciprocal = true;
  return out;
}

bool is_true(const Json* value) { return value != nullptr && value->is_bool() && value->as_bool(); }

// Sets what shares a scale: PerRow and PerToken, PerTensor, or PerBlock of one token.
Result<void> set_granularity(const LinearLayer& layer, const Instance& of,
                             const Instance& arguments, ActivationFormat& out) {
  const Json* granularity = arguments.find("granularity");
  const std::string type = granularity == nullptr ? "" : class_of(*granularity);
  const Json* data = granularity == nullptr ? nullptr : attributes_of(*granularity);
  const Json* dim = data == nullptr ? nullptr : data->find_set("dim");
  const bool of_rows = dim == nullptr || (dim->is_int() && dim->as_int() == -1);
  if ((type == "PerRow" && of_rows) || type == "PerToken" || type == "PerAxis") return {};
  if (type == "PerTensor") {
    out.granularity = ActivationFormat::Granularity::kTensor;
    return {};
  }
  const Json* block = data == nullptr ? nullptr : data->find_set("block_size");
  if (type == "PerBlock" && block != nullptr && block->is_array()) {
    const base::JsonArray& size = block->as_array();
    const bool of_one_token = size.size() == 2 && size[0].is_int() && size[0].as_int() == 1 &&
                              size[1].is_int() && size[1].as_int() > 0;
    if (of_one_token) {
      out = per_group(out.type, size[1].as_int());
      return {};
    }
  }
  return undone(
      layer, of,
      granularity == nullptr ? "no granularity" : "the granularity " + granularity->dump());
}

}  // namespace

Result<ActivationFormat> float8_activation(const LinearLayer& layer, const Instance& of) {
  NIBBLE_ASSIGN(const std::optional<Instance> arguments, arguments_of(layer, of));
  if (!arguments) return ActivationFormat{};
  const std::string type = arguments->dtype("float8_dtype");
  if (type != "float8_e4m3fn") return undone(layer, of, fmt::format("the type {:?}", type));
  ActivationFormat out = per_token(ActivationType::kE4M3);
  NIBBLE_TRY(set_granularity(layer, of, *arguments, out));
  if (arguments->find("hp_value_lb") != nullptr) return undone(layer, of, "a lower bound");
  const Json* most = arguments->find("hp_value_ub");
  if (most == nullptr) return out;
  if (!most->is_number() || !(most->as_double() > 0)) {
    return undone(layer, of, "the upper bound " + most->dump());
  }
  out.upper_bound = static_cast<float>(most->as_double());
  return out;
}

Result<ActivationFormat> int4_activation(const LinearLayer& layer, const Instance& of) {
  const std::string type = of.dtype("activation_dtype");
  if (type == "float8_e4m3fn") return per_token(ActivationType::kE4M3);
  if (type.empty() || type == "bfloat16" || type == "float16" || type == "float32") {
    return ActivationFormat{};
  }
  return undone(layer, of, fmt::format("the type {:?}", type));
}

Result<ActivationFormat> int8_activation(const LinearLayer& layer, const Instance& of,
                                         bool is_static) {
  NIBBLE_ASSIGN(const std::optional<Instance> arguments, arguments_of(layer, of));
  if (!arguments) return ActivationFormat{};
  ActivationFormat out = s8_per_token();
  NIBBLE_TRY(set_granularity(layer, of, *arguments, out));
  const std::string mapping = member_of(arguments->find("mapping_type"));
  if (mapping != "SYMMETRIC" && mapping != "ASYMMETRIC") {
    return undone(layer, of, fmt::format("the mapping {:?}", mapping));
  }
  out.asymmetric = mapping == "ASYMMETRIC";
  if (is_true(arguments->find("reduce_range"))) out.bits = 7;
  if (!is_static) {
    out.half_range = !out.asymmetric;
    return out;
  }
  if (out.granularity != ActivationFormat::Granularity::kTensor) {
    return undone(layer, of, "stored scales that are not one for all");
  }
  out.is_static = true;
  return out;
}

Result<ActivationFormat> intx_activation(const LinearLayer& layer, const Instance& of) {
  const std::string name = member_of(of.find("activation_quantization"));
  if (name.empty()) return ActivationFormat{};
  if (name != "int8_asym_per_token" && name != "INT8_ASYM_PER_TOKEN") {
    return undone(layer, of, fmt::format("the quantization {:?}", name));
  }
  ActivationFormat out = s8_per_token();
  out.asymmetric = true;
  return out;
}

Result<ActivationFormat> mx_activation(const LinearLayer& layer, const Instance& of) {
  NIBBLE_ASSIGN(const std::optional<Instance> arguments, arguments_of(layer, of));
  if (!arguments) return ActivationFormat{};
  NIBBLE_TRY(check_block(layer, of, *arguments, 32));
  const std::string type = arguments->dtype("elem_dtype");
  const bool is_e4m3 = type == "float8_e4m3fn";
  if (!is_e4m3 && type != "float4_e2m1fn_x2") {
    const Json* found = arguments->find("elem_dtype");  // a text, of floats of 6 bits
    return undone(layer, of,
                  found == nullptr ? "no elem_dtype"
                  : type.empty()   ? "elements of " + found->dump()
                                   : fmt::format("elements of {:?}", type));
  }
  const std::string mode = member_of(arguments->find("scaling_mode"));
  const ActivationType element = is_e4m3 ? ActivationType::kE4M3 : ActivationType::kE2M1;
  if (mode == "RCEIL") return per_group(element, 32, ScaleRule::kE8M0Ceil);
  if (mode == "FLOOR") return per_group(element, 32, ScaleRule::kE8M0Floor);
  if (mode == "CEIL") return per_group(element, 32, ScaleRule::kE8M0Above);
  if (mode == "EVEN") return per_group(element, 32, ScaleRule::kE8M0Nearest);
  return undone(layer, of, fmt::format("the scaling_mode {:?}", mode));
}

Result<ActivationFormat> nvfp4_activation(const LinearLayer& layer, const Instance& of) {
  NIBBLE_ASSIGN(const std::optional<Instance> arguments, arguments_of(layer, of));
  if (!arguments) return ActivationFormat{};
  NIBBLE_TRY(check_block(layer, of, *arguments, 16));
  // Found anew for each call, whether or not one is stored.
  if (is_true(arguments->find("use_dynamic_per_tensor_scale"))) {
    return undone(layer, of, "a scale of the whole call beside those of blocks");
  }
  ActivationFormat out = per_group(ActivationType::kE2M1, 16, ScaleRule::kE4M3);
  out.normal_scales = true;
  return out;
}

Result<ActivationFormat> activation_of_function(const Instance& of) {
  const std::string name = member_of(of.find("input_quant_func"));
  ActivationFormat out = s8_per_token();
  if (name == "_int8_symm_per_token_reduced_range_quant" || name == "_int8_symm_per_token_quant") {
    return out;
  }
  if (name == "_int8_asymm_per_token_quant") {
    out.asymmetric = true;
    return out;
  }
  if (name == "_input_activation_quant_func_fp8") {
    out.type = ActivationType::kE4M3;
    const Json* arguments = of.find("quant_kwargs");
    const Json* granularity =
        arguments == nullptr ? nullptr : arguments->find_set("activation_granularity");
    if (granularity != nullptr && class_of(*granularity) == "PerTensor") {
      out.granularity = ActivationFormat::Granularity::kTensor;
    }
    return out;
  }
  return fail(ErrorCode::kUnsupported,
              fmt::format("a {} whose inputs go through {:?} is not read", of.type, name));
}

}  // namespace nibble::quant::torchao
