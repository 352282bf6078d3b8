#include "quant/schemes/auto_round_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "quant/keys.h"
#include "quant/scheme.h"

namespace nibble::quant::auto_round {
namespace {

using base::Json;

constexpr std::string_view kKnown =
    "quant_method bits group_size sym data_type packing_format backend extra_config act_bits "
    "act_dynamic act_sym act_data_type act_group_size activation_scheme weight_block_size fmt "
    "block_name_to_quantize to_quant_block_names modules_to_not_convert";
// How the weights were found.
constexpr std::string_view kHarmless =
    "quant_block_list autoround_version iters lr minmax_lr enable_minmax_tuning "
    "enable_quanted_input scale_dtype "
    "low_gpu_mem_usage low_cpu_mem_usage seqlen nsamples batch_size train_bs gradient_accumulate_"
    "steps amp dataset enable_norm_bias_tuning not_use_best_mse super_bits super_group_size "
    "regex_config enable_alg_ext static_kv_dtype static_attention_dtype quant_lm_head lm_head "
    "use_quant_input scale_calculation_mode multimodal quant_nontext_module model_free "
    "supported_types rotation_config hadamard_config spinquant_config";

// Words of labels, layouts and backends: at least one stands in each ("auto_round:gptq:exllamav2").
constexpr std::string_view kLabels[] = {"auto",   "round", "gptq", "awq",     "exllama", "triton",
                                        "marlin", "fp",    "llm",  "ipex",    "itrex",   "hpu",
                                        "cuda",   "cpu",   "gpu",  "bitblas", "torch"};

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

Result<void> read_packing(const Json& dictionary, Config& config) {
  NIBBLE_ASSIGN(std::string label, dictionary.get_string_or("packing_format", ""));
  const char* key = "packing_format";
  if (label.empty()) {
    NIBBLE_ASSIGN(label, dictionary.get_string_or("backend", "auto"));
    key = "backend";
  }
  if (std::none_of(std::begin(kLabels), std::end(kLabels),
                   [&](std::string_view word) { return contains(label, word); })) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("{}: {} is \"{}\", which is not known: it decides how zero points are "
                            "stored",
                            dictionary.where(), key, label));
  }
  GptqLayout& ints = config.general.ints;
  const bool own = contains(label, "auto_round") || contains(label, "autoround");
  const bool less_one = contains(label, "gptq") && !contains(label, "gptqmodel");
  ints.v2 = own && !less_one;
  ints.any_version = true;
  ints.version = fmt::format("{} is {}", key, label);
  if (contains(label, "fake")) {
    config.notes.push_back(
        fmt::format("{}: {} is {}: the weights are stored as floats, already rounded; "
                    "activations are left alone",
                    dictionary.where(), key, label));
  }
  return {};
}

// Two keys say whether the scales of inputs are stored: act_dynamic, and what the FP8 layouts add.
Result<bool> read_static(const Json& from, bool absent) {
  NIBBLE_ASSIGN(const bool dynamic, bool_key_or(from, "act_dynamic", !absent));
  if (from.find_set("activation_scheme") == nullptr) return !dynamic;
  NIBBLE_ASSIGN(const std::string scheme,
                choice_key(from, "activation_scheme", {"dynamic", "static"}));
  const bool is_static = scheme == "static";
  if (from.find_set("act_dynamic") != nullptr && dynamic == is_static) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: activation_scheme is {}, but act_dynamic is {}; one of them is "
                            "wrong",
                            from.where(), scheme, dynamic));
  }
  return is_static;
}

Result<void> read_activations(const Json& from, Params& p) {
  NIBBLE_ASSIGN(p.act_bits, int_key_or(from, "act_bits", p.act_bits));
  NIBBLE_ASSIGN(p.act_data_type, from.get_string_or("act_data_type", p.act_data_type));
  NIBBLE_ASSIGN(p.act_static, read_static(from, p.act_static));
  if (from.find_set("act_group_size") == nullptr) return {};
  NIBBLE_ASSIGN(const int64_t group, int_key(from, "act_group_size"));
  if (group < -1) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: act_group_size: expected -1 (a token), 0 (all tokens) or a "
                            "positive number, found {}",
                            from.where(), group));
  }
  p.act_group = group == -1 ? 0 : group == 0 ? -1 : group;
  return {};
}

// `p` holds what the key's absence means.
Result<Params> read_params(const Json& from, Params p) {
  NIBBLE_ASSIGN(p.ints.bits, int_key_or(from, "bits", p.ints.bits));
  const Json* group = from.find_set("group_size");
  if (group != nullptr && !group->is_array()) {  // FP8's blocks are a list
    NIBBLE_ASSIGN(const int64_t size, int_key(from, "group_size"));
    if (size != 0) {  // 0 is per tensor, of FP8
      NIBBLE_ASSIGN(p.ints.group, group_size_key(from, "group_size"));
    }
  }
  NIBBLE_ASSIGN(p.ints.sym, bool_key_or(from, "sym", p.ints.sym));
  NIBBLE_ASSIGN(p.data_type, from.get_string_or("data_type", p.data_type));
  NIBBLE_TRY(read_activations(from, p));
  return p;
}

// {"module or regular expression": {"bits": ...}}. A name that is no expression is an exact name
// and comes first.
Result<void> read_extra(const Json& dictionary, Config& config) {
  NIBBLE_ASSIGN(const base::JsonObject extra, objects_key(dictionary, "extra_config"));
  for (const bool exact : {true, false}) {
    for (const auto& [key, value] : extra) {
      if ((key.find_first_of("*+?[](){}|^$\\") == std::string::npos) != exact) continue;
      NIBBLE_ASSIGN(Params params, read_params(value, config.general));
      const Says says = params.ints.bits >= 16 ? Says::kLeftAlone : Says::kQuantized;
      config.extra.add(exact ? key : fmt::format("re:.*(?:{})", key), std::move(params), says);
    }
  }
  return config.extra.compile(dictionary.where() + ": extra_config");
}

// A list, lists in a list, or one text with commas between; two names of one key, from different
// versions of the tool.
Result<void> read_blocks(const Json& dictionary, Config& config) {
  for (const char* key : {"block_name_to_quantize", "to_quant_block_names"}) {
    NIBBLE_ASSIGN(std::vector<std::string> names, names_or_text_key(dictionary, key));
    if (names.empty()) continue;
    NIBBLE_ASSIGN(
        config.blocks,
        NameMatcher::compile(std::move(names), fmt::format("{}: {}", dictionary.where(), key),
                             Says::kOnlyThese));
  }
  NIBBLE_ASSIGN(config.not_converted,
                names_list(dictionary, {"modules_to_not_convert"}, Says::kLeftAlone));
  return {};
}

}  // namespace

Result<Config> read_config(const Json& dictionary) {
  Config config;
  check_keys(dictionary, kKnown, kHarmless, config.warnings);
  NIBBLE_TRY(read_packing(dictionary, config));
  NIBBLE_ASSIGN(config.general, read_params(dictionary, config.general));
  NIBBLE_TRY(read_extra(dictionary, config));
  NIBBLE_TRY(read_blocks(dictionary, config));
  const Json* group = dictionary.find_set("group_size");
  const bool listed = group != nullptr && group->is_array();
  NIBBLE_ASSIGN(config.block, block_key(dictionary, listed ? "group_size" : "weight_block_size"));
  return config;
}

}  // namespace nibble::quant::auto_round
