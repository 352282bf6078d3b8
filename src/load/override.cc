#include "load/override.h"

#include <fmt/format.h>

#include <algorithm>

namespace nibble::load {

Result<std::string> place_of(const base::Json& config, const std::string& key) {
  if (key != "rope_theta" && key != "partial_rotary_factor") return key;
  const base::Json* scaling = config.find_set("rope_scaling");
  const base::Json* newer = config.find_set("rope_parameters");
  if (newer != nullptr && newer->find_set("full_attention") != nullptr) {
    return fail(ErrorCode::kUsage,
                fmt::format("--override {}: rope_parameters has one for each kind of layer; "
                            "say rope_parameters.full_attention.{} or "
                            "rope_parameters.sliding_attention.{}",
                            key, key, key));
  }
  if (scaling != nullptr && scaling->is_object() && !scaling->as_object().empty()) {
    return scaling->find_set(key) != nullptr ? "rope_scaling." + key : key;
  }
  return newer != nullptr && newer->is_object() ? "rope_parameters." + key : key;
}

Result<void> apply_override(base::Json& config, std::string_view key, const std::string& text) {
  const size_t dot = key.find('.');
  if (dot == std::string_view::npos) {
    auto parsed = base::parse_json(text, "--override");
    config.set(std::string(key), parsed ? std::move(*parsed) : base::Json(text));
    return {};
  }
  const std::string head(key.substr(0, dot));
  const base::Json* inner = config.find(head);
  base::Json child = inner != nullptr ? *inner : base::Json::object();
  if (!child.is_object()) {
    return fail(ErrorCode::kUsage,
                fmt::format("--override {}: {} is {}, not an object", key, head, child.describe()));
  }
  NIBBLE_TRY(apply_override(child, key.substr(dot + 1), text));
  config.set(head, std::move(child));
  return {};
}

const base::Json* find_path(const base::Json& config, std::string_view key) {
  const size_t dot = key.find('.');
  const base::Json* found = config.find(key.substr(0, dot));
  return dot == key.npos || found == nullptr ? found : find_path(*found, key.substr(dot + 1));
}

bool was_asked(const base::Json::Asked& asked, const std::string& root, std::string_view key) {
  std::string place = root;
  while (true) {
    const size_t dot = std::min(key.find('.'), key.size());
    if (asked.count({place, std::string(key.substr(0, dot))}) == 0) return false;
    if (dot == key.size()) return true;
    place += fmt::format(": {}", key.substr(0, dot));
    key.remove_prefix(dot + 1);
  }
}

std::string nearest_key(const base::Json::Asked& asked, std::string_view root,
                        std::string_view key) {
  std::string_view best;
  size_t most = 4;  // fewer letters in common are chance
  for (const auto& [place, name] : asked) {
    if (place != root) continue;
    size_t front = 0, back = 0;
    const size_t shorter = std::min(name.size(), key.size());
    while (front < shorter && name[front] == key[front]) ++front;
    while (back < shorter - front && name[name.size() - 1 - back] == key[key.size() - 1 - back]) {
      ++back;
    }
    if (front + back > most) most = front + back, best = name;
  }
  return best.empty() ? "" : fmt::format("; did you mean {}?", best);
}

}  // namespace nibble::load
