#include "text/jinja_unicode.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace nibble::text::jinja {
namespace {

struct SpecialCase {
  char32_t code;
  char32_t upper[3];
  char32_t title[3];
};
constexpr SpecialCase kSpecialCases[] = {
#define SPECIAL_CASE(code, u0, u1, u2, t0, t1, t2) {code, {u0, u1, u2}, {t0, t1, t2}},
#include "text/jinja_special_case.inc"
#undef SPECIAL_CASE
};

const SpecialCase* special_case(char32_t c) {
  if (c < 0xDF) return nullptr;
  const auto* end = std::end(kSpecialCases);
  const auto* at =
      std::lower_bound(std::begin(kSpecialCases), end, c,
                       [](const SpecialCase& row, char32_t v) { return row.code < v; });
  return at != end && at->code == c ? at : nullptr;
}

void append_up_to_zero(std::string& out, const char32_t (&codes)[3]) {
  for (char32_t c : codes) {
    if (c != 0) append_code_point(out, c);
  }
}

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

void append_upper(std::string& out, char32_t c) {
  if (const SpecialCase* row = special_case(c)) return append_up_to_zero(out, row->upper);
  append_code_point(out, static_cast<char32_t>(utf8proc_toupper(static_cast<int32_t>(c))));
}

void append_title(std::string& out, char32_t c) {
  if (const SpecialCase* row = special_case(c)) return append_up_to_zero(out, row->title);
  append_code_point(out, static_cast<char32_t>(utf8proc_totitle(static_cast<int32_t>(c))));
}

bool is_case_ignorable(char32_t c) {
  const auto kind = category(c);
  return kind == UTF8PROC_CATEGORY_MN || kind == UTF8PROC_CATEGORY_ME ||
         kind == UTF8PROC_CATEGORY_CF || kind == UTF8PROC_CATEGORY_LM ||
         kind == UTF8PROC_CATEGORY_SK || c == '\'' || c == '.' || c == ':' || c == 0xB7 ||
         c == 0x2018 || c == 0x2019;
}

// Capital sigma is small final sigma at the end of a word (Unicode's Final_Sigma condition).
bool is_final_sigma(const std::vector<char32_t>& text, size_t at) {
  size_t before = at;
  while (before > 0 && is_case_ignorable(text[before - 1])) --before;
  if (before == 0 || !is_cased(text[before - 1])) return false;
  size_t after = at + 1;
  while (after < text.size() && is_case_ignorable(text[after])) ++after;
  return after == text.size() || !is_cased(text[after]);
}

void append_lower(std::string& out, const std::vector<char32_t>& text, size_t at) {
  const char32_t c = text[at];
  if (c == 0x130) {  // capital I with dot: i and a combining dot
    out += "i\xCC\x87";
  } else if (c == 0x3A3) {
    append_code_point(out, is_final_sigma(text, at) ? 0x3C2 : 0x3C3);
  } else {
    append_code_point(out, static_cast<char32_t>(utf8proc_tolower(static_cast<int32_t>(c))));
  }
}

char ascii_upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; }
char ascii_lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

// Two nibbles short of a parser: the length of the sequence that begins with `lead`; 0 if none
// does.
size_t sequence_length(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  if (lead >= 0xF0 && lead <= 0xF4) return 4;
  return 0;
}

}  // namespace

bool is_ascii(std::string_view s) {
  return std::all_of(s.begin(), s.end(), [](char c) { return static_cast<signed char>(c) >= 0; });
}

size_t count_code_points(std::string_view s) {
  return static_cast<size_t>(std::count_if(
      s.begin(), s.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

char32_t next_code_point(std::string_view s, size_t& at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(s[i]); };
  const unsigned char lead = byte(at);
  const size_t length = std::min(std::max<size_t>(sequence_length(lead), 1), s.size() - at);
  char32_t c = length == 1 ? lead : lead & (0xFF >> (length + 1));
  for (size_t i = 1; i < length; ++i) c = (c << 6) | (byte(at + i) & 0x3F);
  at += length;
  return c;
}

void append_code_point(std::string& out, char32_t c) {
  const auto put = [&](char32_t byte) { out += static_cast<char>(byte); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | (c >> 6));
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | (c >> 12));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | (c >> 18));
    put(0x80 | ((c >> 12) & 0x3F));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

std::vector<char32_t> code_points(std::string_view s) {
  std::vector<char32_t> out;
  out.reserve(s.size());
  for (size_t at = 0; at < s.size();) out.push_back(next_code_point(s, at));
  return out;
}

size_t byte_of(std::string_view s, size_t index) {
  size_t at = 0;
  while (index > 0 && at < s.size()) {
    next_code_point(s, at);
    --index;
  }
  return at;
}

std::optional<size_t> first_bad_utf8(std::string_view s) {
  size_t at = 0;
  while (at < s.size()) {
    const size_t length = sequence_length(static_cast<unsigned char>(s[at]));
    if (length == 0 || length > s.size() - at) return at;
    for (size_t i = 1; i < length; ++i) {
      if ((static_cast<unsigned char>(s[at + i]) & 0xC0) != 0x80) return at;
    }
    size_t next = at;
    const char32_t c = next_code_point(s, next);
    const bool overlong = (length == 3 && c < 0x800) || (length == 4 && c < 0x10000);
    if (overlong || c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF)) return at;
    at = next;
  }
  return std::nullopt;
}

bool is_space(char32_t c) {
  if (c < 0x80) return (c >= 9 && c <= 13) || (c >= 28 && c <= 32);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_alpha(char32_t c) {
  const auto kind = category(c);
  return kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO;
}
bool is_decimal(char32_t c) { return category(c) == UTF8PROC_CATEGORY_ND; }
bool is_digit(char32_t c) {
  // Beside the decimals: superscripts, subscripts and the circled digits (Numeric_Type=Digit).
  return is_decimal(c) || c == 0xB2 || c == 0xB3 || c == 0xB9 || c == 0x2070 ||
         (c >= 0x2074 && c <= 0x2079) || (c >= 0x2080 && c <= 0x2089) ||
         (c >= 0x2460 && c <= 0x2468);
}
bool is_numeric(char32_t c) {
  const auto kind = category(c);
  return kind == UTF8PROC_CATEGORY_ND || kind == UTF8PROC_CATEGORY_NL ||
         kind == UTF8PROC_CATEGORY_NO;
}
bool is_printable(char32_t c) {
  if (c == ' ') return true;
  switch (category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}
bool is_upper(char32_t c) { return utf8proc_isupper(static_cast<int32_t>(c)) != 0; }
bool is_lower(char32_t c) { return utf8proc_islower(static_cast<int32_t>(c)) != 0; }
bool is_title(char32_t c) { return category(c) == UTF8PROC_CATEGORY_LT; }

bool is_identifier_start(char32_t c) {
  if (c < 0x80) return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  return is_alpha(c) || category(c) == UTF8PROC_CATEGORY_NL;
}
bool is_identifier_part(char32_t c) {
  if (c < 0x80) return is_identifier_start(c) || (c >= '0' && c <= '9');
  const auto kind = category(c);
  return is_identifier_start(c) || kind == UTF8PROC_CATEGORY_MN || kind == UTF8PROC_CATEGORY_MC ||
         kind == UTF8PROC_CATEGORY_ND || kind == UTF8PROC_CATEGORY_PC;
}

std::string to_upper(std::string_view s) {
  std::string out(s);
  if (is_ascii(s)) {
    std::transform(out.begin(), out.end(), out.begin(), ascii_upper);
    return out;
  }
  out.clear();
  for (size_t at = 0; at < s.size();) append_upper(out, next_code_point(s, at));
  return out;
}

std::string to_lower(std::string_view s) {
  std::string out(s);
  if (is_ascii(s)) {
    std::transform(out.begin(), out.end(), out.begin(), ascii_lower);
    return out;
  }
  out.clear();
  const std::vector<char32_t> text = code_points(s);
  for (size_t i = 0; i < text.size(); ++i) append_lower(out, text, i);
  return out;
}

std::string to_title(std::string_view s) {
  const std::vector<char32_t> text = code_points(s);
  std::string out;
  bool inside = false;  // the code point before was cased
  for (size_t i = 0; i < text.size(); ++i) {
    inside ? append_lower(out, text, i) : append_title(out, text[i]);
    inside = is_cased(text[i]);
  }
  return out;
}

std::string to_capitalized(std::string_view s) {
  const std::vector<char32_t> text = code_points(s);
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    i == 0 ? append_title(out, text[i]) : append_lower(out, text, i);
  }
  return out;
}

std::string swap_case(std::string_view s) {
  const std::vector<char32_t> text = code_points(s);
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    is_upper(text[i]) ? append_lower(out, text, i) : append_upper(out, text[i]);
  }
  return out;
}

std::string_view strip(std::string_view s, std::optional<std::string_view> chars, bool left,
                       bool right) {
  std::vector<char32_t> set = chars ? code_points(*chars) : std::vector<char32_t>{};
  std::sort(set.begin(), set.end());
  const auto drops = [&](char32_t c) {
    return chars ? std::binary_search(set.begin(), set.end(), c) : is_space(c);
  };
  if (left) {
    for (size_t at = 0; at < s.size();) {
      size_t next = at;
      if (!drops(next_code_point(s, next))) {
        s.remove_prefix(at);
        break;
      }
      at = next;
      if (at == s.size()) s = {};
    }
  }
  while (right && !s.empty()) {
    size_t last = s.size() - 1;
    while (last > 0 && (static_cast<unsigned char>(s[last]) & 0xC0) == 0x80) --last;
    size_t at = last;
    if (!drops(next_code_point(s, at))) break;
    s = s.substr(0, last);
  }
  return s;
}

size_t find_bytes(std::string_view s, std::string_view needle, size_t from) {
  if (from > s.size()) return s.npos;
  if (needle.empty()) return from;
  if (needle.size() == 1) return s.find(needle.front(), from);
  // memmem is linear in the worst case; std::string_view::find is not. (With a sanitizer each call
  // looks at all of the rest, so that many calls are quadratic there.)
  const void* at = memmem(s.data() + from, s.size() - from, needle.data(), needle.size());
  return at == nullptr ? s.npos : static_cast<size_t>(static_cast<const char*>(at) - s.data());
}

size_t rfind_bytes(std::string_view s, std::string_view needle) {
  if (needle.empty()) return s.size();
  const std::string backwards(s.rbegin(), s.rend());
  const std::string sought(needle.rbegin(), needle.rend());
  const size_t at = find_bytes(backwards, sought);
  return at == s.npos ? s.npos : s.size() - at - needle.size();
}

std::vector<std::string_view> split_lines(std::string_view s, bool keep_ends) {
  std::vector<std::string_view> lines;
  size_t begin = 0;
  for (size_t at = 0; at < s.size();) {
    const size_t end = at;
    const char32_t c = next_code_point(s, at);
    const bool breaks =
        (c >= 10 && c <= 13) || (c >= 28 && c <= 30) || c == 0x85 || c == 0x2028 || c == 0x2029;
    if (!breaks) continue;
    if (c == '\r' && at < s.size() && s[at] == '\n') ++at;
    lines.push_back(s.substr(begin, (keep_ends ? at : end) - begin));
    begin = at;
  }
  if (begin < s.size()) lines.push_back(s.substr(begin));
  return lines;
}

std::string quoted(std::string_view s) {
  const bool has_single = s.find('\'') != s.npos;
  const char quote = has_single && s.find('"') == s.npos ? '"' : '\'';
  std::string out(1, quote);
  for (size_t at = 0; at < s.size();) {
    const char32_t c = next_code_point(s, at);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (is_printable(c)) {
      append_code_point(out, c);
    } else if (c < 0x100) {
      out += fmt::format("\\x{:02x}", static_cast<uint32_t>(c));
    } else if (c < 0x10000) {
      out += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
    } else {
      out += fmt::format("\\U{:08x}", static_cast<uint32_t>(c));
    }
  }
  return out + quote;
}

std::string float_repr(double v) {
  if (std::isnan(v)) return "nan";
  if (std::isinf(v)) return v < 0 ? "-inf" : "inf";
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, v, std::chars_format::scientific);
  // d.ddde±xx: Python writes it so from 1e16 up and below 1e-4, and in plain digits between.
  const std::string_view text(buffer, static_cast<size_t>(end.ptr - buffer));
  const size_t e = text.find('e');
  int exponent = 0;
  const char* digits_of_exponent = text.data() + e + (text[e + 1] == '+' ? 2 : 1);
  std::from_chars(digits_of_exponent, end.ptr, exponent);
  if (exponent < -4 || exponent >= 16) return std::string(text);
  const std::string_view sign = std::signbit(v) ? "-" : "";
  std::string digits;
  for (char c : text.substr(0, e)) {
    if (c >= '0' && c <= '9') digits += c;
  }
  if (exponent < 0) return fmt::format("{}0.{:0>{}}{}", sign, "", -exponent - 1, digits);
  const size_t whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) return fmt::format("{}{:0<{}}.0", sign, digits, whole);
  return fmt::format("{}{}.{}", sign, digits.substr(0, whole), digits.substr(whole));
}

std::string html_escaped(std::string_view s) {
  std::string out;
  out.reserve(s.size());
  for (char c : s) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '"':
        out += "&#34;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

}  // namespace nibble::text::jinja
