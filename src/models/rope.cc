// The rope keys of config.json: rope_type, rope_theta, factors, and how much of a head turns.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "models/config.h"

namespace nibble::models {
namespace {

using base::Json;
using layers::DecoderSpec;

constexpr int64_t kLongestContext = int64_t{1} << 24;

Result<std::vector<double>> get_numbers(const Json& config, std::string_view key, int64_t count) {
  std::vector<double> out;
  const Json* list = config.find_set(key);
  if (list == nullptr || !list->is_array() ||
      static_cast<int64_t>(list->as_array().size()) != count) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: {}: expected a list of {} numbers, found {}", config.where(), key,
                            count, list == nullptr ? "nothing" : list->describe()));
  }
  for (const Json& item : list->as_array()) {
    if (!item.is_number() || !(item.as_double() > 0)) {
      return fail(ErrorCode::kCorrupt, fmt::format("{}: {}: expected positive numbers, found {}",
                                                   config.where(), key, item.describe()));
    }
    out.push_back(item.as_double());
  }
  return out;
}

Result<kernels::RopeType> rope_type(const Json& scaling) {
  NIBBLE_ASSIGN(std::string type, scaling.get_string_or("rope_type", ""));
  if (type.empty()) {
    NIBBLE_ASSIGN(type, scaling.get_string_or("type", "default"));
  }
  if (type == "default") return kernels::RopeType::kDefault;
  if (type == "linear") return kernels::RopeType::kLinear;
  if (type == "dynamic") return kernels::RopeType::kDynamic;
  if (type == "yarn") return kernels::RopeType::kYarn;
  if (type == "llama3") return kernels::RopeType::kLlama3;
  if (type == "longrope" || type == "su") return kernels::RopeType::kLongRope;
  if (type == "proportional") return kernels::RopeType::kProportional;
  return fail(ErrorCode::kUnsupported,
              fmt::format("{}: rope_type: \"{}\" is not known; expected default, linear, dynamic, "
                          "yarn, llama3, longrope or proportional",
                          scaling.where(), type));
}

Result<double> get_positive(const Json& scaling, std::string_view key, double fallback) {
  NIBBLE_ASSIGN(double v, scaling.get_double_or(key, fallback));
  if (!(v > 0) || !std::isfinite(v)) {
    return fail(ErrorCode::kCorrupt, fmt::format("{}: {}: expected a positive number, found {}",
                                                 scaling.where(), key, v));
  }
  return v;
}

// The key `inside` of the rope parameters, else `beside` them in config.json, else the default;
// `where` becomes the document that had it.
Result<double> number_of(const Json& config, const Json* parameters, std::string_view inside,
                         std::string_view beside, double fallback, std::string& where,
                         std::string_view& key) {
  const bool in = parameters != nullptr && parameters->find_set(inside) != nullptr;
  const Json& from = in ? *parameters : config;
  key = in ? inside : beside;
  where = from.where();
  return from.get_double_or(key, fallback);
}

Result<int> rotary_dim(const Json& config, const Json* parameters, const Family& family,
                       kernels::RopeType type, DecoderSpec& spec) {
  std::string where;
  std::string_view key;
  NIBBLE_ASSIGN(double partial, number_of(config, parameters, "partial_rotary_factor",
                                          family.partial_key, family.partial, where, key));
  if (!(partial > 0) || partial > 1) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: {}: expected a number in (0, 1], found {}", where, key, partial));
  }
  const auto head_dim = static_cast<int>(spec.head_dim);
  if (!family.partial_rotary && type != kernels::RopeType::kProportional) {
    if (partial == 1) return head_dim;
    if (type != kernels::RopeType::kDefault) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("{}: {}: {} contradicts the model, which turns whole heads", where,
                              key, partial));
    }
    spec.notes.push_back(
        fmt::format("{}: {} has no effect: a model of this kind turns whole heads", where, key));
    return head_dim;
  }
  // The small addition: the factor may be a quotient that was rounded down.
  const auto dim = static_cast<int>(static_cast<double>(head_dim) * partial + 1e-6);
  if (dim < 2 || dim % 2 != 0) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("{}: {}: {} of a head of {} is {} dimensions; an even number of 2 or "
                            "more is needed to make pairs",
                            where, key, partial, head_dim, dim));
  }
  return dim;
}

// factor and, for some types, what else scales the frequencies.
Result<void> read_scaling(const Json& scaling, const Json& config, const Family& family,
                          DecoderSpec& spec, kernels::RopeConfig& rope) {
  using kernels::RopeType;
  rope.factor = 0;  // yarn and longrope compute it when it is not given
  const bool optional = rope.type == RopeType::kYarn || rope.type == RopeType::kLongRope;
  if (!optional || scaling.find_set("factor") != nullptr) {
    NIBBLE_ASSIGN(rope.factor, get_positive(scaling, "factor", 0));
  }
  // With these two max_position_embeddings is the length before scaling.
  if (rope.type == RopeType::kDynamic || rope.type == RopeType::kLinear) {
    const double longer = std::floor(static_cast<double>(spec.max_positions) * rope.factor);
    spec.context = static_cast<int64_t>(std::min(longer, static_cast<double>(kLongestContext)));
  }
  const bool at_top = family.original_positions != 0 &&
                      (config.find_set("original_max_position_embeddings") != nullptr ||
                       scaling.find_set("original_max_position_embeddings") == nullptr);
  NIBBLE_ASSIGN(rope.original_max_positions,
                get_size_or(at_top ? config : scaling, "original_max_position_embeddings",
                            at_top ? family.original_positions : spec.max_positions));
  if (rope.type == RopeType::kLlama3) {
    NIBBLE_ASSIGN(rope.low_freq_factor, get_positive(scaling, "low_freq_factor", 1));
    NIBBLE_ASSIGN(rope.high_freq_factor, get_positive(scaling, "high_freq_factor", 4));
  }
  if (scaling.find_set("attention_factor") != nullptr) {
    NIBBLE_ASSIGN(rope.attention_factor, scaling.get_double("attention_factor"));
  }
  if (rope.type == RopeType::kYarn) {
    NIBBLE_ASSIGN(rope.beta_fast, get_positive(scaling, "beta_fast", 32));
    NIBBLE_ASSIGN(rope.beta_slow, get_positive(scaling, "beta_slow", 1));
    NIBBLE_ASSIGN(rope.truncate, scaling.get_bool_or("truncate", true));
    NIBBLE_ASSIGN(rope.mscale, scaling.get_double_or("mscale", 0));
    NIBBLE_ASSIGN(rope.mscale_all_dim, scaling.get_double_or("mscale_all_dim", 0));
  }
  if (rope.type == RopeType::kLongRope) {
    NIBBLE_ASSIGN(rope.short_factor, get_numbers(scaling, "short_factor", rope.rotary_dim / 2));
    NIBBLE_ASSIGN(rope.long_factor, get_numbers(scaling, "long_factor", rope.rotary_dim / 2));
  }
  return {};
}

}  // namespace

Result<kernels::RopeConfig> read_rope(const Json& config, const Json* parameters,
                                      const Family& family, DecoderSpec& spec) {
  kernels::RopeConfig rope;
  std::string where;
  std::string_view key;
  NIBBLE_ASSIGN(rope.theta, number_of(config, parameters, "rope_theta", family.theta_key,
                                      family.theta, where, key));
  if (!(rope.theta > 0) || !std::isfinite(rope.theta)) {
    return fail(ErrorCode::kCorrupt, fmt::format("{}: {}: expected a positive number, found {}",
                                                 where, key, rope.theta));
  }
  if (parameters != nullptr && parameters->find_set("full_attention") != nullptr) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("{}: full_attention: parameters for each kind of layer are not known "
                            "for this model",
                            parameters->where()));
  }
  if (parameters != nullptr) {
    NIBBLE_ASSIGN(rope.type, rope_type(*parameters));
    const bool yarn = rope.type == kernels::RopeType::kYarn;
    if (yarn && family.yarn_is_longrope) rope.type = kernels::RopeType::kLongRope;
  }
  rope.head_dim = static_cast<int>(spec.head_dim);
  NIBBLE_ASSIGN(rope.rotary_dim, rotary_dim(config, parameters, family, rope.type, spec));
  rope.max_positions = spec.max_positions;
  if (rope.type != kernels::RopeType::kDefault) {
    NIBBLE_TRY(read_scaling(*parameters, config, family, spec, rope));
  } else if (parameters != nullptr && parameters->find_set("factor") != nullptr) {
    spec.notes.push_back(fmt::format(
        "{}: factor has no effect: rope_type, which would say how it scales, is default or absent",
        parameters->where()));
  }
  return rope;
}

}  // namespace nibble::models
