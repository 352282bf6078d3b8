// Filters, tests, methods and global functions: name -> what it does.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "text/jinja_interpreter.h"

namespace nibble::text::jinja {

// One filter or method: `value|name(parameters)` or `value.name(parameters)`. `parameters` is as in
// Arguments::bind.
struct FilterRow {
  std::string_view name;
  Value (*run)(Interpreter&, const Value& value, const Arguments&);
  const char* parameters;
};
struct TestRow {
  std::string_view name;
  bool (*run)(Interpreter&, const Value& value, const Arguments&);
  const char* parameters;
};

const FilterRow* find_filter(std::string_view name);
const TestRow* find_test(std::string_view name);
// Throws Trouble if there is no such filter or test: kUnsupported if Jinja has it.
void check_filter_exists(std::string_view name, int line);
void check_test_exists(std::string_view name, int line);

// The method or attribute of an object of this type; nothing if its type has none of that name.
// One that Python has and nibble does not is an error; one that would change the object is
// undefined, as in the sandbox.
std::optional<Value> method_of(Interpreter& interpreter, const Value& object,
                               std::string_view name);
// A global function: range, dict, namespace ...; nothing if there is none of that name.
std::optional<Value> global_of(std::string_view name);

// json.dumps as the tojson filter calls it. `indent` is what one level is indented by.
struct JsonStyle {
  std::optional<std::string> indent;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool ascii = false;
  bool sort_keys = false;
};
std::string to_json(Budget& budget, const Value& v, const JsonStyle& style);
Value filter_tojson(Interpreter& interpreter, const Value& value, const Arguments& arguments);

// str.replace, at most `times` times if that is not negative; str.center.
std::string replaced(Budget& budget, std::string_view text, std::string_view from,
                     std::string_view to, int64_t times);
std::string centered(Budget& budget, std::string_view text, int64_t width, char32_t fill);

// "..." % values, and "...".format(...).
std::string percent_format(Interpreter& interpreter, std::string_view format, const Value& values);
std::string brace_format(Interpreter& interpreter, std::string_view format,
                         const Arguments& arguments);

// The rows of jinja_text_filters.cc and jinja_sequence_filters.cc; an empty name ends each.
extern const FilterRow kTextFilters[];
extern const FilterRow kSequenceFilters[];

}  // namespace nibble::text::jinja
