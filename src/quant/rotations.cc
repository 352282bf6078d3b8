#include "quant/rotations.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

#include "quant/names.h"

namespace nibble::quant {
namespace {

bool speaks_of_rotation(std::string_view name) {
  static constexpr std::array<std::string_view, 4> kWords = {"rotation", "hadamard", "spinquant",
                                                             "quarot"};
  const std::string lower = normalized(name);
  return std::any_of(kWords.begin(), kWords.end(),
                     [&](std::string_view word) { return lower.find(word) != std::string::npos; });
}

bool says_nothing(const base::Json& value) {
  if (value.is_bool()) return !value.as_bool();
  if (value.is_string())
    return value.as_string().empty() || normalized(value.as_string()) == "none";
  if (value.is_array()) return value.as_array().empty();
  if (value.is_object()) return value.as_object().empty();
  return value.is_null() || (value.is_number() && value.as_double() == 0);
}

Result<void> refused(const std::string& what) {
  return fail(
      ErrorCode::kUnsupported,
      fmt::format("{}: the inputs of its layers are to be rotated, which is not done yet", what));
}

Result<void> check_keys_of(const base::Json& object) {
  if (!object.is_object()) return {};
  for (const auto& [key, value] : object.as_object()) {
    if (!speaks_of_rotation(key) || says_nothing(value)) continue;
    return refused(fmt::format("{}: {} is given", object.where(), key));
  }
  return {};
}

}  // namespace

Result<void> check_rotations(const base::Json& dictionary) {
  NIBBLE_TRY(check_keys_of(dictionary));
  const base::Json* meta = dictionary.find_set("meta");
  const base::Json* mode = meta == nullptr ? nullptr : meta->find_set("rotation");
  if (mode != nullptr && !says_nothing(*mode)) {
    return refused(fmt::format("{}: meta: rotation is given", dictionary.where()));
  }
  const base::Json* layers = dictionary.find_set("extra_config");
  if (layers != nullptr && layers->is_object()) {
    for (const auto& [layer, entry] : layers->as_object()) NIBBLE_TRY(check_keys_of(entry));
  }
  const base::Json* algorithms = dictionary.find_set("algo_config");
  if (algorithms == nullptr || !algorithms->is_array()) return {};
  for (const base::Json& algorithm : algorithms->as_array()) {
    const base::Json* name = algorithm.is_object() ? algorithm.find_set("name") : nullptr;
    if (name == nullptr || !name->is_string() || !speaks_of_rotation(name->as_string())) continue;
    for (const char* key : {"r4", "online_r1_rotation", "online_had"}) {
      const base::Json* value = algorithm.find_set(key);
      if (value == nullptr || says_nothing(*value)) continue;
      return refused(fmt::format("{}: algo_config: {} of \"{}\" is given", dictionary.where(), key,
                                 name->as_string()));
    }
  }
  return {};
}

}  // namespace nibble::quant
