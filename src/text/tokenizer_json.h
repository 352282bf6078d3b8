// The parts of a tokenizer.json besides its vocabulary: each reader turns one JSON value into the
// steps of a pipeline, and names the key in its errors.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/tokenizer_parts.h"

namespace nibble::text {

// `value` may be null: no step. `where` names file and key.
Result<void> read_normalizer(const base::Json& value, const std::string& where, Normalizer& out);
Result<void> read_pre_tokenizer(const base::Json& value, const std::string& where,
                                PreTokenizer& out);
Result<void> read_decoder(const base::Json& value, const std::string& where, Decoder& out);
Result<void> read_post_processor(const base::Json& value, const std::string& where,
                                 TokenizerParts& out);

// Puts what the other files of a checkpoint say on top (see Tokenizer::from_json). `next_id` gives
// the id of a token that no file has numbered.
struct ConfigFiles {
  const base::Json* tokenizer_config = nullptr;
  const base::Json* special_tokens_map = nullptr;
  const base::Json* added_tokens = nullptr;
};
Result<void> apply_config(const ConfigFiles& files, TokenizerParts& parts);

// Adds a token that a file lists: to the id its text has in the vocabulary, else to the next free
// one. `written_id` is the id in the file, or nothing; where the two differ that is an error.
Result<void> add_listed_token(AddedToken token, std::optional<int64_t> written_id,
                              const std::string& where, TokenizerParts& parts);

}  // namespace nibble::text
