#include "text/pre_tokenizer.h"

#include <optional>

#include "text/byte_level.h"
#include "text/unicode.h"

namespace nibble::text {

const std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

namespace {

// A part of a piece: a delimiter or what lies between.
struct Part {
  size_t begin = 0;
  size_t end = 0;
  bool match = false;
};

// Turns matches into parts that cover the text.
void cover(const std::vector<Span>& matches, size_t size, std::vector<Part>& parts) {
  size_t done = 0;
  for (const Span& m : matches) {
    if (m.begin > done) parts.push_back({done, m.begin, false});
    parts.push_back({m.begin, m.end, true});
    done = m.end;
  }
  if (done < size) parts.push_back({done, size, false});
}

void find_words(std::string_view text, std::string_view word, std::vector<Span>& out) {
  out.clear();
  if (word.empty()) return;
  for (size_t at = 0; (at = text.find(word, at)) != text.npos; at += word.size()) {
    out.push_back({at, at + word.size()});
  }
}

bool is_in(CharClass chars, char32_t c) {
  switch (chars) {
    case CharClass::kWhitespace:
      return is_whitespace(c);
    case CharClass::kPunctuation:
      return is_punctuation(c);
    case CharClass::kNumeric:
      return is_numeric(c);
  }
  return false;
}

// Joins parts as `behavior` says and appends them to `out`.
void deliver(const Piece& piece, std::vector<Part>& parts, SplitBehavior behavior,
             std::vector<Piece>& out) {
  const auto emit = [&](size_t begin, size_t end) {
    if (end > begin) {
      out.push_back({piece.text.substr(begin, end - begin), piece.at_start && begin == 0});
    }
  };
  switch (behavior) {
    case SplitBehavior::kIsolated:
      for (const Part& p : parts) emit(p.begin, p.end);
      return;
    case SplitBehavior::kRemoved:
      for (const Part& p : parts) {
        if (!p.match) emit(p.begin, p.end);
      }
      return;
    case SplitBehavior::kContiguous:
      for (size_t i = 0; i < parts.size();) {
        size_t k = i + 1;
        while (k < parts.size() && parts[k].match == parts[i].match) ++k;
        emit(parts[i].begin, parts[k - 1].end);
        i = k;
      }
      return;
    case SplitBehavior::kMergedWithPrevious:
      for (size_t i = 0; i < parts.size();) {
        const bool takes = !parts[i].match && i + 1 < parts.size() && parts[i + 1].match;
        emit(parts[i].begin, parts[takes ? i + 1 : i].end);
        i += takes ? 2 : 1;
      }
      return;
    case SplitBehavior::kMergedWithNext:
      for (size_t i = 0; i < parts.size();) {
        const bool takes = parts[i].match && i + 1 < parts.size() && !parts[i + 1].match;
        emit(parts[i].begin, parts[takes ? i + 1 : i].end);
        i += takes ? 2 : 1;
      }
      return;
  }
}

size_t total_bytes(const Pieces& pieces) {
  size_t n = 0;
  for (const Piece& piece : pieces.list) n += piece.text.size();
  return n;
}

// Cuts every piece: find(text, parts) covers the text with parts.
template <class Find>
Result<void> cut_all(Pieces& pieces, SplitBehavior behavior, const Find& find) {
  std::vector<Piece> out;
  out.reserve(pieces.list.size());
  std::vector<Part> parts;
  for (const Piece& piece : pieces.list) {
    if (piece.id >= 0) {
      out.push_back(piece);
      continue;
    }
    parts.clear();
    NIBBLE_TRY(find(piece.text, parts));
    deliver(piece, parts, behavior, out);
  }
  pieces.list = std::move(out);
  return {};
}

Result<void> cut_at_pattern(Pieces& pieces, const std::variant<std::string, Regex>& pattern,
                            SplitBehavior behavior, bool invert) {
  std::optional<RegexMatcher> matcher;
  if (const auto* regex = std::get_if<Regex>(&pattern))
    matcher.emplace(*regex, total_bytes(pieces));
  std::vector<Span> spans;
  return cut_all(pieces, behavior,
                 [&](std::string_view text, std::vector<Part>& parts) -> Result<void> {
                   if (matcher) {
                     NIBBLE_TRY(matcher->find_all(text, spans));
                   } else {
                     find_words(text, std::get<std::string>(pattern), spans);
                   }
                   cover(spans, text.size(), parts);
                   for (Part& p : parts) p.match ^= invert;
                   return {};
                 });
}

struct Run {
  Pieces& pieces;

  Result<void> operator()(const SplitByPattern& step) const {
    return cut_at_pattern(pieces, step.pattern, step.behavior, step.invert);
  }

  Result<void> operator()(const SplitByClass& step) const {
    return cut_all(pieces, step.behavior,
                   [&](std::string_view text, std::vector<Part>& parts) -> Result<void> {
                     size_t done = 0;
                     for (size_t i = 0; i < text.size();) {
                       const size_t begin = i;
                       if (!is_in(step.chars, next_char(text, i))) continue;
                       if (begin > done) parts.push_back({done, begin, false});
                       parts.push_back({begin, i, true});
                       done = i;
                     }
                     if (done < text.size()) parts.push_back({done, text.size(), false});
                     return {};
                   });
  }

  Result<void> operator()(const SplitWordsAndSymbols&) const {
    enum Kind { kSpace, kWord, kSymbol };
    const auto kind = [](char32_t c) {
      return is_word(c) ? kWord : is_whitespace(c) ? kSpace : kSymbol;
    };
    return cut_all(pieces, SplitBehavior::kRemoved,
                   [&](std::string_view text, std::vector<Part>& parts) -> Result<void> {
                     for (size_t i = 0; i < text.size();) {
                       const size_t begin = i;
                       const Kind k = kind(next_char(text, i));
                       for (size_t next = i; i < text.size(); i = next) {
                         if (kind(next_char(text, next)) != k) break;
                       }
                       parts.push_back({begin, i, k == kSpace});
                     }
                     return {};
                   });
  }

  Result<void> operator()(const SplitEvery& step) const {
    return cut_all(pieces, SplitBehavior::kIsolated,
                   [&](std::string_view text, std::vector<Part>& parts) -> Result<void> {
                     for (size_t i = 0; i < text.size();) {
                       const size_t begin = i;
                       for (size_t n = 0; n < step.chars && i < text.size(); ++n) {
                         next_char(text, i);
                       }
                       parts.push_back({begin, i, false});
                     }
                     return {};
                   });
  }

  Result<void> operator()(const PreByteLevel& step) const {
    if (step.add_prefix_space) {
      for (Piece& piece : pieces.list) {
        if (piece.id >= 0 || piece.text.starts_with(' ')) continue;
        std::string& spaced = pieces.storage.emplace_back(1, ' ');
        spaced += piece.text;
        piece.text = spaced;
      }
    }
    if (!step.regex.empty()) {
      NIBBLE_TRY(cut_at_pattern(pieces, step.regex[0], SplitBehavior::kIsolated, false));
    }
    // All pieces in one buffer, which must not move once pieces look into it.
    std::string& all = pieces.storage.emplace_back();
    all.reserve(2 * total_bytes(pieces));
    for (Piece& piece : pieces.list) {
      const size_t begin = all.size();
      append_byte_level(all, piece.text);
      piece.text = std::string_view(all).substr(begin);
    }
    return {};
  }

  Result<void> operator()(const PreMetaspace& step) const {
    for (Piece& piece : pieces.list) {
      if (piece.id >= 0) continue;
      std::string& text = pieces.storage.emplace_back();
      for (const char c : piece.text) {
        if (c == ' ') {
          text += step.replacement;
        } else {
          text += c;
        }
      }
      const bool wanted = step.prepend == PreMetaspace::Prepend::kAlways ||
                          (step.prepend == PreMetaspace::Prepend::kFirst && piece.at_start);
      if (wanted && !text.starts_with(step.replacement)) text.insert(0, step.replacement);
      piece.text = text;
    }
    if (!step.split) return {};
    return cut_at_pattern(pieces, step.replacement, SplitBehavior::kMergedWithNext, false);
  }
};

}  // namespace

Result<void> PreTokenizer::run(Pieces& pieces) const {
  for (const PreTokenizeStep& step : steps_) NIBBLE_TRY(std::visit(Run{pieces}, step));
  return {};
}

}  // namespace nibble::text
