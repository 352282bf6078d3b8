// From tokens back to text, one token at a time. The steps are those of `tokenizers`; decoding a
// list is pushing its tokens and finishing, so both give the same text.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/regex.h"

namespace nibble::text {

struct DecodeByteLevel {};     // characters of the byte alphabet -> bytes -> text
struct DecodeByteFallback {};  // <0xE2> -> the byte
struct DecodeFuse {};          // all tokens become one
struct DecodeStrip {           // of every token
  std::string content = " ";   // one character
  size_t start = 0;            // how often at most, at each end
  size_t stop = 0;
};
struct DecodeReplace {
  std::variant<std::string, Regex> pattern;
  std::string content;
};
struct DecodeMetaspace {
  std::string replacement = "\xe2\x96\x81";
  bool drop_first = true;  // the first token has no space there
};
struct DecodeWordPiece {
  std::string prefix = "##";
  bool cleanup = true;
};
struct DecodeBpe {
  std::string suffix = "</w>";
};
struct DecodeCtc {
  std::string pad_token = "<pad>";
  std::string word_delimiter_token = "|";
  bool cleanup = true;
};
struct DecodeSpaced {};  // no decoder at all: tokens with a space between

using DecodeStep =
    std::variant<DecodeByteLevel, DecodeByteFallback, DecodeFuse, DecodeStrip, DecodeReplace,
                 DecodeMetaspace, DecodeWordPiece, DecodeBpe, DecodeCtc, DecodeSpaced>;

class Decoder {
 public:
  template <class Step>
  void add(Step step) {
    steps_.emplace_back(std::move(step));
  }
  const std::vector<DecodeStep>& steps() const { return steps_; }

  // The bytes that a token in the middle of a text adds; may be a part of a character.
  std::string piece(std::string_view token) const;

 private:
  std::vector<DecodeStep> steps_;
};

// The state of one text being decoded. A replacement by a regular expression that fails (see
// RegexMatcher) leaves its token as it is.
//
// One rule differs from `tokenizers`: where a run of byte tokens is not valid UTF-8, its valid
// characters are kept and every other byte is U+FFFD (there, every byte of the run is). A stream
// could not know whether the run will stay valid.
class DecodeStream {
 public:
  explicit DecodeStream(const Decoder& decoder);
  // The text that is certain after this token; often empty, never a part of a character.
  std::string push(const Decoder& decoder, std::string_view token);
  std::string finish(const Decoder& decoder);

 private:
  struct State {
    std::string held;    // bytes or text not handed on yet
    bool first = true;   // no token came yet
    bool fused = false;  // tokens that come are parts of one
    size_t cut = 0;      // strip: characters cut at the start so far
    bool start_done = false;
  };
  friend struct StreamRunner;
  std::vector<State> states_;
};

}  // namespace nibble::text
