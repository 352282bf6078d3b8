#include "quant/schemes/compressed_tensors_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "quant/scheme.h"
#include "quant/stored.h"

namespace nibble::quant::compressed {
namespace {

using base::Json;

constexpr std::string_view kKnown =
    "quant_method config_groups ignore format kv_cache_scheme transform_config sparsity_config "
    "version";
// How far the tool got, and what it measured.
constexpr std::string_view kHarmless =
    "quantization_status global_compression_ratio moe_sparsity_config run_compressed "
    "packed_modules_mapping linear_fp8_config dequantize";
constexpr std::string_view kGroupKeys =
    "targets weights input_activations output_activations format";
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

// true, false, or a string of a closed list; `fallback` when absent.
Result<std::string> word_key(const Json& arguments, std::string_view key, std::string fallback,
                             std::initializer_list<std::string_view> words) {
  const Json* value = arguments.find_set(key);
  if (value == nullptr) return fallback;
  std::string word = value->is_bool()     ? (value->as_bool() ? "true" : "false")
                     : value->is_string() ? value->as_string()
                                          : std::string();
  for (char& c : word) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  if (std::find(words.begin(), words.end(), word) != words.end()) return word;
  return wrong(arguments, ErrorCode::kUnsupported,
               fmt::format("{} is {}; known are: {}", key, value->dump(), fmt::join(words, ", ")));
}

// [128, 128], or "128x128" as early versions wrote it.
Result<void> read_block(const Json& arguments, Arguments& out) {
  const Json* block = arguments.find_set("block_structure");
  if (block == nullptr) return {};
  int64_t n = 0, k = 0;
  if (block->is_string()) {
    const std::string& text = block->as_string();
    const char* end = text.data() + text.size();
    const auto [middle, error] = std::from_chars(text.data(), end, n);
    if (error == std::errc() && middle != end && *middle == 'x') {
      const auto [last, second] = std::from_chars(middle + 1, end, k);
      if (second != std::errc() || last != end) k = 0;
    }
  } else if (block->is_array() && block->as_array().size() == 2 && block->as_array()[0].is_int() &&
             block->as_array()[1].is_int()) {
    n = block->as_array()[0].as_int();
    k = block->as_array()[1].as_int();
  }
  if (n <= 0 || k <= 0) {
    return wrong(
        arguments, ErrorCode::kCorrupt,
        fmt::format("block_structure: expected two positive integers, found {}", block->dump()));
  }
  out.block_n = n;
  out.block_k = k;
  return {};
}

Result<void> read_strategy(const Json& arguments, Arguments& out) {
  std::optional<int64_t> group;
  if (arguments.find_set("group_size") != nullptr) {
    NIBBLE_ASSIGN(group, group_size_key(arguments, "group_size"));
  }
  out.group = group.value_or(0);
  NIBBLE_TRY(read_block(arguments, out));
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
  NIBBLE_ASSIGN(out.symmetric, arguments.get_bool_or("symmetric", true));
  if (out.is_float && out.bits != 4 && out.bits != 6 && out.bits != 8) {
    return both(arguments, "num_bits", "type", "floats of 4, 6 and 8 bits are read");
  }
  if (out.is_float && !out.symmetric) {
    return both(arguments, "symmetric", "type", "floats have no zero points");
  }
  if (out.bits < 2 || out.bits > 8) {
    return both(arguments, "num_bits", "type", "integers of 2 to 8 bits are read");
  }
  NIBBLE_ASSIGN(const std::string scale, arguments.get_string_or("scale_dtype", ""));
  out.power_of_two = scale == "torch.uint8" || scale == "uint8" ||
                     scale == "torch.float8_e8m0fnu" || scale == "float8_e8m0fnu";
  return {};
}

Result<Arguments> read_arguments(const Json& from, std::vector<std::string>& warnings) {
  Arguments out;
  out.where = from.where();
  check_keys(from, kArgumentKeys, kArgumentHarmless, warnings);
  NIBBLE_TRY(read_number_type(from, out));
  NIBBLE_TRY(read_strategy(from, out));
  NIBBLE_ASSIGN(const std::string dynamic,
                word_key(from, "dynamic", "false", {"false", "true", "local"}));
  out.dynamic = dynamic != "false";
  out.local = dynamic == "local";
  NIBBLE_ASSIGN(const std::string order,
                word_key(from, "actorder", "false",
                         {"false", "true", "group", "dynamic", "weight", "static"}));
  out.act_order = order == "true" || order == "group" || order == "dynamic";
  if (dynamic == "local" && out.strategy != Strategy::kTensorGroup) {
    return both(from, "dynamic", "strategy", "only groups below one scale of the tensor are");
  }
  return out;
}

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

Result<Group> read_group(const Json& from, std::string name, Config& config) {
  Group out;
  out.name = std::move(name);
  out.where = from.where();
  check_keys(from, kGroupKeys, "", config.warnings);
  NIBBLE_ASSIGN(out.weights, arguments_of(from, "weights", config.warnings));
  NIBBLE_ASSIGN(out.inputs, arguments_of(from, "input_activations", config.warnings));
  NIBBLE_ASSIGN(const auto outputs, arguments_of(from, "output_activations", config.warnings));
  out.quantizes_outputs = outputs.has_value();
  if (out.weights) NIBBLE_TRY(check_weights(*from.find("weights"), *out.weights));
  if (out.inputs) {
    NIBBLE_TRY(check_inputs(from, *out.inputs, *from.find("input_activations"), out.weights));
  }
  return out;
}

// The labels are checked to be known; what is stored says what they say.
Result<void> check_format(const Json& from) {
  NIBBLE_TRY(choice_key(
      from, "format",
      {"dense", "int-quantized", "float-quantized", "naive-quantized", "pack-quantized",
       "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp6-pack-quantized", "mxfp8-quantized",
       "mixed-precision", "marlin-24", "sparse-24-bitmask", "sparse-bitmask", "fakequant"}));
  return {};
}

// Targets in the tool's order: names, then regular expressions, then classes; a longer name is the
// narrower one.
Result<void> sort_targets(std::vector<std::pair<std::string, size_t>> targets,
                          const std::string& where, Config& config) {
  const auto is_regex = [](const std::string& t) { return t.rfind("re:", 0) == 0; };
  // Of a target that stands in two groups the last one counts, as in the tool.
  for (size_t i = 0; i < targets.size(); ++i) {
    const auto again = std::find_if(targets.begin() + static_cast<ptrdiff_t>(i) + 1, targets.end(),
                                    [&](const auto& t) { return t.first == targets[i].first; });
    if (again == targets.end()) continue;
    targets.erase(targets.begin() + static_cast<ptrdiff_t>(i));
    --i;
  }
  std::stable_sort(targets.begin(), targets.end(), [&](const auto& a, const auto& b) {
    if (is_regex(a.first) != is_regex(b.first)) return is_regex(b.first);
    if (is_regex(a.first) || a.first.size() == b.first.size()) return a.first < b.first;
    return a.first.size() > b.first.size();
  });
  std::vector<std::string> rules;
  for (auto& [target, group] : targets) {
    if (is_class_name(target)) {
      config.classes.emplace_back(target, group);
      continue;
    }
    rules.push_back(target);
    config.group_of_target.push_back(group);
  }
  NIBBLE_ASSIGN(config.targets,
                NameMatcher::compile(std::move(rules), where + ": targets", Says::kQuantized));
  return {};
}

Result<void> read_groups(const Json& dictionary, Config& config) {
  const Json* groups = dictionary.find_set("config_groups");
  if (groups == nullptr) return {};
  const std::string where = fmt::format("{}: config_groups", dictionary.where());
  if (!groups->is_object()) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: expected an object, found {}", where, groups->describe()));
  }
  std::vector<std::pair<std::string, size_t>> targets;
  for (const auto& [name, value] : groups->as_object()) {
    if (!value.is_object()) {
      return fail(ErrorCode::kCorrupt, fmt::format("{}: {}: expected an object, found {}", where,
                                                   name, value.describe()));
    }
    NIBBLE_TRY(check_format(value));
    NIBBLE_ASSIGN(Group group, read_group(value, name, config));
    NIBBLE_ASSIGN(const std::vector<std::string> names, names_key(value, "targets"));
    if (!group.weights) {
      config.notes.push_back(fmt::format(
          "{}: quantizes no weights: nothing of it is applied to a layer", group.where));
    } else {
      for (const std::string& name_of_target : names) {
        targets.emplace_back(name_of_target, config.groups.size());
      }
    }
    config.groups.push_back(std::move(group));
  }
  return sort_targets(std::move(targets), where, config);
}

// One rotation of one group. Those of weights were multiplied in when the file was written.
Result<void> read_application(const Json& from, const std::string& group, const Json& scheme,
                              Config& config) {
  NIBBLE_ASSIGN(const std::string location, from.get_string("location"));
  if (location == "weight_input" || location == "weight_output") return {};
  const std::string where = scheme.where();
  NIBBLE_ASSIGN(const std::string type, scheme.get_string("type"));
  NIBBLE_ASSIGN(const bool randomize, scheme.get_bool_or("randomize", false));
  if (location != "input" || type != "hadamard" || randomize) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("{}: a transform of type \"{}\"{} at \"{}\" is applied while the model "
                            "runs; of those only type \"hadamard\", not randomized, at \"input\" "
                            "is known here",
                            where, type, randomize ? ", randomized," : "", location));
  }
  InputTransform out;
  out.name = group;
  NIBBLE_ASSIGN(out.size, int_key_or(scheme, "head_dim", 0));
  if (out.size < 0 || (out.size & (out.size - 1)) != 0) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("{}: head_dim is {}; a Hadamard matrix is made for powers of two",
                            where, out.size));
  }
  std::vector<std::string> lists[2];
  for (int i = 0; i < 2; ++i) {
    const char* key = i == 0 ? "targets" : "ignore";
    const Json* one = from.find_set(key);
    if (one != nullptr && one->is_string()) {
      lists[i] = {one->as_string()};
    } else {
      NIBBLE_ASSIGN(lists[i], names_key(from, key));
    }
  }
  std::erase_if(lists[0], [&out](const std::string& target) {
    if (!is_class_name(target)) return false;
    out.every_linear = out.every_linear || target.find("Linear") != target.npos;
    return true;
  });
  NIBBLE_ASSIGN(out.targets, NameMatcher::compile(std::move(lists[0]), where + ": targets"));
  NIBBLE_ASSIGN(out.ignored, NameMatcher::compile(std::move(lists[1]), where + ": ignore"));
  config.notes.push_back(
      fmt::format("{}: inputs of its targets are rotated while the model runs", where));
  config.transforms.push_back(std::move(out));
  return {};
}

Result<void> read_transforms(const Json& dictionary, Config& config) {
  const Json* transforms = dictionary.find_set("transform_config");
  const Json* groups = transforms == nullptr ? nullptr : transforms->find_set("config_groups");
  if (groups == nullptr || !groups->is_object()) return {};
  for (const auto& [name, scheme] : groups->as_object()) {
    const Json* apply = scheme.find_set("apply");
    if (apply == nullptr) continue;
    if (!apply->is_array()) {
      return wrong(scheme, ErrorCode::kCorrupt,
                   fmt::format("apply: expected a list, found {}", apply->describe()));
    }
    for (Json one : apply->as_array()) {
      one.set_where(scheme.where() + ": apply");
      NIBBLE_TRY(read_application(one, name, scheme, config));
    }
  }
  return {};
}

// What is stored says which layers are sparse.
Result<void> read_sparsity(const Json& dictionary) {
  const Json* sparsity = dictionary.find_set("sparsity_config");
  if (sparsity == nullptr || !sparsity->is_object()) return {};
  NIBBLE_TRY(choice_key(*sparsity, "format", {"dense", "sparse-24-bitmask", "sparse-bitmask"}));
  return {};
}

// "0.12.2": nothing when it is no version.
std::optional<bool> packs_densely(const std::string& version) {
  int major = 0, minor = 0;
  const char* end = version.data() + version.size();
  const auto [dot, error] = std::from_chars(version.data(), end, major);
  if (error != std::errc() || dot == end || *dot != '.') return std::nullopt;
  if (std::from_chars(dot + 1, end, minor).ec != std::errc()) return std::nullopt;
  return major > 0 || minor >= 18;
}

}  // namespace

bool is_class_name(std::string_view target) {
  return !target.empty() && target[0] >= 'A' && target[0] <= 'Z' &&
         target.find_first_of(".*?:") == target.npos;
}

Result<Config> read_config(const Json& dictionary) {
  Config config;
  check_keys(dictionary, kKnown, kHarmless, config.warnings);
  NIBBLE_TRY(check_format(dictionary));
  NIBBLE_TRY(read_groups(dictionary, config));
  NIBBLE_TRY(read_transforms(dictionary, config));
  NIBBLE_TRY(read_sparsity(dictionary));
  NIBBLE_ASSIGN(const std::string version, dictionary.get_string_or("version", ""));
  config.dense_words = packs_densely(version);
  NIBBLE_ASSIGN(config.ignored, names_list(dictionary, {"ignore"}, Says::kLeftAlone));
  return config;
}

}  // namespace nibble::quant::compressed
