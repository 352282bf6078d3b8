// A JSON document as a value, parsed strictly: duplicate keys, depth and size are checked, the
// order of keys and the difference between integers and reals are kept. (The parser underneath is
// nlohmann-json's SAX reader, private to json.cc.)
//
//   NIBBLE_ASSIGN(Json config, parse_json(text, "config.json"));
//   NIBBLE_ASSIGN(int64_t layers, config.get_int("num_hidden_layers"));
//   // error: config.json: num_hidden_layers: expected an integer, found a string ("30")
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "nibble/result.h"

namespace nibble::base {

class Json;
using JsonArray = std::vector<Json>;
using JsonMember = std::pair<std::string, Json>;
using JsonObject = std::vector<JsonMember>;  // in file order; keys are unique

class Json {
 public:
  Json() = default;  // null
  Json(bool v) : value_(v) {}
  Json(int v) : value_(static_cast<int64_t>(v)) {}
  Json(int64_t v) : value_(v) {}
  Json(double v) : value_(v) {}
  Json(std::string v) : value_(std::move(v)) {}
  Json(std::string_view v) : value_(std::string(v)) {}
  Json(const char* v) : value_(std::string(v)) {}
  Json(JsonArray v);
  Json(JsonObject v);
  static Json array() { return Json(JsonArray{}); }
  static Json object() { return Json(JsonObject{}); }

  bool is_null() const { return value_.index() == 0; }
  bool is_bool() const { return value_.index() == 1; }
  bool is_int() const { return value_.index() == 2; }  // fits int64
  bool is_double() const { return value_.index() == 3; }
  bool is_number() const { return is_int() || is_double(); }
  bool is_string() const { return value_.index() == 4; }
  bool is_array() const { return value_.index() == 5; }
  bool is_object() const { return value_.index() == 6; }

  // Precondition of each: the matching is_...().
  bool as_bool() const { return *std::get_if<1>(&value_); }
  int64_t as_int() const { return *std::get_if<2>(&value_); }
  double as_double() const {
    return is_int() ? static_cast<double>(as_int()) : *std::get_if<3>(&value_);
  }
  const std::string& as_string() const { return *std::get_if<4>(&value_); }
  const JsonArray& as_array() const { return **std::get_if<5>(&value_); }
  const JsonObject& as_object() const { return **std::get_if<6>(&value_); }

  // The member of an object; nullptr if this is no object or has no such key. A key whose value is
  // null counts as absent with find_set().
  const Json* find(std::string_view key) const;
  const Json* find_set(std::string_view key) const;
  void set(std::string key, Json value);  // appends or replaces; makes an object of a null
  void push_back(Json value);             // makes an array of a null

  // Typed members; the error names this document (see set_where), the key, expected and found.
  // The ..._or forms give the default when the key is absent or null, and an error for a wrong
  // type.
  Result<int64_t> get_int(std::string_view key) const;
  Result<int64_t> get_int_or(std::string_view key, int64_t fallback) const;
  Result<double> get_double(std::string_view key) const;
  Result<double> get_double_or(std::string_view key, double fallback) const;
  Result<bool> get_bool_or(std::string_view key, bool fallback) const;
  Result<std::string> get_string(std::string_view key) const;
  Result<std::string> get_string_or(std::string_view key, std::string fallback) const;
  Result<std::vector<std::string>> get_strings_or_empty(std::string_view key) const;

  // Where this document came from, for messages: "config.json", then "config.json: rope_scaling".
  const std::string& where() const;
  void set_where(std::string where);

  // From now on each key that is asked for, in this object or one below it, is remembered as
  // (where(), key), found or not: to know which keys nobody reads. The set is shared; copies of the
  // document remember in it too, until their place is set anew.
  using Asked = std::set<std::pair<std::string, std::string>>;
  std::shared_ptr<const Asked> remember_asked();

  std::string dump(int indent = -1) const;
  // A short description for messages: `a string ("30")`, `an object`.
  std::string describe() const;

 private:
  struct Origin {
    std::string where;
    std::shared_ptr<Asked> asked;  // null: nothing is remembered
  };
  void set_origin(std::shared_ptr<const Origin> origin);
  Result<const Json*> member(std::string_view key) const;
  Failure wrong_type(std::string_view key, const char* expected, const Json& found) const;

  std::variant<std::monostate, bool, int64_t, double, std::string, std::shared_ptr<JsonArray>,
               std::shared_ptr<JsonObject>>
      value_;
  std::shared_ptr<const Origin> origin_;
};

struct JsonLimits {
  int max_depth = 64;
  size_t max_bytes = size_t{256} << 20;
  size_t max_values = size_t{1} << 25;
};

// Parses strict JSON (UTF-8, no comments, one document). `where` names the file in messages.
Result<Json> parse_json(std::string_view text, std::string_view where,
                        const JsonLimits& limits = {});

}  // namespace nibble::base
