// The tokenizer and the chat template of a checkpoint, wherever they stand in it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "nibble/nibble.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace nibble {

struct Tokenizer::Impl {
  text::Tokenizer tokenizer;
  // The template, or why there is none.
  std::optional<text::ChatTemplate> chat;
  std::optional<text::ChatTemplate> chat_tools;  // its own template for tools, where there is one
  std::string chat_error;
  bool chat_missing = true;        // there is none to begin with
  std::string bos_text, eos_text;  // what templates call bos_token and eos_token
};

namespace api {

// Reads tokenizer.json (with tokenizer_config.json) or the vocabulary of a GGUF.
Result<std::shared_ptr<const Tokenizer::Impl>> load_tokenizer(const checkpoint::Checkpoint& ckpt);

// Every id that ends a text, from generation_config.json, config.json, tokenizer_config.json and
// the GGUF keys. `config` is the model's. Error: a value that is no id and no list of ids.
Result<std::vector<int32_t>> eos_ids(const checkpoint::Checkpoint& ckpt, const base::Json& config,
                                     const Tokenizer::Impl* tokenizer);

}  // namespace api
}  // namespace nibble
