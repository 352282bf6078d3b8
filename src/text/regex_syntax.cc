// From Oniguruma's Ruby syntax to PCRE2's. What differs and matters:
//
//   Ruby                          PCRE2                        here
//   ^ $                           start and end of the text    compiled with PCRE2_MULTILINE
//   (?m:...) dot matches newline  (?s:...)                     letter exchanged
//   a(?i)b|c  is a(?i:b|c)        is a(?i:b)|(?i:c)            written as a group
//   x{1,2}+   is (?:x{1,2})+      possessive                   written as a group
//   x{,2}                         literal text                 x{0,2}
//   x{2}?     is (?:x{2})?        lazy                         written as a group
//   [a[bc]]  [a-z&&[^x]]          no such thing                flattened; lookaheads
//   \w        Alphabetic M Nd Pc  L N _                        written as a class
//   \s        White_Space         also U+180E                  written as a class
//   \h        hexadecimal digit   horizontal space             written as a class
//   \v        U+000B              vertical space               \x0b
//   \uHHHH                        not known                    \x{HHHH}
//   \p{Letter} \p{Alpha}          not known                    short name, or a class
//   \p{Han}   script              script extensions            \p{sc:Han}
#include <fmt/format.h>

#include <optional>

#include "text/regex.h"
#include "text/regex_names.h"

namespace nibble::text {
namespace {

constexpr size_t kMaxPattern = size_t{64} << 10;
constexpr int kMaxDepth = 100;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
int hex_value(char c) {
  if (is_digit(c)) return c - '0';
  const char low = static_cast<char>(c | 0x20);
  return low >= 'a' && low <= 'f' ? low - 'a' + 10 : -1;
}

std::string negated_set(std::string_view set) { return fmt::format("[^{}]", set); }

// A set of characters: the inside of a bracket, and what only an alternative can say. Written out
// it is an expression that takes exactly one character.
struct CharSet {
  std::string items;
  std::vector<std::string> others;
  bool negated = false;

  std::string positive() const {
    if (others.empty()) return items.empty() ? "(?!)" : fmt::format("[{}]", items);
    std::string out = "(?:";
    if (!items.empty()) out += fmt::format("[{}]|", items);
    for (size_t i = 0; i < others.size(); ++i)
      out += fmt::format("{}{}", i == 0 ? "" : "|", others[i]);
    return out + ")";
  }
  std::string expression() const {
    if (!negated) return positive();
    if (others.empty() && !items.empty()) return negated_set(items);
    return fmt::format("(?:(?!{})(?s:.))", positive());
  }
};

class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  Result<std::string> run() {
    if (in_.size() > kMaxPattern) {
      return fail(ErrorCode::kUnsupported, fmt::format("the pattern is {} bytes long, more than {}",
                                                       in_.size(), kMaxPattern));
    }
    NIBBLE_ASSIGN(std::string out, alternatives(0));
    if (at_ < in_.size()) return wrong("a closing parenthesis without an opening one");
    return out;
  }

 private:
  bool more() const { return at_ < in_.size(); }
  char peek(size_t ahead = 0) const { return at_ + ahead < in_.size() ? in_[at_ + ahead] : '\0'; }
  bool take(std::string_view s) {
    if (in_.substr(at_, s.size()) != s) return false;
    at_ += s.size();
    return true;
  }
  Failure wrong(std::string_view what) const {
    return fail(ErrorCode::kUnsupported, fmt::format("byte {} of the pattern: {}", at_, what));
  }

  // Up to the closing parenthesis or the end. An option that stands alone, (?i), opens a group that
  // ends where this one does.
  Result<std::string> alternatives(int depth) {
    if (depth > kMaxDepth) return wrong("groups nested deeper than 100 levels");
    std::string out;
    int open = 0;
    while (more() && peek() != ')') {
      if (take("|")) {
        out += '|';
        continue;
      }
      if (peek() == '(' && peek(1) == '?' && take_options_alone(out)) {
        ++open;
        continue;
      }
      NIBBLE_ASSIGN(std::string atom, quantified(depth));
      out += atom;
    }
    out.append(static_cast<size_t>(open), ')');
    return out;
  }

  // "(?i)" and the like; writes "(?i:" and says whether it was there.
  bool take_options_alone(std::string& out) {
    const size_t start = at_;
    at_ += 2;
    const auto letters = option_letters();
    if (letters && peek() == ')') {
      ++at_;
      out += fmt::format("(?{}:", *letters);
      return true;
    }
    at_ = start;
    return false;
  }

  std::optional<std::string> option_letters() {
    std::string out;
    for (; more(); ++at_) {
      const char c = peek();
      if (c == 'i' || c == '-') {
        out += c;
      } else if (c == 'm') {
        out += 's';
      } else {
        break;
      }
    }
    if (out.empty()) return std::nullopt;
    return out;
  }

  Result<std::string> quantified(int depth) {
    NIBBLE_ASSIGN(std::string atom, one_atom(depth));
    for (bool quantified_once = false;; quantified_once = true) {
      std::string quantifier;
      if (const char c = peek(); more() && (c == '*' || c == '+' || c == '?')) {
        ++at_;
        quantifier = c;
        if (peek() == '?' || peek() == '+') quantifier += in_[at_++];
      } else if (!take_interval(quantifier)) {
        return atom;
      }
      if (quantified_once) atom = fmt::format("(?:{})", atom);
      atom += quantifier;
    }
  }

  // "{2}", "{2,}", "{2,3}", "{,3}", with a "?" behind all but the first; else nothing is taken.
  bool take_interval(std::string& out) {
    if (peek() != '{' || !more()) return false;
    size_t i = at_ + 1;
    const auto digits = [&] {
      const size_t start = i;
      while (i < in_.size() && is_digit(in_[i])) ++i;
      return in_.substr(start, i - start);
    };
    const std::string_view low = digits();
    bool comma = false;
    std::string_view high;
    if (i < in_.size() && in_[i] == ',') {
      comma = true;
      ++i;
      high = digits();
    }
    if (i >= in_.size() || in_[i] != '}' || (low.empty() && high.empty())) return false;
    at_ = i + 1;
    out = fmt::format("{{{}{}{}}}", low.empty() ? "0" : low, comma ? "," : "", high);
    if (comma && take("?")) out += '?';
    return true;
  }

  Result<std::string> one_atom(int depth) {
    const char c = in_[at_];
    if (c == '(') return group(depth);
    if (c == '[') {
      ++at_;
      NIBBLE_ASSIGN(CharSet set, bracket(depth + 1));
      return set.expression();
    }
    if (c == '\\') return escape_outside();
    ++at_;
    if (c == '{') return std::string("\\{");
    if (c == '*' || c == '+' || c == '?') return wrong("a quantifier with nothing before it");
    if (static_cast<unsigned char>(c) < 0x80) return c == '\0' ? "\\x00" : std::string(1, c);
    std::string out(1, c);  // a quantifier belongs to the whole character
    while (more() && (static_cast<unsigned char>(peek()) & 0xc0) == 0x80) out += in_[at_++];
    return out;
  }

  Result<std::string> group(int depth) {
    ++at_;
    std::string head = "(";
    if (take("?#")) {
      while (more() && peek() != ')') ++at_;
      if (!take(")")) return wrong("a comment that does not end");
      return std::string("(?:)");
    }
    if (peek() == '?') {
      NIBBLE_ASSIGN(head, group_head());
    }
    NIBBLE_ASSIGN(std::string inside, alternatives(depth + 1));
    if (!take(")")) return wrong("a group that does not end");
    return fmt::format("{}{})", head, inside);
  }

  Result<std::string> group_head() {
    for (const std::string_view head : {"?:", "?=", "?!", "?<=", "?<!", "?>"}) {
      if (take(head)) return fmt::format("({}", head);
    }
    if (peek(1) == '<' || peek(1) == '\'') {
      const char close = peek(1) == '<' ? '>' : '\'';
      const size_t end = in_.find(close, at_ + 2);
      if (end == in_.npos) return wrong("a group name that does not end");
      const std::string head = fmt::format("({}", in_.substr(at_, end + 1 - at_));
      at_ = end + 1;
      return head;
    }
    const size_t start = at_;
    ++at_;
    if (const auto letters = option_letters(); letters && take(":")) {
      return fmt::format("(?{}:", *letters);
    }
    at_ = start;
    return wrong(
        fmt::format("a group that starts with \"({}\" is not supported", in_.substr(at_, 3)));
  }

  // A number in `base` of at most `digits` digits, `{...}` around it where `braced`.
  Result<uint32_t> number(int base, size_t digits, bool braced) {
    uint32_t value = 0;
    size_t n = 0;
    for (; more() && n < digits; ++n, ++at_) {
      const int d = hex_value(peek());
      if (d < 0 || d >= base) break;
      value = value * static_cast<uint32_t>(base) + static_cast<uint32_t>(d);
    }
    if (n == 0) return wrong("an escape without its number");
    if (braced && !take("}")) return wrong("an escape \"{\" without its \"}\"");
    if (value > 0x10ffff) return wrong("a character above U+10FFFF");
    return value;
  }

  // Escapes that stand for one character, the same inside and outside of brackets; `at_` is behind
  // the backslash. Nothing where it is another kind of escape.
  Result<std::optional<uint32_t>> char_escape() {
    using Value = std::optional<uint32_t>;
    const char c = peek();
    const auto simple = [&](uint32_t value) {
      ++at_;
      return Value(value);
    };
    switch (c) {
      case 't':
        return simple(0x09);
      case 'n':
        return simple(0x0a);
      case 'v':
        return simple(0x0b);
      case 'f':
        return simple(0x0c);
      case 'r':
        return simple(0x0d);
      case 'a':
        return simple(0x07);
      case 'e':
        return simple(0x1b);
      default:
        break;
    }
    if (c == 'x' || c == 'u' || c == '0') {
      ++at_;
      const bool braced = c == 'x' && take("{");
      if (c == '0' && !(peek() >= '0' && peek() <= '7')) return Value(0);
      auto value = c == '0' ? number(8, 2, false)
                            : number(16,
                                     braced     ? 8
                                     : c == 'x' ? 2
                                                : 4,
                                     braced);
      if (!value) return fail(std::move(value).error());
      return Value(*value);
    }
    if (is_letter(c) || is_digit(c) || static_cast<unsigned char>(c) >= 0x80 || c == '\0') {
      return Value();
    }
    return simple(static_cast<unsigned char>(c));
  }

  // The set of \d \w \s \h or \p{...}; `at_` is behind the backslash and moves behind the escape.
  // Nothing where it is another kind of escape.
  Result<std::optional<CharSet>> set_escape(bool in_bracket) {
    using Value = std::optional<CharSet>;
    const auto simple = [&](std::string_view items, bool negated) {
      ++at_;
      return Value(CharSet{std::string(items), {}, negated});
    };
    switch (peek()) {
      case 'd':
        return simple("\\p{Nd}", false);
      case 'D':
        return simple("\\p{Nd}", true);
      case 'w':
        return simple(in_bracket ? kWordSet : kWordSetOutside, false);
      case 'W':
        return simple(in_bracket ? kWordSet : kWordSetOutside, true);
      case 's':
        return simple(kSpaceSet, false);
      case 'S':
        return simple(kNotSpaceSet, false);
      case 'h':
        return simple(kHexSet, false);
      case 'H':
        return simple(kHexSet, true);
      case 'p':
      case 'P':
        break;
      default:
        return Value();
    }
    bool negated = peek() == 'P';
    ++at_;
    if (!take("{")) return wrong("\\p without a name in braces");
    if (take("^")) negated = !negated;
    const size_t end = in_.find('}', at_);
    if (end == in_.npos || end - at_ > 64) return wrong("\\p{ without its \"}\"");
    const std::string_view name = in_.substr(at_, end - at_);
    NIBBLE_ASSIGN(std::string items, property(name));
    at_ = end + 1;
    return Value(CharSet{std::move(items), {}, negated});
  }

  Result<std::string> property(std::string_view name) {
    if (auto set = property_set(name)) return std::move(*set);
    return wrong(fmt::format("\\p{{{}}} is not a known property", name));
  }

  Result<std::string> escape_outside() {
    ++at_;
    if (!more()) return wrong("a backslash at the end");
    NIBBLE_ASSIGN(std::optional<uint32_t> c, char_escape());
    if (c) return literal(*c);
    NIBBLE_ASSIGN(std::optional<CharSet> set, set_escape(false));
    if (set) return set->expression();
    const char kind = in_[at_];
    const size_t start = at_++;
    if (kind == 'b' || kind == 'B') {  // where \w begins or ends, with \w as it is here
      const std::string word = fmt::format("[{}]", kWordSetOutside);
      const char* form = kind == 'b' ? "(?:(?<={0})(?!{0})|(?<!{0})(?={0}))"
                                     : "(?:(?<={0})(?={0})|(?<!{0})(?!{0}))";
      return fmt::format(fmt::runtime(form), word);
    }
    if (kind == 'O') return std::string("(?s:.)");
    if (std::string_view("AzZGRKN").find(kind) != std::string_view::npos) {
      return fmt::format("\\{}", kind);
    }
    if (is_digit(kind)) {
      while (is_digit(peek())) ++at_;
      return fmt::format("(?:\\{})", in_.substr(start, at_ - start));
    }
    if (kind == 'k' || kind == 'g') {
      const size_t end = peek() == '<' ? in_.find('>', at_) : in_.npos;
      if (end == in_.npos) return wrong("\\k or \\g without a name in angle brackets");
      at_ = end + 1;
      return fmt::format("\\{}", in_.substr(start, at_ - start));
    }
    at_ = start;
    if (is_letter(kind)) return wrong(fmt::format("\\{} is not supported", kind));
    size_t i = at_ + 1;  // a character that needed no backslash
    while (i < in_.size() && (static_cast<unsigned char>(in_[i]) & 0xc0) == 0x80) ++i;
    const std::string out(in_.substr(at_, i - at_));
    at_ = i;
    return out;
  }

  static std::string literal(uint32_t c) { return fmt::format("\\x{{{:x}}}", c); }

  // The rest of a bracket, behind its "[".
  Result<CharSet> bracket(int depth) {
    if (depth > kMaxDepth) return wrong("brackets nested deeper than 100 levels");
    const bool negated = take("^");
    CharSet set;
    std::vector<std::string> terms;  // of an intersection, all but the last
    for (bool first = true;; first = false) {
      if (!more()) return wrong("a bracket that does not end");
      if (!first && take("]")) break;
      if (take("&&")) {
        terms.push_back(set.positive());
        set = CharSet{};
        continue;
      }
      NIBBLE_TRY(bracket_item(depth, set));
    }
    if (!terms.empty()) {
      std::string both = "(?:";
      for (const std::string& term : terms) both += fmt::format("(?={})", term);
      both += set.positive() + ")";
      set = CharSet{"", {std::move(both)}, false};
    }
    set.negated = negated;
    return set;
  }

  Result<void> bracket_item(int depth, CharSet& set) {
    if (peek() == '[' && peek(1) == ':') {
      const size_t end = in_.find(":]", at_ + 2);
      std::string_view name = end == in_.npos ? "" : in_.substr(at_ + 2, end - at_ - 2);
      const bool negated = !name.empty() && name[0] == '^';
      if (negated) name.remove_prefix(1);
      if (const auto items = bracket_set(name)) {
        at_ = end + 2;
        unite(set, CharSet{std::string(*items), {}, negated});
        return {};
      }
    }
    if (take("[")) {
      NIBBLE_ASSIGN(CharSet inner, bracket(depth + 1));
      unite(set, inner);
      return {};
    }
    if (peek() == '\\') {
      ++at_;
      NIBBLE_ASSIGN(std::optional<CharSet> escaped, set_escape(true));
      if (escaped) {
        unite(set, *escaped);
        return {};
      }
      --at_;
    }
    NIBBLE_ASSIGN(uint32_t low, bracket_char());
    set.items += literal(low);
    if (peek() != '-' || peek(1) == ']' || at_ + 1 >= in_.size()) return {};
    const size_t dash = at_++;
    const bool set_follows =
        peek() == '[' ||
        (peek() == '\\' && std::string_view("dDwWsShHpP").find(peek(1)) != std::string_view::npos);
    if (set_follows) {  // the dash is a character of its own
      at_ = dash + 1;
      set.items += literal('-');
      return {};
    }
    NIBBLE_ASSIGN(uint32_t high, bracket_char());
    if (high < low) return wrong("a range that ends before it begins");
    set.items += '-';
    set.items += literal(high);
    return {};
  }

  Result<uint32_t> bracket_char() {
    if (take("\\")) {
      if (!more()) return wrong("a backslash at the end");
      if (take("b")) return uint32_t{0x08};
      NIBBLE_ASSIGN(std::optional<uint32_t> c, char_escape());
      if (c) return *c;
    }
    // One character as it stands; the pattern is valid UTF-8.
    const auto lead = static_cast<unsigned char>(in_[at_++]);
    if (lead < 0x80) return uint32_t{lead};
    uint32_t value = lead < 0xe0 ? lead & 0x1fu : lead < 0xf0 ? lead & 0x0fu : lead & 0x07u;
    while (more() && (static_cast<unsigned char>(peek()) & 0xc0) == 0x80) {
      value = value << 6 | (static_cast<unsigned char>(in_[at_++]) & 0x3fu);
    }
    return value;
  }

  static void unite(CharSet& set, const CharSet& other) {
    if (!other.negated && other.others.empty()) {
      set.items += other.items;
    } else if (other.negated && other.others.empty() && other.items.starts_with("\\p{") &&
               other.items.find("\\", 1) == std::string::npos) {
      set.items +=
          fmt::format("\\P{}", other.items.substr(2));  // one property: its complement is a set too
    } else {
      set.others.push_back(other.expression());
    }
  }

  std::string_view in_;
  size_t at_ = 0;
};

}  // namespace

Result<std::string> translate_regex(std::string_view oniguruma) {
  return Translator(oniguruma).run();
}

}  // namespace nibble::text
