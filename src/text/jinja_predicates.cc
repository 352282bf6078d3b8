// The tests of a template: `value is name(parameters)`.
#include <fmt/format.h>

#include <algorithm>

#include "text/jinja_filters.h"
#include "text/jinja_operators.h"
#include "text/jinja_unicode.h"

namespace nibble::text::jinja {
namespace {

using In = Interpreter;
using Args = Arguments;

bool modulo_is(In& in, const Value& value, const Value& divisor, int64_t remainder) {
  return equal(in.budget(), binary(in, "%", value, divisor), Value(remainder));
}

// str.islower, str.isupper: all cased code points are of that case, and there is one.
bool all_cased(In& in, const Value& value, bool (*wanted)(char32_t)) {
  const std::string text = to_text(in.budget(), value);
  bool any = false;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    if (!is_cased(c)) continue;
    if (!wanted(c)) return false;
    any = true;
  }
  return any;
}

bool iterable(const Value& v) {
  return v.is_undefined() || v.is_string() || v.is_sequence() || v.is_dict() || v.is_range() ||
         v.is_loop();
}
// Has a length and can be subscripted.
bool sequence(const Value& v) {
  return v.is_undefined() || v.is_string() || v.is_list() || v.is_tuple() || v.is_dict() ||
         v.is_range();
}

const TestRow kTests[] = {
    {"boolean", [](In&, const Value& v, const Args&) { return v.is_bool(); }, ""},
    {"callable",
     [](In&, const Value& v, const Args&) {
       return v.is_function() || v.is_macro() || v.is_loop() || v.is_undefined();
     },
     ""},
    {"defined", [](In&, const Value& v, const Args&) { return !v.is_undefined(); }, ""},
    {"divisibleby",
     [](In& in, const Value& v, const Args& a) { return modulo_is(in, v, a.at(0), 0); }, "num!"},
    {"escaped", [](In&, const Value& v, const Args&) { return v.is_string() && v.string().markup; },
     ""},
    {"even", [](In& in, const Value& v, const Args&) { return modulo_is(in, v, Value(2), 0); }, ""},
    {"false", [](In&, const Value& v, const Args&) { return v.is_bool() && !v.boolean(); }, ""},
    {"filter",
     [](In&, const Value& v, const Args&) {
       hash_of(v);  // raises for what cannot be looked up
       return v.is_string() && find_filter(v.bytes()) != nullptr;
     },
     ""},
    {"float", [](In&, const Value& v, const Args&) { return v.is_float(); }, ""},
    {"in", [](In& in, const Value& v, const Args& a) { return contains(in, a.at(0), v); }, "seq!"},
    {"integer", [](In&, const Value& v, const Args&) { return v.is_int(); }, ""},
    {"iterable", [](In&, const Value& v, const Args&) { return iterable(v); }, ""},
    {"lower", [](In& in, const Value& v, const Args&) { return all_cased(in, v, is_lower); }, ""},
    {"mapping", [](In&, const Value& v, const Args&) { return v.is_dict(); }, ""},
    {"none", [](In&, const Value& v, const Args&) { return v.is_none(); }, ""},
    {"number", [](In&, const Value& v, const Args&) { return v.is_number(); }, ""},
    {"odd", [](In& in, const Value& v, const Args&) { return modulo_is(in, v, Value(2), 1); }, ""},
    {"sameas", [](In&, const Value& v, const Args& a) { return v.same_as(a.at(0)); }, "other!"},
    {"sequence", [](In&, const Value& v, const Args&) { return sequence(v); }, ""},
    {"string", [](In&, const Value& v, const Args&) { return v.is_string(); }, ""},
    {"test",
     [](In&, const Value& v, const Args&) {
       hash_of(v);
       return v.is_string() && find_test(v.bytes()) != nullptr;
     },
     ""},
    {"true", [](In&, const Value& v, const Args&) { return v.is_bool() && v.boolean(); }, ""},
    {"undefined", [](In&, const Value& v, const Args&) { return v.is_undefined(); }, ""},
    {"upper", [](In& in, const Value& v, const Args&) { return all_cased(in, v, is_upper); }, ""},
};

bool compared(In& in, std::string_view op, const Value& v, const Args& a) {
  return compare(in, op, v, a.at(0));
}
bool eq(In& in, const Value& v, const Args& a) { return compared(in, "==", v, a); }
bool ne(In& in, const Value& v, const Args& a) { return compared(in, "!=", v, a); }
bool gt(In& in, const Value& v, const Args& a) { return compared(in, ">", v, a); }
bool ge(In& in, const Value& v, const Args& a) { return compared(in, ">=", v, a); }
bool lt(In& in, const Value& v, const Args& a) { return compared(in, "<", v, a); }
bool le(In& in, const Value& v, const Args& a) { return compared(in, "<=", v, a); }

const TestRow kComparisons[] = {
    {"!=", ne, "b!"},       {"<", lt, "b!"},           {"<=", le, "b!"}, {"==", eq, "b!"},
    {">", gt, "b!"},        {">=", ge, "b!"},          {"eq", eq, "b!"}, {"equalto", eq, "b!"},
    {"ge", ge, "b!"},       {"greaterthan", gt, "b!"}, {"gt", gt, "b!"}, {"le", le, "b!"},
    {"lessthan", lt, "b!"}, {"lt", lt, "b!"},          {"ne", ne, "b!"},
};

}  // namespace

const TestRow* find_test(std::string_view name) {
  for (const TestRow& row : kTests) {
    if (row.name == name) return &row;
  }
  for (const TestRow& row : kComparisons) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

void check_test_exists(std::string_view name, int line) {
  if (find_test(name) != nullptr) return;
  throw Trouble{ErrorCode::kCorrupt, fmt::format("there is no test named '{}'", name), line};
}

}  // namespace nibble::text::jinja
