#include "quant/schemes/compressed_tensors_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "quant/keys.h"
#include "quant/scheme.h"
#include "quant/schemes/compressed_tensors_arguments.h"
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
    "packed_modules_mapping linear_fp8_config dequantize provider";
constexpr std::string_view kGroupKeys =
    "targets weights input_activations output_activations format";

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
  const std::string where = fmt::format("{}: config_groups", dictionary.where());
  NIBBLE_ASSIGN(const base::JsonObject groups, objects_key(dictionary, "config_groups"));
  std::vector<std::pair<std::string, size_t>> targets;
  for (const auto& [name, value] : groups) {
    NIBBLE_TRY(check_format(value));
    NIBBLE_ASSIGN(Group group, read_group(value, name, config));
    NIBBLE_ASSIGN(const std::vector<std::string> names, names_key(value, "targets"));
    if (groups.size() > 1 && value.find_set("targets") == nullptr) {
      return fail(ErrorCode::kNotFound,
                  fmt::format("{}: targets is missing, and it is not the only group", group.where));
    }
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
  const std::string& where = scheme.where();
  NIBBLE_ASSIGN(const std::string type, scheme.get_string("type"));
  NIBBLE_ASSIGN(const bool randomize, bool_key_or(scheme, "randomize", false));
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
      return fail(ErrorCode::kCorrupt, fmt::format("{}: apply: expected a list, found {}",
                                                   scheme.where(), apply->describe()));
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
