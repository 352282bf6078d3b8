// Regular expressions of tokenizer files. They are written for Oniguruma (Ruby syntax), which
// `tokenizers` uses; PCRE2 runs them, after a translation of what the two write differently
// (regex_syntax.cc).
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/result.h"

namespace nibble::text {

// A half-open range of bytes.
struct Span {
  size_t begin = 0;
  size_t end = 0;
};

// The pattern in PCRE2's syntax. Errors name what cannot be translated.
Result<std::string> translate_regex(std::string_view oniguruma);

// A compiled pattern: immutable, shared by copies, safe to use from many threads.
class Regex {
 public:
  // `where` names the file and key in messages.
  static Result<Regex> compile(std::string_view oniguruma, std::string_view where);

  const std::string& pattern() const;

 private:
  friend class RegexMatcher;
  struct Code;
  explicit Regex(std::shared_ptr<const Code> code) : code_(std::move(code)) {}
  std::shared_ptr<const Code> code_;
};

// What one thread needs to run a Regex; made once for a text, used for all its pieces. It counts
// the work done: a pattern that backtracks without end is an error, not a hang.
class RegexMatcher {
 public:
  // `text_bytes` is the length of all pieces together; the allowance of processor time grows with
  // it (0.5 s and 4 s per MiB).
  RegexMatcher(const Regex& regex, size_t text_bytes);
  ~RegexMatcher();
  RegexMatcher(const RegexMatcher&) = delete;
  RegexMatcher& operator=(const RegexMatcher&) = delete;

  // Puts the matches in `text`, left to right and not overlapping, into `out` (cleared first). An
  // empty match right behind another match is left out. Precondition: text is valid UTF-8.
  Result<void> find_all(std::string_view text, std::vector<Span>& out);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace nibble::text
