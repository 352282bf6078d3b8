#include "text/normalizer.h"

#include <algorithm>

#include "text/byte_level.h"

namespace nibble::text {
namespace {

constexpr std::string_view kSpaceMark = "\xe2\x96\x81";  // U+2581

template <class Visit>  // Visit(char32_t)
void each_char(std::string_view s, const Visit& visit) {
  for (size_t i = 0; i < s.size();) visit(next_char(s, i));
}

template <class Drop>  // bool Drop(char32_t)
std::string without(std::string_view s, const Drop& drop) {
  std::string out;
  each_char(s, [&](char32_t c) {
    if (!drop(c)) append_utf8(out, c);
  });
  return out;
}

std::string lowercase(std::string_view s) {
  std::string out;
  each_char(s, [&](char32_t c) { append_lowercase(out, c); });
  return out;
}

std::string strip(std::string_view s, bool left, bool right) {
  size_t begin = 0, end = s.size();
  while (left && begin < end) {
    size_t next = begin;
    if (!is_whitespace(next_char(s, next))) break;
    begin = next;
  }
  while (right && end > begin) {
    size_t last = end - 1;
    while ((static_cast<unsigned char>(s[last]) & 0xc0) == 0x80) --last;
    size_t i = last;
    if (!is_whitespace(next_char(s, i))) break;
    end = last;
  }
  return std::string(s.substr(begin, end - begin));
}

// Control characters go, kinds of white space become a space (sentencepiece's "nmt_nfkc").
std::string nmt(std::string_view s) {
  std::string out;
  each_char(s, [&](char32_t c) {
    if ((c >= 0x01 && c <= 0x08) || c == 0x0b || (c >= 0x0e && c <= 0x1f) || c == 0x7f ||
        c == 0x8f || c == 0x9f) {
      return;
    }
    const bool space = c == 0x09 || c == 0x0a || c == 0x0c || c == 0x0d || c == 0x1680 ||
                       (c >= 0x200b && c <= 0x200f) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
                       c == 0xfeff || c == 0xfffd;
    append_utf8(out, space ? U' ' : c);
  });
  return out;
}

std::string bert(const NormalizeBert& options, std::string_view s) {
  std::string out;
  each_char(s, [&](char32_t c) {
    const bool blank = c == '\t' || c == '\n' || c == '\r';
    if (options.clean_text) {
      if (c == 0 || c == 0xfffd || (!blank && is_other(c))) return;
      if (blank || is_whitespace(c)) c = U' ';
    }
    const bool apart = options.handle_chinese_chars && is_cjk_ideograph(c);
    if (apart) out += ' ';
    append_utf8(out, c);
    if (apart) out += ' ';
  });
  if (options.strip_accents) out = without(normalize(out, NormalForm::kNfd), is_nonspacing_mark);
  if (options.lowercase) out = lowercase(out);
  return out;
}

std::string precompiled(const NormalizePrecompiled& step, std::string_view s) {
  std::string out;
  for (size_t i = 0; i < s.size();) {
    const std::string_view rest = s.substr(i);
    if (!step.by_grapheme) {
      const auto rule = step.map.longest(rest);
      const size_t n = rule ? rule->length : utf8_length(static_cast<unsigned char>(rest[0]));
      out += rule ? rule->replacement : rest.substr(0, n);
      i += n;
      // A rule that ends inside a character takes the whole of it.
      while (i < s.size() && (static_cast<unsigned char>(s[i]) & 0xc0) == 0x80) ++i;
      continue;
    }
    const std::string_view grapheme = rest.substr(0, first_grapheme(rest));
    i += grapheme.size();
    if (grapheme.size() < 6) {  // as `tokenizers` does: the first rule replaces the whole cluster
      if (const auto rule = step.map.shortest(grapheme)) {
        out += rule->replacement;
        continue;
      }
    }
    for (size_t k = 0; k < grapheme.size();) {
      const size_t n = utf8_length(static_cast<unsigned char>(grapheme[k]));
      const std::string_view c = grapheme.substr(k, n);
      const auto rule = step.map.shortest(c);
      out += rule ? rule->replacement : c;
      k += n;
    }
  }
  return out;
}

std::string extra_spaces(std::string_view s) {
  std::string out;
  for (const char c : s) {
    if (c != ' ' || (!out.empty() && out.back() != ' ')) out += c;
  }
  // At the end a written U+2581 goes too: there sentencepiece has already put it for spaces.
  for (;;) {
    if (out.ends_with(' ')) {
      out.pop_back();
    } else if (out.ends_with(kSpaceMark)) {
      out.resize(out.size() - kSpaceMark.size());
    } else {
      return out;
    }
  }
}

struct Apply {
  std::string_view s;
  using Text = Result<std::string>;

  Text operator()(const NormalizeForm& step) const { return normalize(s, step.form); }
  Text operator()(const NormalizeLowercase&) const { return lowercase(s); }
  Text operator()(const NormalizeStrip& step) const { return strip(s, step.left, step.right); }
  Text operator()(const NormalizeStripAccents&) const { return without(s, is_mark); }
  Text operator()(const NormalizeNmt&) const { return nmt(s); }
  Text operator()(const NormalizeByteLevel&) const {
    std::string out;
    append_byte_level(out, s);
    return out;
  }
  Text operator()(const NormalizePrepend& step) const {
    return s.empty() ? std::string() : step.prefix + std::string(s);
  }
  Text operator()(const NormalizeReplace& step) const {
    return replace_all(s, step.pattern, step.content);
  }
  Text operator()(const NormalizeBert& step) const { return bert(step, s); }
  Text operator()(const NormalizePrecompiled& step) const { return precompiled(step, s); }
  Text operator()(const NormalizeExtraSpaces&) const { return extra_spaces(s); }
};

}  // namespace

Result<std::string> Normalizer::run(std::string_view text) const {
  std::string out(text);
  for (const NormalizeStep& step : steps_) {
    NIBBLE_ASSIGN(out, std::visit(Apply{out}, step));
  }
  return out;
}

Result<bool> Normalizer::removes_front(std::string_view text) const {
  if (text.empty()) return false;
  NIBBLE_ASSIGN(std::string first,
                run(text.substr(0, utf8_length(static_cast<unsigned char>(text[0])))));
  return first.empty();
}

Result<std::string> replace_all(std::string_view text,
                                const std::variant<std::string, Regex>& pattern,
                                std::string_view content) {
  std::string out;
  size_t done = 0;
  if (const auto* words = std::get_if<std::string>(&pattern)) {
    if (words->empty()) return std::string(text);
    for (size_t at; (at = text.find(*words, done)) != text.npos; done = at + words->size()) {
      out += text.substr(done, at - done);
      out += content;
    }
  } else {
    RegexMatcher matcher(std::get<Regex>(pattern), text.size());
    std::vector<Span> spans;
    NIBBLE_TRY(matcher.find_all(text, spans));
    for (const Span& span : spans) {
      out += text.substr(done, span.begin - done);
      out += content;
      done = span.end;
    }
  }
  out += text.substr(done);
  return out;
}

}  // namespace nibble::text
