// What happens to a text before it is cut into words. The steps are those of `tokenizers`.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "nibble/result.h"
#include "text/charsmap.h"
#include "text/regex.h"
#include "text/unicode.h"

namespace nibble::text {

struct NormalizeForm {
  NormalForm form = NormalForm::kNfc;
};
struct NormalizeLowercase {};
struct NormalizeStrip {
  bool left = true;
  bool right = true;
};
struct NormalizeStripAccents {};
struct NormalizeNmt {};
struct NormalizeByteLevel {};
struct NormalizePrepend {
  std::string prefix;  // put before a text that is not empty
};
struct NormalizeReplace {
  std::variant<std::string, Regex> pattern;
  std::string content;
};
struct NormalizeBert {
  bool clean_text = true;
  bool handle_chinese_chars = true;
  bool strip_accents = true;
  bool lowercase = true;
};
struct NormalizePrecompiled {
  CharsMap map;
  // Where rewriting starts: at grapheme clusters with the shortest rule (as `tokenizers` does), or
  // anywhere with the longest rule (as sentencepiece does).
  bool by_grapheme = true;
};
// sentencepiece's own: white space at the ends and repeated spaces go.
struct NormalizeExtraSpaces {};

using NormalizeStep =
    std::variant<NormalizeForm, NormalizeLowercase, NormalizeStrip, NormalizeStripAccents,
                 NormalizeNmt, NormalizeByteLevel, NormalizePrepend, NormalizeReplace,
                 NormalizeBert, NormalizePrecompiled, NormalizeExtraSpaces>;

class Normalizer {
 public:
  template <class Step>
  void add(Step step) {
    steps_.emplace_back(std::move(step));
  }
  bool empty() const { return steps_.empty(); }
  // Precondition: text is valid UTF-8; so is the result. An error comes from a regular expression.
  Result<std::string> run(std::string_view text) const;
  // Whether the first character of `text` is gone afterwards: what follows is then no longer the
  // beginning of the text.
  Result<bool> removes_front(std::string_view text) const;

 private:
  std::vector<NormalizeStep> steps_;
};

// `text` with every `pattern` replaced. Also used by decoders.
Result<std::string> replace_all(std::string_view text,
                                const std::variant<std::string, Regex>& pattern,
                                std::string_view content);

}  // namespace nibble::text
