// A sequence of tokens with its keys and values: feeds a decoder and hands out logits.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "device/recording.h"
#include "device/stream.h"
#include "kernels/sample/sample.h"
#include "layers/decoder.h"
#include "nibble/result.h"

namespace nibble::generate {

// A position's logits (vocab). Return false to stop.
using RowSink = std::function<bool(int64_t position, std::span<const float> row)>;
// Tokens of the prompt done, of all. Return false to cancel.
using PromptProgress = std::function<bool(int64_t done, int64_t total)>;

class Sequence {
 public:
  // Prompts run in batches of this many tokens on a CPU, and of so many on a card.
  static constexpr int64_t kBatch = 512;
  static constexpr int64_t kCardBatch = 2048;
  static int64_t batch_of(device::Stream& stream) {
    return stream.cuda() == nullptr ? kBatch : kCardBatch;
  }

  // Decoder and stream must outlive the sequence. `capacity` is the most tokens it may hold; memory
  // for keys and values is taken as they come.
  static Result<Sequence> create(const layers::Decoder& decoder, device::Stream& stream,
                                 const kernels::Ops& ops, int64_t capacity);

  // Appends the tokens. The logits of the last one can be asked for afterwards; `rows`, when given,
  // gets every position's. Errors: an id outside the vocabulary, no room, logits that are not
  // finite (the message names the first module whose output was not). On a card without `rows`,
  // append() does not wait, and what goes wrong is told by the next of the three below.
  Result<void> append(std::span<const int32_t> tokens, const RowSink& rows = {},
                      const PromptProgress& progress = {}, const layers::Listener& listener = {});

  // For each token but the last, minus the log of the probability that the model gave the next.
  // Errors: those of append().
  Result<std::vector<double>> append_scored(std::span<const int32_t> tokens);

  // Of the last token; an error if nothing was appended. Valid until the next append().
  Result<std::span<const float>> last_logits();
  // The next token by the sampler, which is not told of it.
  Result<int32_t> sample(kernels::Sampler& sampler);
  // Waits until everything was computed.
  Result<void> settle();

  const std::vector<int32_t>& tokens() const { return tokens_; }
  int64_t length() const { return static_cast<int64_t>(tokens_.size()); }
  int64_t capacity() const { return capacity_; }
  void truncate(int64_t length);  // forgets everything after the first `length` tokens

 private:
  Sequence(const layers::Decoder& decoder, device::Stream& stream, const kernels::Ops& ops,
           int64_t capacity, layers::Runner runner, layers::DecoderCache cache);
  Result<void> check(std::span<const int32_t> tokens) const;
  Result<void> remake_keys(int64_t whole);
  Result<void> reserve_logits(int64_t rows);
  Result<void> run_batch(std::span<const int32_t> batch, int64_t whole, bool logits_of_last,
                         const layers::Listener& listener);
  // Calls use(first row of logits, how many) for rows of hidden states, some at a time.
  template <class Use>
  Result<void> for_logits(const float* hidden, int64_t m, const Use& use);
  Result<void> emit_rows(const float* hidden, int64_t m, const RowSink& rows);
  Result<std::span<const float>> rows_on_host(int64_t count);
  Error blame() const;

  const layers::Decoder* decoder_;
  device::Stream* stream_;
  kernels::Ops ops_;
  int64_t capacity_;
  layers::Runner runner_;
  layers::DecoderCache cache_;
  std::vector<int32_t> tokens_;
  bool long_keys_ = false;          // the cached keys have longrope's frequencies for long contexts
  const float* hidden_ = nullptr;   // (batch, hidden) of the last batch
  device::Memory logits_;           // some rows, where the stream's kernels run
  int64_t last_row_ = -1;           // of logits_, that of the last token
  std::vector<float> host_logits_;  // a card's, copied
  device::Recording step_;
};

}  // namespace nibble::generate
