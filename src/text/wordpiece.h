// WordPiece (the longest token that begins the rest of a word, again and again: BERT) and WordLevel
// (a word is a token or unknown).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/result.h"
#include "text/vocab.h"

namespace nibble::text {

struct WordPiece {
  std::optional<int32_t> unk;
  std::string continuing_subword_prefix = "##";
  size_t max_input_chars_per_word = 100;  // a longer word is unknown
  Result<void> tokenize(const Vocab& vocab, std::string_view word, std::vector<int32_t>& out) const;
};

struct WordLevel {
  std::optional<int32_t> unk;
  Result<void> tokenize(const Vocab& vocab, std::string_view word, std::vector<int32_t>& out) const;
};

}  // namespace nibble::text
