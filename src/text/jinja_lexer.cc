#include "text/jinja_lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "text/jinja_trouble.h"
#include "text/jinja_unicode.h"

namespace nibble::text::jinja {
namespace {

constexpr size_t kMaxSource = size_t{4} << 20;  // bytes; real templates are below 20 kB

bool is_digit_char(char c) { return c >= '0' && c <= '9'; }

// A token can stand for at least three bytes of source, so kMaxSource bounds the list as well.
class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalized(source)), text_(source_) {}

  std::vector<Token> run() {
    if (text_.size() > kMaxSource) {
      fail(ErrorCode::kUnsupported,
           fmt::format("the template is larger than {} bytes", kMaxSource));
    }
    if (auto bad = first_bad_utf8(text_)) {
      fail(ErrorCode::kCorrupt, fmt::format("the template is not UTF-8 at byte {}", *bad));
    }
    while (at_ < text_.size()) data();
    push(Token::Kind::kEnd);
    return std::move(tokens_);
  }

 private:
  // Jinja counts \r\n and \r as \n and drops one newline at the end.
  static std::string normalized(std::string_view source) {
    std::string out;
    out.reserve(source.size());
    for (size_t i = 0; i < source.size(); ++i) {
      if (source[i] != '\r') {
        out += source[i];
      } else {
        out += '\n';
        if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
      }
    }
    if (!out.empty() && out.back() == '\n') out.pop_back();
    return out;
  }

  [[noreturn]] void fail(ErrorCode code, std::string message) const {
    throw Trouble{code, std::move(message), line_};
  }
  [[noreturn]] void fail(std::string message) const {
    fail(ErrorCode::kCorrupt, std::move(message));
  }

  Token& push(Token::Kind kind, std::string text = {}) {
    Token token;
    token.kind = kind;
    token.text = std::move(text);
    token.line = line_;
    return tokens_.emplace_back(std::move(token));
  }

  bool looking_at(std::string_view s, size_t at) const { return text_.substr(at, s.size()) == s; }
  // Moves to `to`, counting lines.
  void advance(size_t to) {
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         text_.begin() + static_cast<std::ptrdiff_t>(to), '\n'));
    if (to > at_) line_starting_ = text_[to - 1] == '\n';
    at_ = to;
  }
  size_t skip_space(size_t at) const {
    while (at < text_.size()) {
      size_t next = at;
      if (!is_space(next_code_point(text_, next))) break;
      at = next;
    }
    return at;
  }

  // The text before a tag, trimmed as the tag's sign and lstrip_blocks ask. `sign` is '-', '+' or
  // 0.
  void push_data(std::string_view text, char sign, bool is_variable) {
    if (sign == '-') {
      text = strip(text, std::nullopt, false, true);
    } else if (sign != '+' && !is_variable) {
      const size_t line_begin = text.rfind('\n') + 1;  // npos + 1 is 0
      const std::string_view last_line = text.substr(line_begin);
      if ((line_begin > 0 || line_starting_) &&
          strip(last_line, std::nullopt, true, true).empty()) {
        text = text.substr(0, line_begin);
      }
    }
    if (!text.empty()) push(Token::Kind::kData, std::string(text));
  }

  // Text up to the next tag, and the tag.
  void data() {
    size_t open = at_;
    while (true) {
      open = text_.find('{', open);
      if (open == text_.npos || open + 1 >= text_.size()) {
        push_data(text_.substr(at_), '+', false);
        return advance(text_.size());
      }
      const char c = text_[open + 1];
      if (c == '%' || c == '{' || c == '#') break;
      ++open;
    }
    const char c = text_[open + 1];
    size_t inside = open + 2;
    char sign = 0;
    if (inside < text_.size() && (text_[inside] == '-' || text_[inside] == '+')) {
      sign = text_[inside++];
    }
    const std::string_view before = text_.substr(at_, open - at_);
    push_data(before, sign, c == '{');
    advance(inside);
    if (c == '#') return comment();
    if (c == '{') {
      push(Token::Kind::kVariableBegin);
      return tag("}}", Token::Kind::kVariableEnd);
    }
    if (size_t end = raw_begin(inside); end != text_.npos) return raw(end);
    push(Token::Kind::kBlockBegin);
    tag("%}", Token::Kind::kBlockEnd);
  }

  // If a closing delimiter with an optional sign stands at `at`: the byte after it and after the
  // white space it swallows. Else npos.
  size_t closing(size_t at, std::string_view delimiter, bool plus, bool trims_newline) const {
    if (looking_at(delimiter, at)) {
      at += delimiter.size();
      return trims_newline && looking_at("\n", at) ? at + 1 : at;
    }
    if (at < text_.size() && looking_at(delimiter, at + 1)) {
      if (text_[at] == '-') return skip_space(at + 1 + delimiter.size());
      if (text_[at] == '+' && plus) return at + 1 + delimiter.size();
    }
    return text_.npos;
  }

  // A comment, or a raw block, that begins where the template ends is empty, for Jinja.
  void comment() {
    if (at_ == text_.size()) return;
    for (size_t at = at_; at < text_.size(); ++at) {
      if (size_t end = closing(at, "#}", true, true); end != text_.npos) return advance(end);
    }
    fail("a comment begun with {# has no #}");
  }

  // After `{%` or `{%-`: the byte after `raw %}`, or npos.
  size_t raw_begin(size_t at) const {
    at = skip_space(at);
    if (!looking_at("raw", at)) return text_.npos;
    at = skip_space(at + 3);
    return closing(at, "%}", false, false);
  }

  void raw(size_t begin) {
    advance(begin);
    if (at_ == text_.size()) return;
    for (size_t open = text_.find("{%", at_); open != text_.npos;
         open = text_.find("{%", open + 2)) {
      size_t at = open + 2;
      char sign = 0;
      if (at < text_.size() && (text_[at] == '-' || text_[at] == '+')) sign = text_[at++];
      at = skip_space(at);
      if (!looking_at("endraw", at)) continue;
      const size_t end = closing(skip_space(at + 6), "%}", true, true);
      if (end == text_.npos) continue;
      push_data(text_.substr(at_, open - at_), sign, false);
      return advance(end);
    }
    fail("a raw block has no {% endraw %}");
  }

  // The inside of a tag, up to and with its closing delimiter.
  void tag(std::string_view delimiter, Token::Kind end_kind) {
    const bool is_block = end_kind == Token::Kind::kBlockEnd;
    std::string open_brackets;
    while (at_ < text_.size()) {
      if (open_brackets.empty()) {
        if (size_t end = closing(at_, delimiter, is_block, is_block); end != text_.npos) {
          push(end_kind);
          return advance(end);
        }
      }
      if (size_t next = skip_space(at_); next != at_) {
        advance(next);
        continue;
      }
      one_token(open_brackets);
    }
    // The parser says what was expected when it meets the end.
  }

  void one_token(std::string& open_brackets) {
    const char c = text_[at_];
    if (is_digit_char(c)) return number();
    if (c == '\'' || c == '"') return string(c);
    size_t end = at_;
    if (const char32_t first = next_code_point(text_, end); is_identifier_start(first)) {
      while (end < text_.size()) {
        size_t next = end;
        if (!is_identifier_part(next_code_point(text_, next))) break;
        end = next;
      }
      push(Token::Kind::kName, std::string(text_.substr(at_, end - at_)));
      return advance(end);
    }
    op(open_brackets);
  }

  void op(std::string& open_brackets) {
    static constexpr std::string_view kOperators[] = {
        "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
        "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    for (std::string_view candidate : kOperators) {
      if (!looking_at(candidate, at_)) continue;
      const char c = candidate[0];
      if (c == '(' || c == '[' || c == '{') open_brackets += c == '(' ? ')' : c == '[' ? ']' : '}';
      if (c == ')' || c == ']' || c == '}') {
        if (open_brackets.empty()) fail(fmt::format("'{}' closes nothing", c));
        if (open_brackets.back() != c) {
          fail(fmt::format("'{}' stands where '{}' is needed", c, open_brackets.back()));
        }
        open_brackets.pop_back();
      }
      push(Token::Kind::kOperator, std::string(candidate));
      return advance(at_ + candidate.size());
    }
    size_t end = at_;
    next_code_point(text_, end);
    fail(fmt::format("unexpected character '{}'", text_.substr(at_, end - at_)));
  }

  // Digits with single underscores between them; the byte after the last.
  size_t digits(size_t at, bool hex = false) const {
    const auto is_one = [&](size_t i) {
      if (i >= text_.size()) return false;
      const char c = text_[i];
      return is_digit_char(c) || (hex && ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F')));
    };
    while (is_one(at) || (at < text_.size() && text_[at] == '_' && is_one(at + 1))) ++at;
    return at;
  }

  void number() {
    size_t end = digits(at_);
    bool is_float = false;
    const bool after_dot = at_ > 0 && text_[at_ - 1] == '.';
    if (!after_dot) {
      if (end + 1 < text_.size() && text_[end] == '.' && is_digit_char(text_[end + 1])) {
        end = digits(end + 1);
        is_float = true;
      }
      if (end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
        size_t exponent = end + 1;
        if (exponent < text_.size() && (text_[exponent] == '+' || text_[exponent] == '-'))
          ++exponent;
        if (exponent < text_.size() && is_digit_char(text_[exponent])) {
          end = digits(exponent);
          is_float = true;
        }
      }
    }
    is_float ? push_float(end) : integer();
  }

  std::string without_underscores(size_t end) const {
    std::string out;
    for (char c : text_.substr(at_, end - at_)) {
      if (c != '_') out += c;
    }
    return out;
  }

  void push_float(size_t end) {
    const std::string written = without_underscores(end);
    double value = 0;
    const auto result = std::from_chars(written.data(), written.data() + written.size(), value);
    if (result.ec != std::errc{}) fail(fmt::format("the number {} is out of range", written));
    push(Token::Kind::kFloat).real = value;
    advance(end);
  }

  void integer() {
    int base = 10;
    size_t end = digits(at_);
    if (text_[at_] == '0' && end == at_ + 1 && end < text_.size()) {
      const char mark = static_cast<char>(text_[end] | 0x20);
      base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 10;
      if (base != 10) end = digits(end + 1, base == 16);
    } else if (text_[at_] == '0') {  // 0123 is the token 0 and the token 123
      end = at_ + 1;
      while (end < text_.size() && text_[end] == '0') ++end;
    }
    const std::string written = without_underscores(end);
    const char* begin = written.data() + (base == 10 ? 0 : 2);
    int64_t value = 0;
    const auto result = std::from_chars(begin, written.data() + written.size(), value, base);
    if (result.ec == std::errc::result_out_of_range) {
      fail(ErrorCode::kUnsupported, fmt::format("the integer {} is beyond 64 bits", written));
    }
    if (result.ec != std::errc{} || result.ptr != written.data() + written.size()) {
      fail(fmt::format("'{}' is not a number", written));
    }
    push(Token::Kind::kInteger).integer = value;
    advance(end);
  }

  void string(char quote) {
    size_t end = at_ + 1;
    while (end < text_.size() && text_[end] != quote) end += text_[end] == '\\' ? 2 : 1;
    if (end >= text_.size()) fail(fmt::format("a string begun with {} is not closed", quote));
    std::string value = unescaped(text_.substr(at_ + 1, end - at_ - 1));
    push(Token::Kind::kString, std::move(value));
    advance(end + 1);
  }

  // Python's escapes in a string literal; an unknown one stays as it is written.
  std::string unescaped(std::string_view s) const {
    std::string out;
    for (size_t i = 0; i < s.size(); ++i) {
      if (s[i] != '\\' || i + 1 == s.size()) {
        out += s[i];
        continue;
      }
      const char c = s[++i];
      static constexpr std::string_view kFrom = "nrtabfv0\\'\"";
      static constexpr std::string_view kTo = "\n\r\t\a\b\f\v\0\\'\"";
      if (c >= '0' && c <= '7') {
        size_t stop = i;
        char32_t code = 0;
        while (stop < s.size() && stop < i + 3 && s[stop] >= '0' && s[stop] <= '7') {
          code = code * 8 + static_cast<char32_t>(s[stop++] - '0');
        }
        append_code_point(out, code);
        i = stop - 1;
      } else if (const size_t known = kFrom.find(c); known != kFrom.npos) {
        out += kTo[known];
      } else if (c == '\n') {
        continue;
      } else if (c == 'x' || c == 'u' || c == 'U') {
        append_code_point(out, hex_escape(s, i + 1, c == 'x' ? 2 : c == 'u' ? 4 : 8));
        i += c == 'x' ? 2 : c == 'u' ? 4 : 8;
      } else if (c == 'N') {
        fail(ErrorCode::kUnsupported, "the string escape \\N{name}");
      } else {
        out += '\\';
        out += c;
      }
    }
    return out;
  }

  char32_t hex_escape(std::string_view s, size_t at, size_t width) const {
    const std::string_view written = s.substr(std::min(at, s.size()), width);
    uint32_t code = 0;
    const auto end = std::from_chars(written.data(), written.data() + written.size(), code, 16);
    if (written.size() != width || end.ptr != written.data() + width || code > 0x10FFFF) {
      fail(fmt::format("the string escape \\{}{} is not {} hexadecimal digits of a character",
                       s[at - 1], written, width));
    }
    if (code >= 0xD800 && code <= 0xDFFF) {
      fail(ErrorCode::kUnsupported, fmt::format("the string escape \\u{} (a surrogate)", written));
    }
    return code;
  }

  std::string source_;
  std::string_view text_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;  // what was read last ended with a newline
  std::vector<Token> tokens_;
};

}  // namespace

std::string Token::describe() const {
  switch (kind) {
    case Kind::kData:
      return "text";
    case Kind::kBlockBegin:
      return "'{%'";
    case Kind::kBlockEnd:
      return "'%}'";
    case Kind::kVariableBegin:
      return "'{{'";
    case Kind::kVariableEnd:
      return "'}}'";
    case Kind::kString:
      return "a string";
    case Kind::kInteger:
      return fmt::format("'{}'", integer);
    case Kind::kFloat:
      return "a number";
    case Kind::kName:
    case Kind::kOperator:
      return fmt::format("'{}'", text);
    case Kind::kEnd:
      return "the end of the template";
  }
  return "nothing";
}

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

}  // namespace nibble::text::jinja
