// What a Tokenizer is made of; the readers of the file formats fill it.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/decoder.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer.h"
#include "text/unigram.h"
#include "text/vocab.h"
#include "text/wordpiece.h"

namespace nibble::text {

using Model = std::variant<Bpe, ScoreBpe, Unigram, WordPiece, WordLevel>;

struct TokenizerParts {
  std::string where;  // for messages
  AddedTokens added;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  Vocab vocab;  // of the model; added tokens may have ids beyond it
  Model model;
  Decoder decoder;
  std::vector<int32_t> prefix;  // what the post-processor puts around a text
  std::vector<int32_t> suffix;
  SpecialIds special;
  int32_t next_added_id = 0;  // of a token that neither the vocabulary nor a file has numbered
  std::optional<std::string_view> text_of(int32_t id) const;
};

// Builds the search for added tokens; the last thing a reader does.
Result<void> finish_added_tokens(TokenizerParts& parts);

}  // namespace nibble::text
