#include "quant/keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

namespace nibble::quant {
namespace {

using base::Json;

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

template <class T>
std::optional<T> parsed(std::string_view text) {
  T number = 0;
  const char* end = text.data() + text.size();
  const auto [read, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || read != end) return std::nullopt;
  return number;
}

std::optional<double> real_in(const Json& value) {
  std::optional<double> number;
  if (value.is_number()) number = value.as_double();
  if (value.is_string()) number = parsed<double>(trimmed(value.as_string()));
  return number && std::isfinite(*number) ? number : std::nullopt;
}

std::optional<int64_t> whole_in(const Json& value) {
  if (value.is_int()) return value.as_int();
  if (value.is_string()) {
    if (const auto number = parsed<int64_t>(trimmed(value.as_string()))) return number;
  }
  // Beyond 2^53 a double no longer says which integer was meant.
  const std::optional<double> number = real_in(value);
  if (!number || std::fabs(*number) > 0x1p53 || *number != std::trunc(*number)) return std::nullopt;
  return static_cast<int64_t>(*number);
}

std::optional<bool> bool_in(const Json& value) {
  if (value.is_bool()) return value.as_bool();
  const std::string word = value.is_string() ? lower(trimmed(value.as_string())) : std::string();
  const std::optional<int64_t> number = whole_in(value);
  if (word == "true" || number == 1) return true;
  if (word == "false" || number == 0) return false;
  return std::nullopt;
}

Failure wrong(const Json& dictionary, std::string_view key, std::string_view expected,
              const Json& found) {
  return fail(ErrorCode::kCorrupt, fmt::format("{}: {}: expected {}, found {}", dictionary.where(),
                                               key, expected, found.describe()));
}

Failure missing(const Json& dictionary, std::string_view key) {
  return fail(ErrorCode::kCorrupt,
              fmt::format("{}: key \"{}\" is missing", dictionary.where(), key));
}

bool is_in(std::initializer_list<std::string_view> values, const std::string& value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

}  // namespace

bool same_value(const Json& a, const Json& b) {
  const std::optional<double> x = real_in(a), y = real_in(b);
  if (x && y) return *x == *y;
  const std::optional<bool> p = bool_in(a), q = bool_in(b);
  if (p && q) return *p == *q;
  return a.dump() == b.dump();
}

Result<int64_t> int_key(const Json& dictionary, std::string_view key) {
  const Json* value = dictionary.find_set(key);
  if (value == nullptr) return missing(dictionary, key);
  if (const std::optional<int64_t> number = whole_in(*value)) return *number;
  return wrong(dictionary, key, "an integer", *value);
}

Result<int64_t> int_key_or(const Json& dictionary, std::string_view key, int64_t fallback) {
  if (dictionary.find_set(key) == nullptr) return fallback;
  return int_key(dictionary, key);
}

Result<double> double_key(const Json& dictionary, std::string_view key) {
  const Json* value = dictionary.find_set(key);
  if (value == nullptr) return missing(dictionary, key);
  if (const std::optional<double> number = real_in(*value)) return *number;
  return wrong(dictionary, key, "a number", *value);
}

Result<double> double_key_or(const Json& dictionary, std::string_view key, double fallback) {
  if (dictionary.find_set(key) == nullptr) return fallback;
  return double_key(dictionary, key);
}

Result<bool> bool_key_or(const Json& dictionary, std::string_view key, bool fallback) {
  const Json* value = dictionary.find_set(key);
  if (value == nullptr) return fallback;
  if (const std::optional<bool> read = bool_in(*value)) return *read;
  return wrong(dictionary, key, "true or false", *value);
}

Result<std::string> choice_key(const Json& dictionary, std::string_view key,
                               std::initializer_list<std::string_view> values) {
  NIBBLE_ASSIGN(const std::string text,
                dictionary.get_string_or(key, std::string(*values.begin())));
  std::string value = lower(text);
  if (is_in(values, value)) return value;
  return fail(ErrorCode::kUnsupported,
              fmt::format("{}: {} is \"{}\"; known are: {}", dictionary.where(), key, value,
                          fmt::join(values, ", ")));
}

Result<std::string> word_key(const Json& dictionary, std::string_view key,
                             std::initializer_list<std::string_view> values) {
  const Json* found = dictionary.find_set(key);
  if (found == nullptr) return std::string(*values.begin());
  const std::optional<bool> read = bool_in(*found);
  std::string word = read                 ? (*read ? "true" : "false")
                     : found->is_string() ? lower(trimmed(found->as_string()))
                                          : std::string();
  if (is_in(values, word)) return word;
  return fail(ErrorCode::kUnsupported,
              fmt::format("{}: {} is {}; known are: {}", dictionary.where(), key, found->dump(),
                          fmt::join(values, ", ")));
}

Result<std::vector<std::string>> names_key(const Json& dictionary, std::string_view key) {
  std::vector<std::string> names;
  const Json* list = dictionary.find_set(key);
  std::vector<const Json*> todo;
  if (list != nullptr) todo.push_back(list);
  while (!todo.empty()) {
    const Json* item = todo.back();
    todo.pop_back();
    if (item->is_array()) {
      for (auto it = item->as_array().rbegin(); it != item->as_array().rend(); ++it) {
        todo.push_back(&*it);
      }
    } else if (item->is_string() && item != list) {
      names.push_back(item->as_string());
    } else {
      return wrong(dictionary, key, "a list of names", *item);
    }
  }
  return names;
}

Result<std::vector<std::string>> names_or_text_key(const Json& dictionary, std::string_view key) {
  const Json* found = dictionary.find_set(key);
  if (found == nullptr || !found->is_string()) return names_key(dictionary, key);
  std::vector<std::string> names;
  for (std::string_view text = found->as_string(); !text.empty();) {
    const std::string_view name = text.substr(0, text.find(','));
    if (!trimmed(name).empty()) names.emplace_back(trimmed(name));
    text.remove_prefix(std::min(text.size(), name.size() + 1));
  }
  return names;
}

Result<base::JsonObject> objects_key(const Json& dictionary, std::string_view key) {
  const Json* found = dictionary.find_set(key);
  if (found == nullptr) return base::JsonObject();
  if (!found->is_object()) return wrong(dictionary, key, "an object", *found);
  for (const auto& [name, value] : found->as_object()) {
    if (!value.is_object()) return wrong(*found, name, "an object", value);
  }
  return found->as_object();
}

Result<std::pair<int64_t, int64_t>> pair_key(const Json& dictionary, std::string_view key) {
  const Json* found = dictionary.find_set(key);
  if (found == nullptr) return std::pair<int64_t, int64_t>();
  std::optional<int64_t> first, second;
  if (found->is_array() && found->as_array().size() == 2) {
    first = whole_in(found->as_array()[0]);
    second = whole_in(found->as_array()[1]);
  } else if (found->is_string()) {
    const std::string_view text = found->as_string();
    const size_t x = text.find('x');
    if (x != text.npos) {
      first = parsed<int64_t>(trimmed(text.substr(0, x)));
      second = parsed<int64_t>(trimmed(text.substr(x + 1)));
    }
  }
  if (first && second && *first > 0 && *second > 0) return std::pair(*first, *second);
  return fail(ErrorCode::kCorrupt, fmt::format("{}: {}: expected two positive integers, found {}",
                                               dictionary.where(), key, found->dump()));
}

Result<int64_t> group_size_key(const Json& dictionary, std::string_view key) {
  NIBBLE_ASSIGN(const int64_t group, int_key(dictionary, key));
  if (group == -1) return int64_t{0};
  if (group > 0) return group;
  return fail(ErrorCode::kCorrupt,
              fmt::format("{}: {}: expected -1 (all inputs) or a positive number, found {}",
                          dictionary.where(), key, group));
}

}  // namespace nibble::quant
