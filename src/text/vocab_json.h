// The large parts of a tokenizer.json, model.vocab and model.merges, read without building a JSON
// tree of them: a quarter of a million entries take tens of milliseconds this way.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/result.h"
#include "text/bpe.h"
#include "text/vocab.h"

namespace nibble::text {

// The text of a value inside a document, and where it begins there.
struct JsonPart {
  std::string_view text;  // empty: the key is not there
  size_t offset = 0;
};

struct TokenizerJsonParts {
  std::string rest;  // the document with null in place of the parts
  JsonPart vocab;
  JsonPart merges;
};

// Cuts the document. One that is not JSON comes back whole in `rest`, for the parser to complain.
TokenizerJsonParts split_tokenizer_json(std::string_view document);

// {"token": id, ...}. Refuses two tokens of one text or one id, and ids above Vocab::kMaxId.
Result<void> read_vocab_object(const JsonPart& part, std::string_view where, Vocab& vocab);

// [["token", score], ...]; the id is the place in the list.
Result<void> read_vocab_list(const JsonPart& part, std::string_view where, Vocab& vocab,
                             std::vector<double>& scores);

// ["left right", ...] or [["left", "right"], ...]; `prefix` is what continuing tokens begin with
// and lose when they are merged.
Result<void> read_merges(const JsonPart& part, std::string_view where, const Vocab& vocab,
                         std::string_view prefix, MergeTable& merges);

}  // namespace nibble::text
