#include "generate/sequence.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kernels/sample/sample.h"

namespace nibble::generate {

Result<Sequence> Sequence::create(const layers::Decoder& decoder, device::Stream& stream,
                                  const kernels::Ops& ops, int64_t capacity) {
  NIBBLE_ASSIGN(layers::Runner runner, layers::Runner::create(decoder, ops));
  NIBBLE_ASSIGN(layers::DecoderCache cache,
                layers::DecoderCache::create(decoder.spec, decoder.cache, capacity));
  return Sequence(decoder, stream, ops, capacity, std::move(runner), std::move(cache));
}

Sequence::Sequence(const layers::Decoder& decoder, device::Stream& stream, const kernels::Ops& ops,
                   int64_t capacity, layers::Runner runner, layers::DecoderCache cache)
    : decoder_(&decoder),
      stream_(&stream),
      ops_(ops),
      capacity_(capacity),
      runner_(std::move(runner)),
      cache_(std::move(cache)),
      last_logits_(static_cast<size_t>(decoder.spec.vocab)) {}

Result<void> Sequence::check(std::span<const int32_t> tokens) const {
  if (length() + static_cast<int64_t>(tokens.size()) > capacity_) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("{} tokens do not fit: the context holds {} and {} are taken; a longer "
                            "context (--ctx) or a shorter prompt is needed",
                            tokens.size(), capacity_, length()));
  }
  for (int32_t token : tokens) {
    if (token < 0 || token >= decoder_->spec.vocab) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("token id {} is outside the model's vocabulary of {}", token,
                              decoder_->spec.vocab));
    }
  }
  return {};
}

// longrope turns every position of a sequence by other angles once it is longer than the original
// context. Cached keys of the other side of that border are computed again, as transformers does
// for Phi 3, so that a sequence means the same however it came.
Result<void> Sequence::remake_keys(int64_t whole) {
  const kernels::RopeConfig& rope = decoder_->spec.rope;
  const bool wanted =
      rope.type == kernels::RopeType::kLongRope && whole > rope.original_max_positions;
  if (wanted == std::exchange(long_keys_, wanted)) return {};
  cache_.truncate(0);
  const std::span<const int32_t> all(tokens_);
  for (int64_t done = 0; done < length(); done += kBatch) {
    const auto m = static_cast<size_t>(std::min(kBatch, length() - done));
    NIBBLE_TRY(runner_.forward(*stream_, all.subspan(static_cast<size_t>(done), m), whole, cache_));
  }
  return {};
}

Result<void> Sequence::append(std::span<const int32_t> tokens, const RowSink& rows,
                              const PromptProgress& progress, const layers::Listener& listener) {
  NIBBLE_TRY(check(tokens));
  const auto total = static_cast<int64_t>(tokens.size());
  const int64_t whole = length() + total;
  NIBBLE_TRY(remake_keys(whole));
  for (int64_t done = 0; done < total;) {
    const int64_t m = std::min(kBatch, total - done);
    const auto batch = tokens.subspan(static_cast<size_t>(done), static_cast<size_t>(m));
    NIBBLE_ASSIGN(const float* hidden, runner_.forward(*stream_, batch, whole, cache_, listener));
    tokens_.insert(tokens_.end(), batch.begin(), batch.end());
    done += m;
    if (rows) {
      NIBBLE_TRY(emit_rows(hidden, m, rows));
    } else if (done == total) {
      const float* last = hidden + (m - 1) * decoder_->spec.width();
      NIBBLE_TRY(runner_.logits(*stream_, last, 1, last_logits_.data()));
      if (kernels::first_not_finite(ops_, last_logits_)) return fail(blame());
    }
    if (progress && !progress(done, total)) return fail(ErrorCode::kCancelled, "cancelled");
  }
  return {};
}

Result<void> Sequence::emit_rows(const float* hidden, int64_t m, const RowSink& rows) {
  const int64_t vocab = decoder_->spec.vocab;
  const int64_t first = length() - m;
  constexpr int64_t kRows = 32;  // logits of this many tokens at a time
  std::vector<float> logits(static_cast<size_t>(std::min(m, kRows) * vocab));
  for (int64_t begin = 0; begin < m; begin += kRows) {
    const int64_t count = std::min(kRows, m - begin);
    NIBBLE_TRY(
        runner_.logits(*stream_, hidden + begin * decoder_->spec.width(), count, logits.data()));
    for (int64_t i = 0; i < count; ++i) {
      const std::span<const float> row(logits.data() + i * vocab, static_cast<size_t>(vocab));
      if (kernels::first_not_finite(ops_, row)) return fail(blame());
      if (!rows(first + begin + i, row)) return fail(ErrorCode::kCancelled, "cancelled");
    }
    if (begin + count == m) {
      std::copy_n(logits.data() + (count - 1) * vocab, vocab, last_logits_.data());
    }
  }
  return {};
}

// Runs the sequence again with an ear at every module, for the sentence that names the culprit.
Error Sequence::blame() const {
  std::string culprit = decoder_->head().name;
  auto runner = layers::Runner::create(*decoder_, ops_);
  auto cache = layers::DecoderCache::create(decoder_->spec, decoder_->cache, capacity_);
  bool found = false;
  const layers::Listener ear = [&](std::string_view module, const float* y, int64_t m, int64_t n) {
    if (found) return;
    const std::span<const float> all(y, static_cast<size_t>(m * n));
    if (!kernels::first_not_finite(ops_, all)) return;
    found = true;
    culprit = module;
  };
  for (int64_t done = 0; runner && cache && !found && done < length(); done += kBatch) {
    const auto m = static_cast<size_t>(std::min(kBatch, length() - done));
    const std::span<const int32_t> all(tokens_);
    if (!runner->forward(*stream_, all.subspan(static_cast<size_t>(done), m), length(), *cache,
                         ear)) {
      break;
    }
  }
  return {ErrorCode::kCorrupt,
          fmt::format("the logits are not finite (nan or inf); the first module whose output was "
                      "not is {}; check the file with `nibble verify`",
                      culprit)};
}

void Sequence::truncate(int64_t length) {
  NIBBLE_CHECK(length >= 0 && length <= this->length());
  tokens_.resize(static_cast<size_t>(length));
  cache_.truncate(length);
}

}  // namespace nibble::generate
