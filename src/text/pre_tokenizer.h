// How a normalized text is cut into the words that a model sees. The steps are those of
// `tokenizers`.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "nibble/result.h"
#include "text/regex.h"

namespace nibble::text {

// A piece of the text; `at_start` says that it begins where the whole text does. Where `id` is set
// the piece is an added token, which no step touches.
struct Piece {
  std::string_view text;
  bool at_start = false;
  int32_t id = -1;
};

// The pieces, and the strings that hold what steps have rewritten.
struct Pieces {
  std::vector<Piece> list;
  std::deque<std::string> storage;
};

// What becomes of a delimiter.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// The classes of characters that a step cuts at.
enum class CharClass { kWhitespace, kPunctuation, kNumeric };

struct SplitByPattern {
  std::variant<std::string, Regex> pattern;
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;  // what lies between the matches are the delimiters
};
struct SplitByClass {
  CharClass chars = CharClass::kWhitespace;
  SplitBehavior behavior = SplitBehavior::kRemoved;
};
struct SplitWordsAndSymbols {};  // "Whitespace": runs of \w, and runs of what is neither \w nor \s
struct SplitEvery {
  size_t chars = 5;  // "FixedLength"
};
struct PreByteLevel {
  bool add_prefix_space = true;
  std::vector<Regex> regex;  // at most one: GPT-2's, where use_regex is set
};
struct PreMetaspace {
  enum class Prepend { kAlways, kFirst, kNever };
  std::string replacement = "\xe2\x96\x81";  // U+2581
  Prepend prepend = Prepend::kAlways;
  bool split = true;
};

using PreTokenizeStep = std::variant<SplitByPattern, SplitByClass, SplitWordsAndSymbols, SplitEvery,
                                     PreByteLevel, PreMetaspace>;

class PreTokenizer {
 public:
  template <class Step>
  void add(Step step) {
    steps_.emplace_back(std::move(step));
  }
  Result<void> run(Pieces& pieces) const;

 private:
  std::vector<PreTokenizeStep> steps_;
};

// GPT-2's own pattern, which the ByteLevel step uses.
extern const std::string_view kGpt2Pattern;

}  // namespace nibble::text
