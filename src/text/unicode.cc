#include "text/unicode.h"

#include <utf8proc.h>

#include <cstdlib>
#include <cstring>
#include <new>

#include "base/check.h"

namespace nibble::text {
namespace {

// How many bytes at s[i] form one well-formed character (Unicode, table 3-7); 0 if they do not.
// `seen` is how many bytes of the ill-formed part belong together (its maximal subpart), and
// `cut` says that only the end of the text is missing.
struct Step {
  size_t length = 0;
  size_t seen = 1;
  bool cut = false;
};

Step step_utf8(std::string_view s, size_t i) {
  const auto at = [&](size_t k) { return static_cast<unsigned char>(s[k]); };
  const unsigned char lead = at(i);
  if (lead < 0x80) return {1, 1, false};
  if (lead < 0xc2 || lead > 0xf4) return {};
  const size_t n = utf8_length(lead);
  unsigned char low = 0x80, high = 0xbf;  // the bounds of the second byte
  if (lead == 0xe0) low = 0xa0;
  if (lead == 0xed) high = 0x9f;
  if (lead == 0xf0) low = 0x90;
  if (lead == 0xf4) high = 0x8f;
  for (size_t k = 1; k < n; ++k) {
    if (i + k >= s.size()) return {0, k, true};
    if (at(i + k) < low || at(i + k) > high) return {0, k, false};
    low = 0x80;
    high = 0xbf;
  }
  return {n, n, false};
}

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

bool is_ascii(std::string_view s) {
  size_t i = 0;
  for (; i + 8 <= s.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, s.data() + i, 8);
    if (word & 0x8080808080808080u) return false;
  }
  for (; i < s.size(); ++i) {
    if (static_cast<unsigned char>(s[i]) >= 0x80) return false;
  }
  return true;
}

}  // namespace

std::optional<size_t> find_invalid_utf8(std::string_view s) {
  size_t i = 0;
  while (i < s.size()) {
    if (i + 8 <= s.size() && is_ascii(s.substr(i, 8))) {
      i += 8;
      continue;
    }
    const Step step = step_utf8(s, i);
    if (step.length == 0) return i;
    i += step.length;
  }
  return std::nullopt;
}

std::string lossy_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  for (size_t i = 0; i < bytes.size();) {
    const Step step = step_utf8(bytes, i);
    if (step.length != 0) {
      out.append(bytes.substr(i, step.length));
    } else {
      out.append(kReplacementCharacter);
    }
    i += step.seen;
  }
  return out;
}

size_t incomplete_tail(std::string_view bytes) {
  for (size_t back = 1; back <= 3 && back <= bytes.size(); ++back) {
    const unsigned char c = static_cast<unsigned char>(bytes[bytes.size() - back]);
    if (c < 0x80) return 0;
    if (c < 0xc0) continue;  // a continuation byte: its lead stands further left
    const Step step = step_utf8(bytes, bytes.size() - back);
    return step.cut ? back : 0;
  }
  return 0;
}

char32_t next_char(std::string_view s, size_t& i) {
  const auto at = [&](size_t k) { return static_cast<char32_t>(static_cast<unsigned char>(s[k])); };
  const char32_t lead = at(i);
  const size_t n = utf8_length(static_cast<unsigned char>(lead));
  NIBBLE_CHECK(i + n <= s.size());
  char32_t c = lead;
  if (n == 2) c = (lead & 0x1f) << 6 | (at(i + 1) & 0x3f);
  if (n == 3) c = (lead & 0x0f) << 12 | (at(i + 1) & 0x3f) << 6 | (at(i + 2) & 0x3f);
  if (n == 4) {
    c = (lead & 0x07) << 18 | (at(i + 1) & 0x3f) << 12 | (at(i + 2) & 0x3f) << 6 |
        (at(i + 3) & 0x3f);
  }
  i += n;
  return c;
}

void append_utf8(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xc0 | c >> 6);
    out += static_cast<char>(0x80 | (c & 0x3f));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xe0 | c >> 12);
    out += static_cast<char>(0x80 | (c >> 6 & 0x3f));
    out += static_cast<char>(0x80 | (c & 0x3f));
  } else {
    out += static_cast<char>(0xf0 | c >> 18);
    out += static_cast<char>(0x80 | (c >> 12 & 0x3f));
    out += static_cast<char>(0x80 | (c >> 6 & 0x3f));
    out += static_cast<char>(0x80 | (c & 0x3f));
  }
}

bool is_whitespace(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 0x09 && c <= 0x0d);
  return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
         c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool is_numeric(char32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  const auto k = category(c);
  return k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO;
}

bool is_punctuation(char32_t c) {
  if (c < 0x80)
    return c > 0x20 && c < 0x7f && !(c >= '0' && c <= '9') &&
           !((c | 0x20) >= 'a' && (c | 0x20) <= 'z');
  const auto k = category(c);
  return k >= UTF8PROC_CATEGORY_PC && k <= UTF8PROC_CATEGORY_PO;
}

bool is_word(char32_t c) {
  if (c < 0x80) {
    return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || c == '_';
  }
  const auto k = category(c);
  if (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_NL) return true;  // L*, M*, Nd, Nl
  if (k == UTF8PROC_CATEGORY_PC) return true;
  if (c == 0x200c || c == 0x200d) return true;  // Join_Control
  // Other_Alphabetic beyond the marks: circled and squared Latin letters.
  return (c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) ||
         (c >= 0x1f150 && c <= 0x1f169) || (c >= 0x1f170 && c <= 0x1f189);
}

bool is_other(char32_t c) {
  const auto k = category(c);
  return k == UTF8PROC_CATEGORY_CC || k == UTF8PROC_CATEGORY_CF || k == UTF8PROC_CATEGORY_CO;
}

bool is_mark(char32_t c) {
  if (c < 0x80) return false;
  const auto k = category(c);
  return k >= UTF8PROC_CATEGORY_MN && k <= UTF8PROC_CATEGORY_ME;
}

bool is_nonspacing_mark(char32_t c) { return c >= 0x80 && category(c) == UTF8PROC_CATEGORY_MN; }

bool is_cjk_ideograph(char32_t c) {
  return (c >= 0x4e00 && c <= 0x9fff) || (c >= 0x3400 && c <= 0x4dbf) ||
         (c >= 0x20000 && c <= 0x2a6df) || (c >= 0x2a700 && c <= 0x2b73f) ||
         (c >= 0x2b740 && c <= 0x2b81f) || (c >= 0x2b920 && c <= 0x2ceaf) ||
         (c >= 0xf900 && c <= 0xfaff) || (c >= 0x2f800 && c <= 0x2fa1f);
}

void append_lowercase(std::string& out, char32_t c) {
  if (c == 0x130) {  // the one character whose lower case is two
    out += "i\xcc\x87";
    return;
  }
  append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
}

std::string normalize(std::string_view s, NormalForm form) {
  if (is_ascii(s)) return std::string(s);
  int options = UTF8PROC_STABLE;
  options |=
      form == NormalForm::kNfc || form == NormalForm::kNfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == NormalForm::kNfkc || form == NormalForm::kNfkd) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* mapped = nullptr;
  const auto n = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(s.data()),
                              static_cast<utf8proc_ssize_t>(s.size()), &mapped,
                              static_cast<utf8proc_option_t>(options));
  if (n == UTF8PROC_ERROR_NOMEM) throw std::bad_alloc();
  NIBBLE_CHECK(n >= 0);
  std::string out(reinterpret_cast<char*>(mapped), static_cast<size_t>(n));
  std::free(mapped);
  return out;
}

size_t first_grapheme(std::string_view s) {
  size_t i = 0;
  char32_t last = next_char(s, i);
  utf8proc_int32_t state = 0;
  while (i < s.size()) {
    size_t next = i;
    const char32_t c = next_char(s, next);
    if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(last),
                                         static_cast<utf8proc_int32_t>(c), &state)) {
      break;
    }
    last = c;
    i = next;
  }
  return i;
}

}  // namespace nibble::text
