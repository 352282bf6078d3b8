// Python's two ways to format: "%d" % value and "{:d}".format(value).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "text/jinja_filters.h"
#include "text/jinja_operators.h"
#include "text/jinja_unicode.h"

namespace nibble::text::jinja {
namespace {

constexpr int64_t kMaxPrecision = 400;  // digits after the point; a double has no more to say

// How one value is to be written: [[fill]align][sign][#][0][width][grouping][.precision][type]
struct Spec {
  char32_t fill = ' ';
  char align = 0;  // < > ^ =
  char sign = '-';
  bool alternate = false;
  int64_t width = 0;
  char grouping = 0;  // , _
  int64_t precision = -1;
  char type = 0;
};

std::string padded(Budget& budget, std::string_view text, const Spec& spec, char align) {
  const int64_t missing = spec.width - static_cast<int64_t>(count_code_points(text));
  if (missing <= 0) return std::string(text);
  budget.make(static_cast<size_t>(missing) * 4);
  int64_t left = 0;
  if (align == '>') left = missing;
  if (align == '^') left = missing / 2;
  std::string out;
  for (int64_t i = 0; i < left; ++i) append_code_point(out, spec.fill);
  out += text;
  for (int64_t i = left; i < missing; ++i) append_code_point(out, spec.fill);
  return out;
}

// A sign and digits in their width; with align '=' the fill stands between the two.
std::string padded_number(Budget& budget, std::string_view sign, std::string_view digits,
                          const Spec& spec) {
  if (spec.align != '=') {
    return padded(budget, std::string(sign) + std::string(digits), spec,
                  spec.align != 0 ? spec.align : '>');
  }
  Spec inside = spec;
  inside.width -= static_cast<int64_t>(sign.size());
  return std::string(sign) + padded(budget, digits, inside, '>');
}

std::string sign_of(bool negative, const Spec& spec) {
  if (negative) return "-";
  return spec.sign == '-' ? "" : std::string(1, spec.sign);
}

// Separators into the whole part of a run of digits.
std::string grouped(std::string digits, char separator, size_t every) {
  if (separator == 0) return digits;
  size_t end = digits.find_first_not_of("0123456789abcdefABCDEF");
  if (end == digits.npos) end = digits.size();
  for (size_t at = end; at > every; at -= every) digits.insert(at - every, 1, separator);
  return digits;
}

std::string format_integer(Budget& budget, int64_t v, const Spec& spec) {
  const uint64_t magnitude = v < 0 ? 0 - static_cast<uint64_t>(v) : static_cast<uint64_t>(v);
  std::string digits;
  std::string_view prefix;
  switch (spec.type) {
    case 'x':
      digits = fmt::format("{:x}", magnitude);
      prefix = "0x";
      break;
    case 'X':
      digits = fmt::format("{:X}", magnitude);
      prefix = "0X";
      break;
    case 'o':
      digits = fmt::format("{:o}", magnitude);
      prefix = "0o";
      break;
    case 'b':
      digits = fmt::format("{:b}", magnitude);
      prefix = "0b";
      break;
    default:
      digits = std::to_string(magnitude);
      break;
  }
  digits = grouped(std::move(digits), spec.grouping, prefix.empty() ? 3 : 4);
  std::string sign = sign_of(v < 0, spec);
  if (spec.alternate) sign += prefix;
  return padded_number(budget, sign, digits, spec);
}

// %g, which drops trailing zeros; Python writes as C does.
std::string general(double v, int64_t precision, bool alternate) {
  return alternate ? fmt::format("{:#.{}g}", v, precision) : fmt::format("{:.{}g}", v, precision);
}

std::string format_real(Budget& budget, double v, const Spec& spec) {
  const double magnitude = std::fabs(v);
  const int64_t precision = spec.precision < 0 ? 6 : std::min(spec.precision, kMaxPrecision);
  std::string digits;
  const char type = static_cast<char>(spec.type | 0x20);
  if (!std::isfinite(v)) {
    digits = std::isnan(v) ? "nan" : "inf";
    if (spec.type == '%') digits += '%';
  } else if (spec.type == 0) {
    digits = spec.precision < 0 ? float_repr(magnitude)
                                : general(magnitude, std::max<int64_t>(precision, 1), false);
    if (spec.precision >= 0 && digits.find_first_of(".e") == digits.npos) digits += ".0";
  } else if (spec.type == '%') {
    digits = fmt::format("{:.{}f}%", magnitude * 100, precision);
  } else if (type == 'f') {
    digits = fmt::format("{:.{}f}", magnitude, precision);
  } else if (type == 'e') {
    digits = fmt::format("{:.{}e}", magnitude, precision);
  } else {
    digits = general(magnitude, std::max<int64_t>(precision, 1), spec.alternate);
  }
  if (spec.type == 'E' || spec.type == 'F' || spec.type == 'G') digits = to_upper(digits);
  digits = grouped(std::move(digits), spec.grouping, 3);
  const bool negative = std::signbit(v) && !std::isnan(v);
  return padded_number(budget, sign_of(negative, spec), digits, spec);
}

// The first `precision` code points, in the width.
std::string format_text(Budget& budget, std::string_view text, const Spec& spec) {
  if (spec.precision >= 0)
    text = text.substr(0, byte_of(text, static_cast<size_t>(spec.precision)));
  return padded(budget, text, spec, spec.align != 0 ? spec.align : '<');
}

int64_t read_number(std::string_view s, size_t& at) {
  int64_t n = 0;
  while (at < s.size() && s[at] >= '0' && s[at] <= '9') {
    n = std::min<int64_t>(n * 10 + (s[at++] - '0'), int64_t{1} << 40);
  }
  return n;
}

// -- percent --

// Hands out the values of "..." % values.
class PercentValues {
 public:
  PercentValues(const Value& values) : values_(values) {}

  Value next() {
    const size_t i = taken_++;
    if (values_.is_tuple()) {
      if (i < values_.items().size()) return values_.items()[i];
    } else if (i == 0) {
      return values_;
    }
    raise("not enough arguments for format string");
  }
  Value named(Interpreter& in, std::string_view name) {
    if (!values_.is_dict()) raise("format requires a mapping");
    const Value* value = values_.dict().find(name);
    if (value == nullptr) raise(fmt::format("the format names '{}', which is not given", name));
    (void)in;
    return *value;
  }
  void check_all_used() const {
    // What can be subscripted might be meant for %(name)s, so it may stay unused.
    const bool subscripted =
        values_.is_dict() || values_.is_list() || values_.is_range() || values_.is_undefined();
    const bool left =
        values_.is_tuple() ? taken_ < values_.items().size() : taken_ == 0 && !subscripted;
    if (left) raise("not all arguments converted during string formatting");
  }

 private:
  const Value& values_;
  size_t taken_ = 0;
};

std::string percent_value(Interpreter& in, const Value& value, Spec spec) {
  Budget& budget = in.budget();
  const bool is_text = spec.type == 's' || spec.type == 'r' || spec.type == 'a';
  if (is_text) {
    if (spec.align == '=') spec.align = 0;
    if (spec.align == 0) spec.align = '>';
    spec.fill = ' ';
    return format_text(budget, spec.type == 's' ? to_text(budget, value) : repr(budget, value),
                       spec);
  }
  require_defined(value);
  if (spec.type == 'c') {
    if (value.is_string() && value.string().length == 1)
      return format_text(budget, value.bytes(), spec);
    raise_unsupported("%c of anything but one character");
  }
  if (!value.is_number()) {
    raise(
        fmt::format("%{} format: a real number is required, not {}", spec.type, type_name(value)));
  }
  if (std::string_view("diuxXo").find(spec.type) != std::string_view::npos) {
    if (value.is_float() && (spec.type == 'x' || spec.type == 'X' || spec.type == 'o')) {
      raise(fmt::format("%{} format: an integer is required, not float", spec.type));
    }
    if (spec.precision >= 0) raise_unsupported("a precision in the format of an integer");
    if (value.is_float() && !(std::fabs(value.real()) < 9.2e18)) {
      raise_unsupported("an integer beyond 64 bits (in a format)");
    }
    const int64_t whole = value.is_float() ? static_cast<int64_t>(value.real()) : value.integer();
    return format_integer(budget, whole, spec);
  }
  return format_real(budget, value.real(), spec);
}

// -- braces --

Spec parse_spec(std::string_view s) {
  Spec spec;
  size_t at = 0;
  const auto is_align = [&](size_t i) {
    return i < s.size() && std::string_view("<>=^").find(s[i]) != std::string_view::npos;
  };
  if (!s.empty()) {
    size_t after_fill = 0;
    const char32_t fill = next_code_point(s, after_fill);
    if (is_align(after_fill)) {
      spec.fill = fill;
      spec.align = s[after_fill];
      at = after_fill + 1;
    } else if (is_align(0)) {
      spec.align = s[0];
      at = 1;
    }
  }
  const auto take = [&](std::string_view any) -> char {
    if (at < s.size() && any.find(s[at]) != any.npos) return s[at++];
    return 0;
  };
  if (const char sign = take("+- ")) spec.sign = sign;
  spec.alternate = take("#") != 0;
  if (take("0") != 0 && spec.align == 0) {
    spec.align = '=';
    spec.fill = '0';
  }
  spec.width = read_number(s, at);
  spec.grouping = take(",_");
  if (take(".") != 0) spec.precision = read_number(s, at);
  spec.type = take("bcdeEfFgGnosxX%");
  if (at != s.size()) raise(fmt::format("the format '{}' is not one that Python knows", s));
  if (spec.type == 'n' || spec.type == 'c') {
    raise_unsupported(fmt::format("the format type '{}'", spec.type));
  }
  return spec;
}

std::string format_value(Interpreter& in, const Value& value, std::string_view written) {
  Budget& budget = in.budget();
  if (written.empty()) return to_text(budget, value);
  const Spec spec = parse_spec(written);
  const bool real_type = std::string_view("eEfFgG%").find(spec.type) != std::string_view::npos;
  if (value.is_float() || (value.is_number() && spec.type != 0 && real_type)) {
    if (spec.type != 0 && !real_type) {
      raise(fmt::format("unknown format code '{}' for object of type 'float'", spec.type));
    }
    return format_real(budget, value.real(), spec);
  }
  if (value.is_integral()) {
    if (spec.type == 's') raise("unknown format code 's' for object of type 'int'");
    return format_integer(budget, value.integer(), spec);
  }
  if (!value.is_string()) {
    raise(fmt::format("unsupported format string passed to {}.__format__", type_name(value)));
  }
  if (spec.type != 0 && spec.type != 's') {
    raise(fmt::format("unknown format code '{}' for object of type 'str'", spec.type));
  }
  if (spec.align == '=') raise_unsupported("the format '=' or '0' of a string");
  return format_text(budget, value.bytes(), spec);
}

class BraceFormat {
 public:
  BraceFormat(Interpreter& in, const Arguments& arguments) : in_(in), arguments_(arguments) {}

  std::string run(std::string_view format, int depth = 0) {
    if (depth > 2) raise("Max string recursion exceeded");
    std::string out;
    for (size_t at = 0; at < format.size();) {
      const char c = format[at++];
      const bool doubled = at < format.size() && format[at] == c;
      if (c != '{' && c != '}') {
        out += c;
      } else if (doubled) {
        out += c;
        ++at;
      } else if (c == '}') {
        raise("Single '}' encountered in format string");
      } else {
        out += field(format, at, depth);
      }
      if (out.size() > in_.budget().limits().one_value) in_.budget().make(out.size());
    }
    return out;
  }

 private:
  // One {name!conversion:spec}, `at` behind its brace.
  std::string field(std::string_view format, size_t& at, int depth) {
    in_.budget().step();
    const size_t begin = at;
    int open = 1;
    while (at < format.size() && open > 0) {
      if (format[at] == '{') ++open;
      if (format[at] == '}') --open;
      ++at;
    }
    if (open > 0) raise("expected '}' before end of string");
    const std::string_view inside = format.substr(begin, at - begin - 1);
    const size_t name_end = std::min(inside.find_first_of("!:"), inside.size());
    Value value = lookup(inside.substr(0, name_end));
    std::string_view rest = inside.substr(name_end);
    if (!rest.empty() && rest[0] == '!') {
      if (rest.size() < 2 || (rest.size() > 2 && rest[2] != ':'))
        raise("expected ':' after conversion");
      value = converted(value, rest[1]);
      rest.remove_prefix(2);
    }
    if (!rest.empty()) rest.remove_prefix(1);
    return format_value(in_, value, run(rest, depth + 1));
  }

  Value converted(const Value& value, char how) {
    if (how == 's') return in_.string(to_text(in_.budget(), value));
    if (how == 'r') return in_.string(repr(in_.budget(), value));
    raise_unsupported(fmt::format("the conversion '!{}' of a format", how));
  }

  // name, 0 or nothing, then .attribute and [key] in any order.
  Value lookup(std::string_view path) {
    const size_t end = std::min(path.find_first_of(".["), path.size());
    Value value = first(path.substr(0, end));
    path.remove_prefix(end);
    while (!path.empty()) {
      if (path[0] == '.') {
        const size_t stop = std::min(path.find_first_of(".[", 1), path.size());
        value = attribute_of(in_, value, path.substr(1, stop - 1));
        path.remove_prefix(stop);
      } else {
        const size_t stop = path.find(']');
        if (path[0] != '[' || stop == path.npos) raise("Missing ']' in format string");
        const std::string_view key = path.substr(1, stop - 1);
        const auto number = number_of(key);
        value = item_of(in_, value, number ? Value(*number) : in_.string(std::string(key)));
        path.remove_prefix(stop + 1);
      }
    }
    return value;
  }

  static std::optional<int64_t> number_of(std::string_view s) {
    size_t at = 0;
    const int64_t n = read_number(s, at);
    if (s.empty() || at != s.size()) return std::nullopt;
    return n;
  }

  Value first(std::string_view name) {
    const auto number =
        name.empty() ? std::optional<int64_t>(static_cast<int64_t>(next_++)) : number_of(name);
    if (number) {
      if (static_cast<size_t>(*number) >= arguments_.positional.size()) {
        raise(fmt::format("Replacement index {} out of range for positional args tuple", *number));
      }
      return arguments_.positional[static_cast<size_t>(*number)];
    }
    for (const auto& [known, value] : arguments_.named) {
      if (known == name) return value;
    }
    raise(fmt::format("the format names '{}', which is not given", name));
  }

  Interpreter& in_;
  const Arguments& arguments_;
  size_t next_ = 0;
};

// The flags, width and precision after a % (and after a name in parentheses).
Spec percent_spec(std::string_view format, size_t& at, PercentValues& values) {
  Spec spec;
  bool zero = false;
  for (; at < format.size(); ++at) {
    const char c = format[at];
    if (c == '-')
      spec.align = '<';
    else if (c == '+')
      spec.sign = '+';
    else if (c == ' ')
      spec.sign = spec.sign == '+' ? '+' : ' ';
    else if (c == '#')
      spec.alternate = true;
    else if (c == '0')
      zero = true;
    else
      break;
  }
  const auto number = [&]() -> int64_t {
    if (at < format.size() && format[at] == '*') {
      ++at;
      const Value v = values.next();
      if (!v.is_integral()) raise("* wants int");
      if (v.integer() < 0) raise_unsupported("a negative width in a format");
      return std::min<int64_t>(v.integer(), int64_t{1} << 40);
    }
    return read_number(format, at);
  };
  spec.width = number();
  if (at < format.size() && format[at] == '.') {
    ++at;
    spec.precision = number();
  }
  while (at < format.size() && std::string_view("hlL").find(format[at]) != std::string_view::npos)
    ++at;
  if (zero && spec.align == 0) {
    spec.align = '=';
    spec.fill = '0';
  }
  if (at >= format.size()) raise("incomplete format");
  spec.type = format[at++];
  return spec;
}

}  // namespace

std::string percent_format(Interpreter& in, std::string_view format, const Value& values) {
  PercentValues source(values);
  std::string out;
  for (size_t at = 0; at < format.size();) {
    const char c = format[at++];
    if (c != '%') {
      out += c;
      continue;
    }
    in.budget().step();
    std::optional<Value> named;
    if (at < format.size() && format[at] == '(') {
      const size_t close = format.find(')', at);
      if (close == format.npos) raise("incomplete format key");
      named = source.named(in, format.substr(at + 1, close - at - 1));
      at = close + 1;
    }
    const Spec spec = percent_spec(format, at, source);
    if (spec.type == '%') {
      out += '%';
      continue;
    }
    if (std::string_view("sradiuxXoeEfFgGc").find(spec.type) == std::string_view::npos) {
      raise(fmt::format("unsupported format character '{}'", spec.type));
    }
    out += percent_value(in, named ? *named : source.next(), spec);
    if (out.size() > in.budget().limits().one_value) in.budget().make(out.size());
  }
  source.check_all_used();
  return out;
}

std::string brace_format(Interpreter& in, std::string_view format, const Arguments& arguments) {
  return BraceFormat(in, arguments).run(format);
}

}  // namespace nibble::text::jinja
