#include "quant/schemes/compressed_tensors_arguments.h"

#include <fmt/format.h>

#include <tuple>

#include "quant/keys.h"
#include "quant/scheme.h"
#include "quant/stored.h"

namespace nibble::quant::compressed {
namespace {

using base::Json;

constexpr std::string_view kArgumentKeys =
    "num_bits type symmetric strategy group_size block_structure dynamic actorder scale_dtype";
// How scales were found.
constexpr std::string_view kArgumentHarmless = "observer observer_kwargs zp_dtype is_mse";

struct StrategyName {
  std::string_view name;
  Strategy strategy;
};
constexpr StrategyName kStrategies[] = {
    {"tensor", Strategy::kTensor}, {"channel", Strategy::kChannel},
    {"group", Strategy::kGroup},   {"tensor_group", Strategy::kTensorGroup},
    {"block", Strategy::kBlock},   {"token", Strategy::kToken},
    {"attn_head", Strategy::kHead}};

std::string_view name_of(Strategy strategy) {
  for (const StrategyName& s : kStrategies) {
    if (s.strategy == strategy) return s.name;
  }
  return {};
}

Failure wrong(const Json& at, ErrorCode code, std::string what) {
  return fail(code, fmt::format("{}: {}", at.where(), what));
}

// What stands for `key`, for messages: `dynamic is true`.
std::string shown(const Json& arguments, std::string_view key) {
  const Json* value = arguments.find_set(key);
  return fmt::format("{} is {}", key, value == nullptr ? "not given" : value->dump());
}

Failure both(const Json& arguments, std::string_view a, std::string_view b, std::string_view why) {
  return wrong(arguments, ErrorCode::kUnsupported,
               fmt::format("{}, but {}; {}", shown(arguments, a), shown(arguments, b), why));
}

Result<void> read_strategy(const Json& arguments, Arguments& out) {
  std::optional<int64_t> group;
  if (arguments.find_set("group_size") != nullptr) {
    NIBBLE_ASSIGN(group, group_size_key(arguments, "group_size"));
  }
  out.group = group.value_or(0);
  // [128, 128], or "128x128" as early versions wrote it.
  NIBBLE_ASSIGN(const auto block, pair_key(arguments, "block_structure"));
  std::tie(out.block_n, out.block_k) = block;
  if (arguments.find_set("strategy") == nullptr) {
    out.strategy = out.block_n != 0 ? Strategy::kBlock
                   : !group         ? Strategy::kTensor
                   : *group == 0    ? Strategy::kChannel
                                    : Strategy::kGroup;
    return {};
  }
  NIBBLE_ASSIGN(const std::string word, choice_key(arguments, "strategy",
                                                   {"tensor", "channel", "group", "tensor_group",
                                                    "block", "token", "attn_head"}));
  for (const StrategyName& s : kStrategies) {
    if (s.name == word) out.strategy = s.strategy;
  }
  const bool grouped = out.strategy == Strategy::kGroup || out.strategy == Strategy::kTensorGroup;
  if (grouped && !group) {
    return both(arguments, "strategy", "group_size", "groups have a size");
  }
  if (!grouped && out.group > 0) {
    return both(arguments, "group_size", "strategy", "only groups have a size");
  }
  if ((out.strategy == Strategy::kBlock) != (out.block_n != 0)) {
    return both(arguments, "strategy", "block_structure",
                "blocks, and only they, have a structure");
  }
  return {};
}

Result<void> read_number_type(const Json& arguments, Arguments& out) {
  NIBBLE_ASSIGN(out.bits, int_key_or(arguments, "num_bits", 8));
  NIBBLE_ASSIGN(const std::string type, choice_key(arguments, "type", {"int", "float"}));
  out.is_float = type == "float";
  NIBBLE_ASSIGN(out.symmetric, bool_key_or(arguments, "symmetric", true));
  if (out.is_float && out.bits != 4 && out.bits != 6 && out.bits != 8) {
    return both(arguments, "num_bits", "type", "floats of 4, 6 and 8 bits are read");
  }
  if (out.is_float && !out.symmetric) {
    return both(arguments, "symmetric", "type", "floats have no zero points");
  }
  if (out.bits < 2 || out.bits > 8) {
    return both(arguments, "num_bits", "type", "integers of 2 to 8 bits are read");
  }
  out.names_scale = arguments.find_set("scale_dtype") != nullptr;
  NIBBLE_ASSIGN(std::string scale, arguments.get_string_or("scale_dtype", "float32"));
  if (scale.starts_with("torch.")) scale.erase(0, 6);
  out.power_of_two = scale == "uint8" || scale == "float8_e8m0fnu";
  for (const char* known :
       {"uint8", "float8_e8m0fnu", "float8_e4m3fn", "float32", "bfloat16", "float16", "float64"}) {
    if (scale == known) return {};
  }
  return wrong(arguments, ErrorCode::kUnsupported,
               fmt::format("{}, which is not known", shown(arguments, "scale_dtype")));
}

Result<Arguments> read_arguments(const Json& from, std::vector<std::string>& warnings) {
  Arguments out;
  out.where = from.where();
  check_keys(from, kArgumentKeys, kArgumentHarmless, warnings);
  NIBBLE_TRY(read_number_type(from, out));
  NIBBLE_TRY(read_strategy(from, out));
  NIBBLE_ASSIGN(const std::string dynamic, word_key(from, "dynamic", {"false", "true", "local"}));
  out.dynamic = dynamic != "false";
  out.local = dynamic == "local";
  NIBBLE_ASSIGN(
      const std::string order,
      word_key(from, "actorder", {"false", "true", "group", "dynamic", "weight", "static"}));
  out.act_order = order == "true" || order == "group" || order == "dynamic";
  if (dynamic == "local" && out.strategy != Strategy::kTensorGroup) {
    return both(from, "dynamic", "strategy", "only groups below one scale of the tensor are");
  }
  return out;
}

}  // namespace

Result<std::optional<Arguments>> arguments_of(const Json& group, std::string_view key,
                                              std::vector<std::string>& warnings) {
  const Json* found = group.find_set(key);
  if (found == nullptr) return std::optional<Arguments>();
  if (!found->is_object()) {
    return wrong(group, ErrorCode::kCorrupt,
                 fmt::format("{}: expected an object, found {}", key, found->describe()));
  }
  NIBBLE_ASSIGN(Arguments out, read_arguments(*found, warnings));
  return std::optional<Arguments>(std::move(out));
}

Result<void> check_weights(const Json& from, const Arguments& weights) {
  if (weights.dynamic) {
    return wrong(from, ErrorCode::kUnsupported,
                 shown(from, "dynamic") + "; the scales of weights are stored, never dynamic");
  }
  if (weights.strategy == Strategy::kToken || weights.strategy == Strategy::kHead) {
    return wrong(
        from, ErrorCode::kUnsupported,
        fmt::format("strategy is \"{}\", which weights do not have", name_of(weights.strategy)));
  }
  const bool has_groups = weights.strategy == Strategy::kGroup && weights.group > 0;
  if (weights.act_order && weights.strategy == Strategy::kGroup && !has_groups) {
    return both(from, "actorder", "group_size", "one group of all inputs has no order of groups");
  }
  if (weights.act_order && !has_groups) {
    return both(from, "actorder", "strategy", "only groups have an order");
  }
  return {};
}

Result<void> check_inputs(const Json& group, const Arguments& inputs, const Json& from,
                          const std::optional<Arguments>& weights) {
  const bool is_static = !inputs.dynamic;
  if (is_static && inputs.strategy != Strategy::kTensor && inputs.strategy != Strategy::kHead) {
    return both(from, "strategy", "dynamic",
                "stored scales of inputs are one for the whole tensor");
  }
  if (weights && weights->strategy == Strategy::kBlock && is_static) {
    return wrong(
        group, ErrorCode::kUnsupported,
        fmt::format("weights: strategy is \"block\", but input_activations: {}; weights in "
                    "blocks have dynamic activations",
                    shown(from, "dynamic")));
  }
  if (inputs.strategy == Strategy::kChannel || inputs.strategy == Strategy::kBlock) {
    return wrong(
        from, ErrorCode::kUnsupported,
        fmt::format("strategy is \"{}\", which inputs do not have", name_of(inputs.strategy)));
  }
  if (inputs.bits == 6) {
    return both(from, "num_bits", "type", "of floats, inputs of 4 and 8 bits are known");
  }
  if (inputs.strategy == Strategy::kTensorGroup && (!inputs.is_float || inputs.bits != 4)) {
    return both(from, "strategy", "num_bits", "groups below one scale of the tensor are fp4");
  }
  if (inputs.power_of_two && (inputs.group != 32 || !inputs.is_float)) {
    return both(from, "scale_dtype", "group_size", "exponents are the scales of 32 floats");
  }
  if (inputs.act_order) {
    return wrong(from, ErrorCode::kUnsupported, shown(from, "actorder") + "; only weights have it");
  }
  return {};
}

}  // namespace nibble::quant::compressed
