#include "base/json.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <unordered_set>

namespace nibble::base {
namespace {

constexpr size_t kLongPath = 120;
constexpr size_t kShown = 40;  // characters of a value quoted in a message

// Builds a Json from nlohmann's SAX events, with the checks that its DOM does not make.
class Builder : public nlohmann::json_sax<nlohmann::json> {
 public:
  Builder(std::string_view where, const JsonLimits& limits) : where_(where), limits_(limits) {}

  bool null() override { return add(Json()); }
  bool boolean(bool v) override { return add(Json(v)); }
  bool number_integer(number_integer_t v) override { return add(Json(static_cast<int64_t>(v))); }
  bool number_unsigned(number_unsigned_t v) override {
    if (v > static_cast<uint64_t>(INT64_MAX)) return add(Json(static_cast<double>(v)));
    return add(Json(static_cast<int64_t>(v)));
  }
  bool number_float(number_float_t v, const string_t&) override { return add(Json(v)); }
  bool string(string_t& v) override { return add(Json(std::move(v))); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(false); }
  bool start_array(std::size_t) override { return open(true); }
  bool key(string_t& v) override {
    Level& top = stack_.back();
    if (!top.keys.insert(v).second) {
      error_ = fmt::format("{}: key \"{}\" stands twice in one object; a file must say it once",
                           where_, v.substr(0, kShown));
      return false;
    }
    top.key = std::move(v);
    return true;
  }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& e) override {
    // nlohmann's text begins with "[json.exception...] "; what follows the last ": " is the reason.
    std::string_view text = e.what();
    if (size_t end = text.find("] "); end != text.npos) text.remove_prefix(end + 2);
    error_ =
        fmt::format("{}: not valid JSON at byte {}: {}", where_, position, text.substr(0, 160));
    return false;
  }

  Result<Json> take() {
    if (!error_.empty()) return fail(ErrorCode::kCorrupt, std::move(error_));
    return std::move(root_);
  }

 private:
  struct Level {
    bool is_array = false;
    std::string key;
    JsonArray array;
    JsonObject object;
    std::unordered_set<std::string> keys;
  };

  bool add(Json value) {
    if (++count_ > limits_.max_values) {
      error_ = fmt::format("{}: more than {} JSON values", where_, limits_.max_values);
      return false;
    }
    if (stack_.empty()) {
      root_ = std::move(value);
    } else if (stack_.back().is_array) {
      stack_.back().array.push_back(std::move(value));
    } else {
      stack_.back().object.emplace_back(std::move(stack_.back().key), std::move(value));
    }
    return true;
  }
  bool open(bool is_array) {
    if (static_cast<int>(stack_.size()) >= limits_.max_depth) {
      error_ = fmt::format("{}: JSON nested deeper than {} levels", where_, limits_.max_depth);
      return false;
    }
    stack_.emplace_back();
    stack_.back().is_array = is_array;
    return true;
  }
  bool close() {
    Level top = std::move(stack_.back());
    stack_.pop_back();
    return add(top.is_array ? Json(std::move(top.array)) : Json(std::move(top.object)));
  }

  std::string where_;
  JsonLimits limits_;
  std::vector<Level> stack_;
  Json root_;
  std::string error_;
  size_t count_ = 0;
};

nlohmann::ordered_json to_nlohmann(const Json& v) {
  if (v.is_bool()) return v.as_bool();
  if (v.is_int()) return v.as_int();
  if (v.is_double()) return v.as_double();
  if (v.is_string()) return v.as_string();
  if (v.is_array()) {
    auto out = nlohmann::ordered_json::array();
    for (const Json& item : v.as_array()) out.push_back(to_nlohmann(item));
    return out;
  }
  if (v.is_object()) {
    auto out = nlohmann::ordered_json::object();
    for (const auto& [key, item] : v.as_object()) out[key] = to_nlohmann(item);
    return out;
  }
  return nullptr;
}

}  // namespace

Json::Json(JsonArray v) : value_(std::make_shared<JsonArray>(std::move(v))) {}
Json::Json(JsonObject v) : value_(std::make_shared<JsonObject>(std::move(v))) {}

const Json* Json::find(std::string_view key) const {
  if (!is_object()) return nullptr;
  if (origin_ && origin_->asked) origin_->asked->emplace(origin_->where, key);
  for (const auto& [name, value] : as_object()) {
    if (name == key) return &value;
  }
  return nullptr;
}

const Json* Json::find_set(std::string_view key) const {
  const Json* v = find(key);
  return v == nullptr || v->is_null() ? nullptr : v;
}

void Json::set(std::string key, Json value) {
  JsonObject copy = is_object() ? as_object() : JsonObject{};  // copies share nothing with others
  for (auto& [name, old] : copy) {
    if (name == key) {
      old = std::move(value);
      value_ = std::make_shared<JsonObject>(std::move(copy));
      return;
    }
  }
  copy.emplace_back(std::move(key), std::move(value));
  value_ = std::make_shared<JsonObject>(std::move(copy));
}

void Json::push_back(Json value) {
  if (!is_array()) value_ = std::make_shared<JsonArray>();
  auto& shared = *std::get_if<5>(&value_);
  if (shared.use_count() > 1) shared = std::make_shared<JsonArray>(*shared);
  shared->push_back(std::move(value));
}

const std::string& Json::where() const {
  static const std::string none;
  return origin_ ? origin_->where : none;
}

void Json::set_where(std::string where) {
  set_origin(std::make_shared<const Origin>(Origin{std::move(where), nullptr}));
}

std::shared_ptr<const Json::Asked> Json::remember_asked() {
  const auto asked = std::make_shared<Asked>();
  set_origin(std::make_shared<const Origin>(Origin{where(), asked}));
  return asked;
}

// Objects below get their own path, so that a message deep inside still says where it stands. A
// path stops growing at some length: else a file of long keys above many objects takes their
// product.
void Json::set_origin(std::shared_ptr<const Origin> origin) {
  origin_ = std::move(origin);
  if (!is_object()) return;
  for (auto& [key, value] : **std::get_if<6>(&value_)) {
    if (!value.is_object()) continue;
    if (origin_->where.size() > kLongPath) {
      value.set_origin(origin_);
      continue;
    }
    value.set_origin(std::make_shared<const Origin>(
        Origin{fmt::format("{}: {}", origin_->where, std::string_view(key).substr(0, kShown)),
               origin_->asked}));
  }
}

std::string Json::describe() const {
  if (is_null()) return "null";
  if (is_bool()) return as_bool() ? "true" : "false";
  if (is_int()) return fmt::format("the integer {}", as_int());
  if (is_double()) return fmt::format("the number {}", as_double());
  if (is_array()) return fmt::format("a list of {}", as_array().size());
  if (is_object()) return "an object";
  return fmt::format("a string (\"{}\")", as_string().substr(0, kShown));
}

Failure Json::wrong_type(std::string_view key, const char* expected, const Json& found) const {
  return fail(ErrorCode::kCorrupt, fmt::format("{}: {}: expected {}, found {}", where(), key,
                                               expected, found.describe()));
}

Result<const Json*> Json::member(std::string_view key) const {
  if (const Json* v = find_set(key)) return v;
  return fail(ErrorCode::kCorrupt, fmt::format("{}: key \"{}\" is missing", where(), key));
}

Result<int64_t> Json::get_int(std::string_view key) const {
  NIBBLE_ASSIGN(const Json* v, member(key));
  if (v->is_int()) return v->as_int();
  // Some exporters write 4.0; beyond 2^53 a double no longer says which integer was meant.
  constexpr double kExact = 9007199254740992.0;
  if (v->is_double() && std::fabs(v->as_double()) <= kExact &&
      v->as_double() == std::trunc(v->as_double())) {
    return static_cast<int64_t>(v->as_double());
  }
  return wrong_type(key, "an integer", *v);
}
Result<int64_t> Json::get_int_or(std::string_view key, int64_t fallback) const {
  return find_set(key) == nullptr ? Result<int64_t>(fallback) : get_int(key);
}
Result<double> Json::get_double(std::string_view key) const {
  NIBBLE_ASSIGN(const Json* v, member(key));
  if (v->is_number()) return v->as_double();
  return wrong_type(key, "a number", *v);
}
Result<double> Json::get_double_or(std::string_view key, double fallback) const {
  return find_set(key) == nullptr ? Result<double>(fallback) : get_double(key);
}
Result<bool> Json::get_bool_or(std::string_view key, bool fallback) const {
  const Json* v = find_set(key);
  if (v == nullptr) return fallback;
  if (v->is_bool()) return v->as_bool();
  return wrong_type(key, "true or false", *v);
}
Result<std::string> Json::get_string(std::string_view key) const {
  NIBBLE_ASSIGN(const Json* v, member(key));
  if (v->is_string()) return v->as_string();
  return wrong_type(key, "a string", *v);
}
Result<std::string> Json::get_string_or(std::string_view key, std::string fallback) const {
  return find_set(key) == nullptr ? Result<std::string>(std::move(fallback)) : get_string(key);
}
Result<std::vector<std::string>> Json::get_strings_or_empty(std::string_view key) const {
  std::vector<std::string> out;
  const Json* v = find_set(key);
  if (v == nullptr) return out;
  if (!v->is_array()) return wrong_type(key, "a list of strings", *v);
  for (const Json& item : v->as_array()) {
    if (!item.is_string()) return wrong_type(key, "a list of strings", item);
    out.push_back(item.as_string());
  }
  return out;
}

std::string Json::dump(int indent) const {
  return to_nlohmann(*this).dump(indent, ' ', false,
                                 nlohmann::ordered_json::error_handler_t::replace);
}

Result<Json> parse_json(std::string_view text, std::string_view where, const JsonLimits& limits) {
  if (text.size() > limits.max_bytes) {
    return fail(ErrorCode::kCorrupt, fmt::format("{}: {} bytes of JSON, more than the {} allowed",
                                                 where, text.size(), limits.max_bytes));
  }
  // The parser underneath would take it for the end, and what follows would never be looked at.
  if (const size_t zero = text.find('\0'); zero != text.npos) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: not valid JSON at byte {}: a zero byte", where, zero + 1));
  }
  Builder builder(where, limits);
  nlohmann::json::sax_parse(text.begin(), text.end(), &builder);
  NIBBLE_ASSIGN(Json json, builder.take());
  json.set_where(std::string(where));
  return json;
}

}  // namespace nibble::base
