// A sequence of tokens with its keys and values: feeds a decoder and hands out logits.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "device/stream.h"
#include "layers/decoder.h"
#include "nibble/result.h"

namespace nibble::generate {

// A position's logits (vocab). Return false to stop.
using RowSink = std::function<bool(int64_t position, std::span<const float> row)>;
// Tokens of the prompt done, of all. Return false to cancel.
using PromptProgress = std::function<bool(int64_t done, int64_t total)>;

class Sequence {
 public:
  // Prompts run in batches of this many tokens.
  static constexpr int64_t kBatch = 512;

  // Decoder and stream must outlive the sequence. `capacity` is the most tokens it may hold; memory
  // for keys and values is taken as they come.
  static Result<Sequence> create(const layers::Decoder& decoder, device::Stream& stream,
                                 const kernels::Ops& ops, int64_t capacity);

  // Appends the tokens. Logits of the last one are in last_logits() afterwards; `rows`, when given,
  // gets every position's. Errors: an id outside the vocabulary, no room, logits that are not
  // finite (the message names the first module whose output was not).
  Result<void> append(std::span<const int32_t> tokens, const RowSink& rows = {},
                      const PromptProgress& progress = {}, const layers::Listener& listener = {});

  std::span<const float> last_logits() const { return last_logits_; }
  const std::vector<int32_t>& tokens() const { return tokens_; }
  int64_t length() const { return static_cast<int64_t>(tokens_.size()); }
  int64_t capacity() const { return capacity_; }
  void truncate(int64_t length);  // forgets everything after the first `length` tokens

 private:
  Sequence(const layers::Decoder& decoder, device::Stream& stream, const kernels::Ops& ops,
           int64_t capacity, layers::Runner runner, layers::DecoderCache cache);
  Result<void> check(std::span<const int32_t> tokens) const;
  Result<void> remake_keys(int64_t whole);
  Result<void> emit_rows(const float* hidden, int64_t m, const RowSink& rows);
  Error blame() const;

  const layers::Decoder* decoder_;
  device::Stream* stream_;
  kernels::Ops ops_;
  int64_t capacity_;
  layers::Runner runner_;
  layers::DecoderCache cache_;
  std::vector<int32_t> tokens_;
  bool long_keys_ = false;  // the cached keys have longrope's frequencies for long contexts
  std::vector<float> last_logits_;
};

}  // namespace nibble::generate
