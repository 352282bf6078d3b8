#include "text/vocab_json.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <functional>
#include <optional>

#include "text/unicode.h"

namespace nibble::text {
namespace {

// Finds its way through JSON text. It checks what it reads into values; what it only skips is
// checked by the parser of the rest.
class Scanner {
 public:
  explicit Scanner(std::string_view text, size_t at = 0) : s_(text), i_(at) {}

  size_t at() const { return i_; }
  void space() {
    while (i_ < s_.size() &&
           (s_[i_] == ' ' || s_[i_] == '\n' || s_[i_] == '\r' || s_[i_] == '\t')) {
      ++i_;
    }
  }
  char peek() {
    space();
    return i_ < s_.size() ? s_[i_] : '\0';
  }
  bool take(char c) {
    if (peek() != c || i_ >= s_.size()) return false;
    ++i_;
    return true;
  }

  bool skip_string() {
    if (!take('"')) return false;
    while (i_ < s_.size()) {
      const char c = s_[i_++];
      if (c == '"') return true;
      if (c == '\\') ++i_;
    }
    return false;
  }

  // Any value; brackets are only counted.
  bool skip_value() {
    int depth = 0;
    do {
      const char c = peek();
      if (i_ >= s_.size()) return false;
      if (c == '"') {
        if (!skip_string()) return false;
      } else if (c == '{' || c == '[') {
        ++depth;
        ++i_;
        continue;
      } else if (c == '}' || c == ']') {
        if (--depth < 0) return false;
        ++i_;
      } else if ((c == ',' || c == ':') && depth > 0) {
        ++i_;
        continue;
      } else {
        const size_t start = i_;
        while (i_ < s_.size() && std::strchr(",:]}[{\" \t\r\n", s_[i_]) == nullptr) ++i_;
        if (i_ == start) return false;
      }
    } while (depth > 0);
    return true;
  }

  // A string without its quotes; nothing if it is not one. A view into the document where it has
  // no escapes, else into `buffer`.
  std::optional<std::string_view> string(std::string& buffer) {
    if (!take('"')) return std::nullopt;
    const size_t start = i_;
    bool ascii = true;
    for (; i_ < s_.size() && s_[i_] != '"' && s_[i_] != '\\'; ++i_) {
      if (static_cast<unsigned char>(s_[i_]) < 0x20) return std::nullopt;
      ascii &= static_cast<unsigned char>(s_[i_]) < 0x80;
    }
    if (i_ >= s_.size()) return std::nullopt;
    std::string_view out = s_.substr(start, i_ - start);
    if (s_[i_] == '\\') {
      buffer = out;
      if (!escaped_rest(buffer)) return std::nullopt;
      out = buffer;
      ascii = false;
    } else {
      ++i_;
    }
    if (!ascii && find_invalid_utf8(out)) return std::nullopt;
    return out;
  }

  template <class Number>
  std::optional<Number> number() {
    space();
    Number value{};
    const auto [end, error] = std::from_chars(s_.data() + i_, s_.data() + s_.size(), value);
    if (error != std::errc()) return std::nullopt;
    i_ = static_cast<size_t>(end - s_.data());
    return value;
  }

 private:
  bool escaped_rest(std::string& out) {
    while (i_ < s_.size()) {
      const char c = s_[i_++];
      if (c == '"') return true;
      if (static_cast<unsigned char>(c) < 0x20) return false;
      if (c != '\\') {
        out += c;
        continue;
      }
      if (i_ >= s_.size()) return false;
      switch (s_[i_++]) {
        case '"':
          out += '"';
          break;
        case '\\':
          out += '\\';
          break;
        case '/':
          out += '/';
          break;
        case 'b':
          out += '\b';
          break;
        case 'f':
          out += '\f';
          break;
        case 'n':
          out += '\n';
          break;
        case 'r':
          out += '\r';
          break;
        case 't':
          out += '\t';
          break;
        case 'u':
          if (!unicode_escape(out)) return false;
          break;
        default:
          return false;
      }
    }
    return false;
  }

  std::optional<uint32_t> hex4() {
    uint32_t value = 0;
    if (i_ + 4 > s_.size()) return std::nullopt;
    const auto [end, error] = std::from_chars(s_.data() + i_, s_.data() + i_ + 4, value, 16);
    if (error != std::errc() || end != s_.data() + i_ + 4) return std::nullopt;
    i_ += 4;
    return value;
  }
  bool unicode_escape(std::string& out) {
    auto value = hex4();
    if (!value) return false;
    if (*value >= 0xdc00 && *value < 0xe000) return false;
    if (*value >= 0xd800 && *value < 0xdc00) {  // the first half of a character above U+FFFF
      if (s_.substr(i_, 2) != "\\u") return false;
      i_ += 2;
      const auto low = hex4();
      if (!low || *low < 0xdc00 || *low >= 0xe000) return false;
      value = 0x10000 + ((*value - 0xd800) << 10) + (*low - 0xdc00);
    }
    append_utf8(out, *value);
    return true;
  }

  std::string_view s_;
  size_t i_;
};

// Walks the members of the object at the scanner; `member(key)` must consume the value.
bool each_member(Scanner& scan, const std::function<bool(std::string_view)>& member) {
  if (!scan.take('{')) return false;
  if (scan.take('}')) return true;
  std::string buffer;
  do {
    const auto key = scan.string(buffer);
    if (!key || !scan.take(':') || !member(*key)) return false;
  } while (scan.take(','));
  return scan.take('}');
}

Failure bad(const JsonPart& part, const Scanner& scan, std::string_view where,
            std::string_view what) {
  return fail(ErrorCode::kCorrupt,
              fmt::format("{}: {} at byte {}", where, what, part.offset + scan.at()));
}

std::string_view shown(std::string_view token) { return token.substr(0, 40); }

// ["x", ...]: `item` reads one; false where it cannot.
template <class Item>
Result<void> each_item(const JsonPart& part, Scanner& scan, std::string_view where,
                       std::string_view what, const Item& item) {
  if (!scan.take('[')) return bad(part, scan, where, fmt::format("{}: expected a list", what));
  if (scan.take(']')) return {};
  do {
    NIBBLE_TRY(item());
  } while (scan.take(','));
  if (!scan.take(']')) return bad(part, scan, where, fmt::format("{}: expected , or ]", what));
  return {};
}

}  // namespace

TokenizerJsonParts split_tokenizer_json(std::string_view document) {
  TokenizerJsonParts out;
  Scanner scan(document);
  const auto cut = [&](JsonPart& part) {
    scan.space();
    const size_t begin = scan.at();
    if (!scan.skip_value()) return false;
    part = {document.substr(begin, scan.at() - begin), begin};
    return true;
  };
  // A second "model" or "vocab" replaces nothing: the parser of the rest sees both keys.
  each_member(scan, [&](std::string_view key) {
    if (key != "model" || scan.peek() != '{') return scan.skip_value();
    return each_member(scan, [&](std::string_view inner) {
      if (inner == "vocab" && out.vocab.text.empty()) return cut(out.vocab);
      if (inner == "merges" && out.merges.text.empty()) return cut(out.merges);
      return scan.skip_value();
    });
  });
  JsonPart first = out.vocab, second = out.merges;
  if (second.offset < first.offset) std::swap(first, second);
  size_t done = 0;
  for (const JsonPart& part : {first, second}) {
    if (part.text.empty()) continue;
    out.rest += document.substr(done, part.offset - done);
    out.rest += "null";
    done = part.offset + part.text.size();
  }
  out.rest += document.substr(done);
  return out;
}

Result<void> read_vocab_object(const JsonPart& part, std::string_view where, Vocab& vocab) {
  Scanner scan(part.text);
  const std::string place = fmt::format("{}: model.vocab", where);
  if (!scan.take('{')) return bad(part, scan, place, "expected an object of tokens");
  vocab.reserve(part.text.size() / 20, part.text.size() / 2);
  std::string buffer;
  if (scan.take('}')) return {};
  do {
    const auto token = scan.string(buffer);
    if (!token) return bad(part, scan, place, "expected a token, a valid string,");
    if (!scan.take(':')) return bad(part, scan, place, "expected : behind a token");
    const auto id = scan.number<int64_t>();
    if (!id) {
      return bad(part, scan, place,
                 fmt::format("expected the id of \"{}\", an integer,", shown(*token)));
    }
    if (*id < 0 || *id > Vocab::kMaxId) {
      return bad(part, scan, place,
                 fmt::format("token \"{}\" has the id {}; ids go from 0 to {};", shown(*token), *id,
                             Vocab::kMaxId));
    }
    switch (vocab.add(*token, static_cast<int32_t>(*id))) {
      case Vocab::Add::kOk:
        break;
      case Vocab::Add::kSameText:
        return bad(part, scan, place, fmt::format("token \"{}\" stands twice,", shown(*token)));
      case Vocab::Add::kSameId:
        return bad(part, scan, place,
                   fmt::format("tokens \"{}\" and \"{}\" have the same id {},",
                               shown(*vocab.text(static_cast<int32_t>(*id))), shown(*token), *id));
      case Vocab::Add::kBadId:
      case Vocab::Add::kTooMuch:
        return bad(part, scan, place, "more than 1 GiB of text");
    }
  } while (scan.take(','));
  if (!scan.take('}')) return bad(part, scan, place, "expected , or }");
  return {};
}

Result<void> read_vocab_list(const JsonPart& part, std::string_view where, Vocab& vocab,
                             std::vector<double>& scores) {
  Scanner scan(part.text);
  const std::string place = fmt::format("{}: model.vocab", where);
  std::string buffer;
  return each_item(part, scan, place, "tokens with scores", [&]() -> Result<void> {
    const auto token = scan.take('[') ? scan.string(buffer) : std::nullopt;
    if (!token || !scan.take(',')) return bad(part, scan, place, "expected [\"token\", score]");
    const auto score = scan.number<double>();
    if (!score || !std::isfinite(*score) || !scan.take(']')) {
      return bad(part, scan, place, fmt::format("expected the score of \"{}\"", shown(*token)));
    }
    if (vocab.add_or_replace(*token, static_cast<int32_t>(scores.size())) != Vocab::Add::kOk) {
      return bad(part, scan, place, "too many tokens");
    }
    scores.push_back(*score);
    return {};
  });
}

Result<void> read_merges(const JsonPart& part, std::string_view where, const Vocab& vocab,
                         std::string_view prefix, MergeTable& merges) {
  Scanner scan(part.text);
  const std::string place = fmt::format("{}: model.merges", where);
  merges.reserve(part.text.size() / 40);
  MergeBuilder builder(vocab, prefix, merges);
  // Texts with escapes lie here until the builder has looked them up.
  std::array<std::string, 2 * MergeBuilder::kBatch> buffers;
  size_t rank = 0;
  const auto missing = [&](const MergeBuilder::Bad& wrong) {
    return fail(
        ErrorCode::kCorrupt,
        fmt::format("{}: merge {} (\"{}\" and \"{}\"): \"{}\" is no token of the vocabulary", place,
                    wrong.rank, shown(wrong.left), shown(wrong.right), shown(wrong.missing)));
  };
  NIBBLE_TRY(each_item(part, scan, place, "merges", [&]() -> Result<void> {
    std::string* buffer = &buffers[rank % MergeBuilder::kBatch * 2];
    std::optional<std::string_view> left, right;
    if (scan.take('[')) {
      left = scan.string(buffer[0]);
      if (left && scan.take(',')) right = scan.string(buffer[1]);
      if (!right || !scan.take(']')) {
        return bad(part, scan, place,
                   fmt::format("merge {}: expected [\"left\", \"right\"]", rank));
      }
    } else {
      const auto pair = scan.string(buffer[0]);
      const size_t space = pair ? pair->find(' ') : std::string_view::npos;
      if (space == std::string_view::npos || pair->find(' ', space + 1) != pair->npos) {
        return bad(part, scan, place,
                   fmt::format("merge {}: expected two parts with a space between", rank));
      }
      left = pair->substr(0, space);
      right = pair->substr(space + 1);
    }
    ++rank;
    if (const auto wrong = builder.add(*left, *right)) return missing(*wrong);
    return {};
  }));
  if (const auto wrong = builder.finish()) return missing(*wrong);
  return {};
}

}  // namespace nibble::text
