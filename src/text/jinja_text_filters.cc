// Filters whose value is one string or number.
#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <limits>

#include "text/jinja_filters.h"
#include "text/jinja_operators.h"
#include "text/jinja_unicode.h"

namespace nibble::text::jinja {
namespace {

// A string as it is (still marked safe if it was), anything else as its text: soft_str.
struct Soft {
  std::string text;
  bool markup;
};
Soft soft(Interpreter& in, const Value& v) {
  return {to_text(in.budget(), v), v.is_string() && v.string().markup};
}

Value trim(Interpreter& in, const Value& value, const Arguments& args) {
  const Soft s = soft(in, value);
  std::optional<std::string_view> chars;
  if (const Value* given = args.get(0); given != nullptr && !given->is_none()) {
    chars = args.string(0);
    in.budget().walk(s.text.size() + chars->size());
  }
  return in.string(std::string(strip(s.text, chars, true, true)), s.markup);
}

Value upper(Interpreter& in, const Value& value, const Arguments&) {
  const Soft s = soft(in, value);
  return in.string(to_upper(s.text), s.markup);
}
Value lower(Interpreter& in, const Value& value, const Arguments&) {
  const Soft s = soft(in, value);
  return in.string(to_lower(s.text), s.markup);
}
Value capitalize(Interpreter& in, const Value& value, const Arguments&) {
  const Soft s = soft(in, value);
  return in.string(to_capitalized(s.text), s.markup);
}

// Jinja's own title: words begin after white space, hyphens and opening brackets only.
Value title(Interpreter& in, const Value& value, const Arguments&) {
  const std::string text = soft(in, value).text;
  std::string out;
  std::string word;
  const auto flush = [&] {
    if (word.empty()) return;
    const size_t first = byte_of(word, 1);
    out += to_upper(std::string_view(word).substr(0, first));
    out += to_lower(std::string_view(word).substr(first));
    word.clear();
  };
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    const bool splits = is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
    if (splits) flush();
    append_code_point(splits ? out : word, c);
  }
  flush();
  return in.string(std::move(out));
}

Value replace(Interpreter& in, const Value& value, const Arguments& args) {
  const std::string from = to_text(in.budget(), args.at(0));
  const std::string to = to_text(in.budget(), args.at(1));
  const Value* count = args.get(2);
  const int64_t times = count == nullptr || count->is_none() ? -1 : args.integer(2, -1);
  return in.string(replaced(in.budget(), to_text(in.budget(), value), from, to, times));
}

Value indent(Interpreter& in, const Value& value, const Arguments& args) {
  require_defined(value);
  if (!value.is_string()) raise("the filter indent needs a string");
  const Value* width = args.get(0);
  std::string pad;
  if (width != nullptr && width->is_string()) {
    pad = width->bytes();
  } else {
    const int64_t n = args.integer(0, 4);
    in.budget().make(n > 0 ? static_cast<size_t>(n) : 0);
    if (n > 0) pad.assign(static_cast<size_t>(n), ' ');
  }
  const bool first = args.truth(in.budget(), 1, false);
  const bool blank = args.truth(in.budget(), 2, false);
  const std::string text = value.bytes() + "\n";
  std::string out;
  size_t number = 0;
  for (std::string_view line : split_lines(text, false)) {
    const bool padded = number == 0 ? first : blank || !line.empty();
    if (number++ > 0) out += '\n';
    if (padded) out += pad;
    out += line;
    if (out.size() > in.budget().limits().one_value) in.budget().make(out.size());
  }
  return in.string(std::move(out), value.string().markup);
}

Value string_filter(Interpreter& in, const Value& value, const Arguments&) {
  return value.is_string() ? value : in.string(to_text(in.budget(), value));
}

Value safe(Interpreter& in, const Value& value, const Arguments&) {
  return in.string(to_text(in.budget(), value), true);
}

Value escape(Interpreter& in, const Value& value, const Arguments&) {
  if (value.is_string() && value.string().markup) return value;
  return in.string(html_escaped(to_text(in.budget(), value)), true);
}

Value force_escape(Interpreter& in, const Value& value, const Arguments&) {
  return in.string(html_escaped(to_text(in.budget(), value)), true);
}

Value default_filter(Interpreter& in, const Value& value, const Arguments& args) {
  const bool missing =
      value.is_undefined() || (args.truth(in.budget(), 1, false) && !truth(in.budget(), value));
  if (!missing) return value;
  return args.get(0) != nullptr ? args.at(0) : in.string("");
}

Value center(Interpreter& in, const Value& value, const Arguments& args) {
  const Soft s = soft(in, value);
  return in.string(centered(in.budget(), s.text, args.integer(0, 80), U' '), s.markup);
}

Value truncate(Interpreter& in, const Value& value, const Arguments& args) {
  const std::string end = args.get(2) != nullptr ? args.string(2) : "...";
  const int64_t length = args.integer(0, 255);
  const int64_t leeway = args.get(3) == nullptr || args.at(3).is_none() ? 5 : args.integer(3, 5);
  const auto end_size = static_cast<int64_t>(count_code_points(end));
  if (length < end_size || leeway < 0) raise("the filter truncate got a length below its end mark");
  const int64_t size = length_of(value);
  if (size <= length || size - length <= leeway) return value;
  if (!value.is_string()) raise("the filter truncate cannot shorten anything but a string");
  const std::string& text = value.bytes();
  std::string kept = text.substr(0, byte_of(text, static_cast<size_t>(length - end_size)));
  if (!args.truth(in.budget(), 1, false)) {
    if (const size_t space = kept.rfind(' '); space != kept.npos) kept.resize(space);
  }
  return in.string(kept + end);
}

Value word_count(Interpreter& in, const Value& value, const Arguments&) {
  const std::string text = soft(in, value).text;
  int64_t words = 0;
  bool inside = false;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    const bool part = c == '_' || is_alpha(c) || is_numeric(c);
    if (part && !inside) ++words;
    inside = part;
  }
  return Value(words);
}

Value format_filter(Interpreter& in, const Value& value, const Arguments& args) {
  const Soft s = soft(in, value);
  if (s.markup) raise_unsupported("the filter format on a string marked safe");
  if (!args.positional.empty() && !args.named.empty()) {
    raise("the filter format takes positional or named arguments, not both");
  }
  if (args.named.empty()) {
    const Value tuple = make_tuple(in.budget(), args.positional);
    return in.string(percent_format(in, s.text, tuple));
  }
  Dict named;
  for (const auto& [name, v] : args.named) named.set(in.string(name), v);
  return in.string(percent_format(in, s.text, make_dict(in.budget(), std::move(named))));
}

// int(text, base), as Python reads it; nothing if the text is no integer.
std::optional<int64_t> parse_integer(std::string_view text, int64_t base) {
  std::string digits;
  std::string_view body = strip(text, std::nullopt, true, true);
  bool negative = false;
  if (!body.empty() && (body[0] == '+' || body[0] == '-')) {
    negative = body[0] == '-';
    body.remove_prefix(1);
  }
  if (body.size() > 2 && body[0] == '0') {
    const char mark = static_cast<char>(body[1] | 0x20);
    const int64_t marked = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
    if (marked != 0 && (base == marked || base == 0)) {
      base = marked;
      body.remove_prefix(body[2] == '_' ? 3 : 2);
    }
  }
  if (base == 0) base = 10;
  for (size_t i = 0; i < body.size(); ++i) {
    const bool between = i > 0 && i + 1 < body.size() && body[i - 1] != '_';
    if (body[i] == '_' && between) continue;
    digits += body[i];
  }
  if (digits.empty() || digits[0] == '-') return std::nullopt;
  if (negative) digits.insert(digits.begin(), '-');
  int64_t value = 0;
  const char* end = digits.data() + digits.size();
  const auto result = std::from_chars(digits.data(), end, value, static_cast<int>(base));
  if (result.ptr != end) return std::nullopt;
  if (result.ec == std::errc::result_out_of_range) {
    raise_unsupported("an integer beyond 64 bits (read by the filter int)");
  }
  if (result.ec != std::errc{}) return std::nullopt;
  return value;
}

// float(text); nothing if the text is no number.
std::optional<double> parse_real(std::string_view text) {
  std::string digits;
  const std::string_view body = strip(text, std::nullopt, true, true);
  for (size_t i = 0; i < body.size(); ++i) {
    const auto is_digit_at = [&](size_t k) {
      return k < body.size() && body[k] >= '0' && body[k] <= '9';
    };
    if (body[i] == '_' && i > 0 && is_digit_at(i - 1) && is_digit_at(i + 1)) continue;
    digits += body[i];
  }
  if (!digits.empty() && digits[0] == '+') {
    digits.erase(0, 1);
    if (!digits.empty() && digits[0] == '-') return std::nullopt;
  }
  double value = 0;
  const char* end = digits.data() + digits.size();
  const auto result = std::from_chars(digits.data(), end, value);
  if (result.ptr != end || digits.empty() || digits.find('(') != digits.npos) return std::nullopt;
  if (result.ec == std::errc::result_out_of_range) {
    // Too large is infinite, too small is zero, as Python has it.
    const bool tiny = digits.find("e-") != digits.npos || digits.find("E-") != digits.npos;
    const double magnitude = tiny ? 0.0 : std::numeric_limits<double>::infinity();
    return digits[0] == '-' ? -magnitude : magnitude;
  }
  return value;
}

std::optional<int64_t> truncated(double v) {
  if (!std::isfinite(v)) return std::nullopt;
  if (std::fabs(v) >= 9.2e18) {
    raise_unsupported("an integer beyond 64 bits (made by the filter int)");
  }
  return static_cast<int64_t>(v);
}

Value int_filter(Interpreter& in, const Value& value, const Arguments& args) {
  require_defined(value);
  in.budget().step();
  const int64_t base = args.integer(1, 10);
  const Value fallback = args.get(0) != nullptr ? args.at(0) : Value(0);
  std::optional<int64_t> result;
  if (value.is_string()) {
    if (base == 0 || (base >= 2 && base <= 36)) result = parse_integer(value.bytes(), base);
    if (!result) {
      if (const std::optional<double> real = parse_real(value.bytes())) result = truncated(*real);
    }
  } else if (value.is_integral()) {
    result = value.integer();
  } else if (value.is_float()) {
    result = truncated(value.real());
  }
  return result ? Value(*result) : fallback;
}

Value float_filter(Interpreter&, const Value& value, const Arguments& args) {
  require_defined(value);
  if (value.is_number()) return Value(value.real());
  if (value.is_string()) {
    if (const std::optional<double> real = parse_real(value.bytes())) return Value(*real);
  }
  return args.get(0) != nullptr ? args.at(0) : Value(0.0);
}

Value abs_filter(Interpreter&, const Value& value, const Arguments&) {
  require_defined(value);
  if (value.is_float()) return Value(std::fabs(value.real()));
  if (!value.is_integral())
    raise(fmt::format("bad operand type for abs(): '{}'", type_name(value)));
  return value.integer() < 0 ? negative(value) : Value(value.integer());
}

// round(x, n) of Python: the decimal nearest to the exact binary value, halves to even.
double rounded(double x, int64_t places) {
  if (!std::isfinite(x) || places > 300) return x;
  if (places < 0) {
    if (places < -308) return std::copysign(0.0, x);
    const double scale = std::pow(10.0, static_cast<double>(-places));
    return std::nearbyint(x / scale) * scale;
  }
  const std::string text = fmt::format("{:.{}f}", x, places);
  double value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

Value round_filter(Interpreter&, const Value& value, const Arguments& args) {
  require_defined(value);
  if (!value.is_number()) raise(fmt::format("type {} cannot be rounded", type_name(value)));
  const int64_t places = args.integer(0, 0);
  const std::string method = args.get(1) != nullptr ? args.string(1) : "common";
  if (method == "common") {
    if (value.is_float()) return Value(rounded(value.real(), places));
    if (places >= 0) return Value(value.integer());
    raise_unsupported("rounding an integer to tens");
  }
  if (method != "ceil" && method != "floor") raise("method must be common, ceil or floor");
  const double scale = std::pow(10.0, static_cast<double>(places));
  const double scaled = value.real() * scale;
  return Value((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

Value url_encode(Interpreter& in, const Value& value, const Arguments&) {
  if (!value.is_string()) raise_unsupported("the filter urlencode on anything but a string");
  std::string out;
  for (char c : value.bytes()) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       std::string_view("_.-~/").find(c) != std::string_view::npos;
    if (plain) {
      out += c;
    } else {
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return in.string(std::move(out));
}

}  // namespace

const FilterRow kTextFilters[] = {
    {"abs", abs_filter, ""},
    {"capitalize", capitalize, ""},
    {"center", center, "width"},
    {"d", default_filter, "default_value boolean"},
    {"default", default_filter, "default_value boolean"},
    {"e", escape, ""},
    {"escape", escape, ""},
    {"float", float_filter, "default"},
    {"forceescape", force_escape, ""},
    {"format", format_filter, "*"},
    {"indent", indent, "width first blank"},
    {"int", int_filter, "default base"},
    {"lower", lower, ""},
    {"replace", replace, "old! new! count"},
    {"round", round_filter, "precision method"},
    {"safe", safe, ""},
    {"string", string_filter, ""},
    {"title", title, ""},
    {"tojson", filter_tojson, "ensure_ascii indent separators sort_keys"},
    {"trim", trim, "chars"},
    {"truncate", truncate, "length killwords end leeway"},
    {"upper", upper, ""},
    {"urlencode", url_encode, ""},
    {"wordcount", word_count, ""},
    {},
};

}  // namespace nibble::text::jinja
