// Text to token ids and back.
//
//   NIBBLE_ASSIGN(Tokenizer tokenizer, Tokenizer::from_json(text, "tokenizer.json", nullptr));
//   NIBBLE_ASSIGN(std::vector<int32_t> ids, tokenizer.encode("Hello"));
//   Detokenizer stream(tokenizer);
//   for (int32_t id : ids) show(stream.push(id));
//   show(stream.finish());
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/result.h"

namespace nibble::base {
class Json;
}

namespace nibble::text {

// The tokenizer keys of a GGUF file (tokenizer.ggml.*), as they stand there.
struct GgufVocab {
  std::string model;                // "gpt2", "llama", "bert", "t5", ...
  std::string pre;                  // how words are cut, for "gpt2": "llama-bpe", "qwen2", ...
  std::vector<std::string> tokens;  // by id
  std::vector<float> scores;        // by id; may be empty for "gpt2"
  std::vector<int32_t> types;       // by id: 1 normal 2 unknown 3 control 4 user-defined 5 unused
                                    // 6 byte; empty: all normal
  std::vector<std::string> merges;  // "left right", by rank
  std::optional<int32_t> bos, eos, unk, pad, eot, sep, cls;
  std::optional<bool> add_bos, add_eos, add_space_prefix, remove_extra_whitespaces;
  std::string precompiled_charsmap;  // bytes
};

struct EncodeOptions {
  bool add_special_tokens = true;  // begin and end of text, as the file's post-processor says
  bool parse_special = true;       // "<|im_end|>" in the text is the control token, not its letters
};

struct SpecialIds {
  std::optional<int32_t> bos, eos, unk, pad, eot;
};

struct TokenizerParts;

// Immutable; copies share everything; safe to use from many threads.
class Tokenizer {
 public:
  // tokenizer.json of Hugging Face `tokenizers`. `where` names the file in messages. The other
  // files of a checkpoint, or nullptr, change what transformers lets them change: which tokens are
  // added and special, their flags, and special_ids(). (Not add_bos_token and add_eos_token: the
  // post-processor of tokenizer.json decides. special_tokens_map.json and added_tokens.json count
  // only where tokenizer_config.json has no added_tokens_decoder.)
  static Result<Tokenizer> from_json(std::string_view tokenizer_json, std::string_view where,
                                     const base::Json* tokenizer_config,
                                     const base::Json* special_tokens_map = nullptr,
                                     const base::Json* added_tokens = nullptr);
  static Result<Tokenizer> from_gguf(GgufVocab vocab, std::string_view where);

  // tokenizer.model of sentencepiece (BPE or Unigram), for a checkpoint without tokenizer.json. The
  // ids are those of the sentencepiece library; add_bos_token and add_eos_token count here (absent:
  // BPE begins with bos, Unigram ends with eos).
  static Result<Tokenizer> from_sentencepiece(std::string_view model, std::string_view where,
                                              const base::Json* tokenizer_config,
                                              const base::Json* special_tokens_map = nullptr,
                                              const base::Json* added_tokens = nullptr);

  // vocab.json and merges.txt, for a checkpoint with neither: a byte-level BPE of the class that
  // tokenizer_config.json names; add_bos_token, add_eos_token and add_prefix_space count here.
  static Result<Tokenizer> from_vocab_and_merges(std::string_view vocab, std::string_view merges,
                                                 const base::Json* tokenizer_config,
                                                 const base::Json* special_tokens_map = nullptr,
                                                 const base::Json* added_tokens = nullptr);

  // Errors: text that is not UTF-8; a character without a token in a vocabulary that has no
  // unknown token; a regular expression of the file that does not finish on this text.
  Result<std::vector<int32_t>> encode(std::string_view text,
                                      const EncodeOptions& options = {}) const;

  // Always valid UTF-8. An id without a token gives nothing.
  std::string decode(std::span<const int32_t> ids, bool skip_special = true) const;

  // The text of a token as the vocabulary spells it ("Ġhello"), and the bytes that it adds in the
  // middle of a text (" hello"; may be a part of a character). Nothing for an id without a token.
  std::optional<std::string> token_text(int32_t id) const;
  std::optional<std::string> token_piece(int32_t id) const;
  std::optional<int32_t> token_to_id(std::string_view token_text) const;
  bool is_special(int32_t id) const;

  // The highest id that has a token, plus one.
  int32_t vocab_size() const;
  const SpecialIds& special_ids() const;
  // What encode() puts before and behind a text with add_special_tokens.
  std::span<const int32_t> prefix_ids() const;
  std::span<const int32_t> suffix_ids() const;

 private:
  friend class Detokenizer;
  explicit Tokenizer(std::shared_ptr<const TokenizerParts> parts) : parts_(std::move(parts)) {}
  std::shared_ptr<const TokenizerParts> parts_;
};

// Decodes ids as they come. What push() and finish() return, joined, is what decode() gives.
class Detokenizer {
 public:
  explicit Detokenizer(const Tokenizer& tokenizer, bool skip_special = true);
  ~Detokenizer();
  Detokenizer(Detokenizer&&) noexcept;
  Detokenizer& operator=(Detokenizer&&) noexcept;

  // The text that became certain; often empty, always whole characters.
  std::string push(int32_t id);
  // The rest. Afterwards a new text begins.
  std::string finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace nibble::text
