// The common part of the two formats that hold a SentencePiece vocabulary as plain lists.
#pragma once

#include <string_view>

#include "text/tokenizer_parts.h"

namespace nibble::text {

// All but finish_added_tokens().
Result<TokenizerParts> parts_of_vocab(GgufVocab vocab, std::string_view where);

}  // namespace nibble::text
