#include "text/jinja_operators.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "text/jinja_filters.h"
#include "text/jinja_unicode.h"

namespace nibble::text::jinja {
namespace {

[[noreturn]] void raise_operands(std::string_view op, const Value& a, const Value& b) {
  raise(fmt::format("unsupported operand types for {}: '{}' and '{}'", op, type_name(a),
                    type_name(b)));
}
[[noreturn]] void raise_overflow(std::string_view op) {
  raise_unsupported(fmt::format("an integer beyond 64 bits (made by '{}')", op));
}

// Floored, as Python divides: the remainder has the sign of the divisor.
int64_t floor_divide(int64_t a, int64_t b) {
  if (b == -1) {
    if (a == std::numeric_limits<int64_t>::min()) raise_overflow("//");
    return -a;
  }
  const int64_t quotient = a / b;
  return a % b != 0 && (a % b < 0) != (b < 0) ? quotient - 1 : quotient;
}
int64_t floor_modulo(int64_t a, int64_t b) {
  if (b == -1) return 0;
  const int64_t remainder = a % b;
  return remainder != 0 && (remainder < 0) != (b < 0) ? remainder + b : remainder;
}
double floor_modulo(double a, double b) {
  double remainder = std::fmod(a, b);
  if (remainder != 0 && (remainder < 0) != (b < 0)) remainder += b;
  return remainder == 0 ? std::copysign(0.0, b) : remainder;
}

Value integer_power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  while (true) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) raise_overflow("**");
    exponent >>= 1;
    if (exponent == 0) return Value(result);
    if (__builtin_mul_overflow(base, base, &base)) raise_overflow("**");
  }
}

Value integers(std::string_view op, int64_t a, int64_t b) {
  int64_t result = 0;
  if (op == "+") {
    if (__builtin_add_overflow(a, b, &result)) raise_overflow(op);
    return Value(result);
  }
  if (op == "-") {
    if (__builtin_sub_overflow(a, b, &result)) raise_overflow(op);
    return Value(result);
  }
  if (op == "*") {
    if (__builtin_mul_overflow(a, b, &result)) raise_overflow(op);
    return Value(result);
  }
  if (op == "**") {
    if (b >= 0) return integer_power(a, b);
    if (a == 0) raise("0 cannot be raised to a negative power");
    return Value(std::pow(static_cast<double>(a), static_cast<double>(b)));
  }
  if (b == 0) raise("division by zero");
  if (op == "/") return Value(static_cast<double>(a) / static_cast<double>(b));
  return Value(op == "//" ? floor_divide(a, b) : floor_modulo(a, b));
}

Value reals(std::string_view op, double a, double b) {
  if (op == "+") return Value(a + b);
  if (op == "-") return Value(a - b);
  if (op == "*") return Value(a * b);
  if (op == "**") {
    if (a == 0 && b < 0) raise("0.0 cannot be raised to a negative power");
    if (a < 0 && std::floor(b) != b) raise_unsupported("complex numbers (a root of a negative)");
    const double result = std::pow(a, b);
    if (std::isinf(result) && std::isfinite(a) && std::isfinite(b)) raise("result too large");
    return Value(result);
  }
  if (b == 0) raise("float division by zero");
  if (op == "/") return Value(a / b);
  const double remainder = floor_modulo(a, b);
  return Value(op == "%" ? remainder : std::nearbyint((a - remainder) / b));
}

Value repeated(Interpreter& interpreter, const Value& what, int64_t times) {
  Budget& budget = interpreter.budget();
  const size_t count = times > 0 ? static_cast<size_t>(times) : 0;
  const size_t size = what.is_string() ? what.bytes().size() : what.items().size() * sizeof(Value);
  size_t total = 0;
  if (__builtin_mul_overflow(size, count, &total)) total = std::numeric_limits<size_t>::max();
  budget.make(total);
  if (what.is_string()) {
    std::string out;
    out.reserve(total);
    for (size_t i = 0; i < count && size > 0; ++i) out += what.bytes();
    return interpreter.string(std::move(out), what.string().markup);
  }
  std::vector<Value> items;
  for (size_t i = 0; i < count && size > 0; ++i) {
    items.insert(items.end(), what.items().begin(), what.items().end());
  }
  return make_sequence(budget, what.sequence().kind, std::move(items));
}

Value joined(Interpreter& interpreter, const Value& a, const Value& b) {
  if (a.is_string()) {
    interpreter.budget().make(a.bytes().size() + b.bytes().size());
    const bool markup = a.string().markup || b.string().markup;
    const auto part = [&](const Value& v) {
      return markup && !v.string().markup ? html_escaped(v.bytes()) : v.bytes();
    };
    return interpreter.string(part(a) + part(b), markup);
  }
  std::vector<Value> items = a.items();
  items.insert(items.end(), b.items().begin(), b.items().end());
  return make_sequence(interpreter.budget(), a.sequence().kind, std::move(items));
}

std::string unknown_key(const Value& object, std::string_view key) {
  const std::string_view type = object.is_none() ? "None" : type_name(object);
  return fmt::format("'{}{}' has no attribute '{}'", type, object.is_none() ? "" : " object", key);
}

// Where a slice begins and ends in `size` items, as Python's slice.indices() says.
struct Bounds {
  int64_t start, stop, step;
};
Bounds bounds_of(const Slice& slice, int64_t size) {
  const int64_t step = slice.step.value_or(1);
  if (step == 0) raise("slice step cannot be zero");
  const int64_t low = step < 0 ? -1 : 0;
  const int64_t high = step < 0 ? size - 1 : size;
  const auto placed = [&](std::optional<int64_t> v, int64_t fallback) {
    if (!v) return fallback;
    if (*v < 0) return std::max(*v + size, low);
    return std::min(*v, high);
  };
  return {placed(slice.start, step < 0 ? high : low), placed(slice.stop, step < 0 ? low : high),
          step};
}

template <class Take>
void for_each_in(const Bounds& b, Take take) {
  // Counting avoids running past the ends of int64 with a huge step.
  const auto steps = [&]() -> int64_t {
    if (b.step > 0) return b.start < b.stop ? (b.stop - b.start - 1) / b.step + 1 : 0;
    if (b.step == std::numeric_limits<int64_t>::min()) return b.start > b.stop ? 1 : 0;
    return b.start > b.stop ? (b.start - b.stop - 1) / -b.step + 1 : 0;
  }();
  for (int64_t i = 0; i < steps; ++i) take(static_cast<size_t>(b.start + i * b.step));
}

Value slice_string(Interpreter& interpreter, const Value& object, const Slice& slice) {
  const String& text = object.string();
  const Bounds b = bounds_of(slice, static_cast<int64_t>(text.length));
  interpreter.budget().walk(text.bytes.size());
  std::string out;
  if (b.step == 1) {
    if (b.start < b.stop) {
      const bool ascii = text.length == text.bytes.size();
      const auto byte = [&](int64_t i) {
        return ascii ? static_cast<size_t>(i) : byte_of(text.bytes, static_cast<size_t>(i));
      };
      const size_t begin = byte(b.start);
      out = text.bytes.substr(begin, byte(b.stop) - begin);
    }
  } else {
    interpreter.budget().make(text.length * sizeof(char32_t));
    const std::vector<char32_t> codes = code_points(text.bytes);
    for_each_in(b, [&](size_t i) { append_code_point(out, codes[i]); });
  }
  return interpreter.string(std::move(out), text.markup);
}

}  // namespace

Value binary(Interpreter& interpreter, std::string_view op, const Value& a, const Value& b) {
  require_defined(a);
  if (op == "%" && a.is_string()) {
    if (a.string().markup) raise_unsupported("'%' on a string marked safe");
    return interpreter.string(percent_format(interpreter, a.bytes(), b));
  }
  require_defined(b);
  if (a.is_integral() && b.is_integral()) return integers(op, a.integer(), b.integer());
  if (a.is_number() && b.is_number()) return reals(op, a.real(), b.real());
  if (op == "+") {
    const bool same = (a.is_string() && b.is_string()) || (a.is_list() && b.is_list()) ||
                      (a.is_tuple() && b.is_tuple());
    if (same) return joined(interpreter, a, b);
    if (a.is_string()) {
      raise(fmt::format("can only concatenate str (not \"{}\") to str", type_name(b)));
    }
  }
  if (op == "*") {
    const auto repeats = [](const Value& v) {
      return v.is_string() || v.is_list() || v.is_tuple();
    };
    if (repeats(a) && b.is_integral()) return repeated(interpreter, a, b.integer());
    if (repeats(b) && a.is_integral()) return repeated(interpreter, b, a.integer());
  }
  raise_operands(op, a, b);
}

Value negative(const Value& v) {
  require_defined(v);
  if (v.is_float()) return Value(-v.real());
  if (!v.is_integral()) raise(fmt::format("bad operand type for unary -: '{}'", type_name(v)));
  return integers("-", 0, v.integer());
}

bool contains(Interpreter& interpreter, const Value& container, const Value& item) {
  Budget& budget = interpreter.budget();
  if (container.is_string()) {
    require_defined(item);
    if (!item.is_string()) {
      raise(fmt::format("'in <string>' requires string as left operand, not {}", type_name(item)));
    }
    budget.walk(container.bytes().size() + item.bytes().size());
    return find_bytes(container.bytes(), item.bytes()) != std::string::npos;
  }
  if (container.is_dict()) return container.dict().find(item) != nullptr;
  if (!container.is_undefined() && !container.is_sequence() && !container.is_range()) {
    raise(fmt::format("argument of type '{}' is not iterable", type_name(container)));
  }
  Iterator iterator(budget, container);
  for (Value candidate; iterator.next(budget, candidate);) {
    if (equal(budget, candidate, item)) return true;
  }
  return false;
}

bool compare(Interpreter& interpreter, std::string_view op, const Value& a, const Value& b) {
  Budget& budget = interpreter.budget();
  if (op == "==") return equal(budget, a, b);
  if (op == "!=") return !equal(budget, a, b);
  if (op == "in") return contains(interpreter, b, a);
  if (op == "not in") return !contains(interpreter, b, a);
  if (op == "<") return less(budget, a, b, op);
  if (op == ">") return less(budget, b, a, op);
  // With NaN neither is less, and neither is equal.
  if (op == "<=") return less(budget, a, b, op) || equal(budget, a, b);
  return less(budget, b, a, op) || equal(budget, a, b);
}

Value attribute_of(Interpreter& interpreter, const Value& object, std::string_view name) {
  interpreter.budget().step();
  require_defined(object);
  if (object.is_namespace()) {
    const Value* value = object.ns().attributes.find(name);
    return value != nullptr ? *value : make_undefined(unknown_key(object, name));
  }
  if (std::optional<Value> method = method_of(interpreter, object, name)) return *method;
  if (object.is_dict()) {
    if (const Value* value = object.dict().find(name)) return *value;
  }
  if (name.size() > 4 && name.substr(0, 2) == "__" && name.substr(name.size() - 2) == "__") {
    raise(
        fmt::format("access to attribute '{}' of '{}' object is unsafe", name, type_name(object)));
  }
  return make_undefined(unknown_key(object, name));
}

Value item_of(Interpreter& interpreter, const Value& object, const Value& key) {
  Budget& budget = interpreter.budget();
  budget.step();
  require_defined(object);
  if (object.is_dict()) {
    const bool hashable = !key.is_dict() && (!key.is_sequence() || key.is_tuple());
    if (hashable) {
      if (const Value* value = object.dict().find(key)) return *value;
    }
  } else if (key.is_integral()) {
    const bool indexable =
        object.is_string() || object.is_list() || object.is_tuple() || object.is_range();
    if (indexable) {
      const int64_t size = length_of(object);
      const int64_t i = key.integer() < 0 ? key.integer() + size : key.integer();
      if (i >= 0 && i < size) {
        if (object.is_range()) return Value(object.range().at(i));
        if (!object.is_string()) return object.items()[static_cast<size_t>(i)];
        Slice one;
        one.start = i;
        one.stop = i + 1;
        return slice_of(interpreter, object, one);
      }
    }
  }
  if (key.is_string()) return attribute_of(interpreter, object, key.bytes());
  return make_undefined(fmt::format(
      "{} has no element {}",
      object.is_none() ? "None" : fmt::format("{} object", type_name(object)), repr(budget, key)));
}

Value slice_of(Interpreter& interpreter, const Value& object, const Slice& slice) {
  require_defined(object);
  if (object.is_string()) return slice_string(interpreter, object, slice);
  if (object.is_list() || object.is_tuple()) {
    std::vector<Value> items;
    const Bounds b = bounds_of(slice, static_cast<int64_t>(object.items().size()));
    for_each_in(b, [&](size_t i) { items.push_back(object.items()[i]); });
    const auto kind = object.is_list() ? Sequence::Kind::kList : Sequence::Kind::kTuple;
    return make_sequence(interpreter.budget(), kind, std::move(items));
  }
  if (object.is_range()) {
    const Range& r = object.range();
    const Bounds b = bounds_of(slice, r.size());
    Range part;
    part.start = r.at(b.start);
    part.stop = r.at(b.stop);
    if (__builtin_mul_overflow(r.step, b.step, &part.step) || part.step > kMaxRangeBound ||
        part.step < -kMaxRangeBound) {
      raise_overflow("a slice of a range");
    }
    return Value(std::shared_ptr<const Range>(std::make_shared<Range>(part)));
  }
  raise(fmt::format("'{}' object cannot be sliced", type_name(object)));
}

}  // namespace nibble::text::jinja
