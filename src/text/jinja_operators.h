// Python's operators, subscripts and attributes on template values.
#pragma once

#include <optional>
#include <string_view>

#include "text/jinja_interpreter.h"
#include "text/jinja_value.h"

namespace nibble::text::jinja {

// a op b for + - * / // % **. Integers that would leave 64 bits are an error, not a big number.
Value binary(Interpreter& interpreter, std::string_view op, const Value& a, const Value& b);
Value negative(const Value& v);
// `item in container`.
bool contains(Interpreter& interpreter, const Value& container, const Value& item);
// a op b for == != < <= > >= in "not in".
bool compare(Interpreter& interpreter, std::string_view op, const Value& a, const Value& b);

// object.name: a method or attribute, else the key of a dict, else undefined.
Value attribute_of(Interpreter& interpreter, const Value& object, std::string_view name);
// object[key]: an item, else (for a string key) an attribute, else undefined.
Value item_of(Interpreter& interpreter, const Value& object, const Value& key);
struct Slice {
  std::optional<int64_t> start, stop, step;
};
Value slice_of(Interpreter& interpreter, const Value& object, const Slice& slice);

}  // namespace nibble::text::jinja
