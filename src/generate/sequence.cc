#include "generate/sequence.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <new>
#include <utility>

#include "base/check.h"
#include "device/cuda.h"
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
      cache_(std::move(cache)) {}

namespace {

// Memory may run out in the middle of a batch, when some layers already hold its tokens: then all
// of them forget these, and the sequence is what it was.
class Undo {
 public:
  Undo(layers::DecoderCache& cache, std::vector<int32_t>* tokens, int64_t length)
      : cache_(&cache), tokens_(tokens), length_(length) {}
  ~Undo() {
    if (cache_ == nullptr) return;
    cache_->truncate(length_);
    if (tokens_ != nullptr) tokens_->resize(static_cast<size_t>(length_));
  }
  Undo(const Undo&) = delete;
  Undo& operator=(const Undo&) = delete;
  void done() { cache_ = nullptr; }
  // What came of the batch after its tokens were held; only memory that ran out takes them back.
  Result<void> after(Result<void> told) {
    if (told || told.error().code != ErrorCode::kOutOfMemory) done();
    return told;
  }

 private:
  layers::DecoderCache* cache_;
  std::vector<int32_t>* tokens_;  // or null
  int64_t length_;
};

}  // namespace

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
  const bool whole_cache = cache_.length() == length();  // not so after memory ran out below
  if (wanted == std::exchange(long_keys_, wanted) && whole_cache) return {};
  cache_.truncate(0);
  Undo undo(cache_, nullptr, 0);
  const std::span<const int32_t> all(tokens_);
  const int64_t most = batch_of(*stream_);
  for (int64_t done = 0; done < length(); done += most) {
    const auto m = static_cast<size_t>(std::min(most, length() - done));
    NIBBLE_TRY(runner_.forward(*stream_, all.subspan(static_cast<size_t>(done), m), whole, cache_));
  }
  undo.done();
  return {};
}

Result<void> Sequence::append(std::span<const int32_t> tokens, const RowSink& rows,
                              const PromptProgress& progress, const layers::Listener& listener) {
  NIBBLE_TRY(check(tokens));
  const auto total = static_cast<int64_t>(tokens.size());
  const int64_t whole = length() + total;
  NIBBLE_TRY(remake_keys(whole));
  const int64_t most = batch_of(*stream_);
  for (int64_t done = 0; done < total;) {
    const int64_t m = std::min(most, total - done);
    const auto batch = tokens.subspan(static_cast<size_t>(done), static_cast<size_t>(m));
    Undo undo(cache_, &tokens_, length());
    NIBBLE_TRY(run_batch(batch, whole, done + m == total && !rows, listener));
    done += m;
    Result<void> told;
    if (rows) {
      told = emit_rows(hidden_, m, rows);
    } else if (done == total && stream_->cuda() == nullptr) {
      if (const auto row = rows_on_host(1); !row) told = fail(row.error());
    }
    NIBBLE_TRY(undo.after(std::move(told)));
    if (progress && !progress(done, total)) return fail(ErrorCode::kCancelled, "cancelled");
  }
  return {};
}

// One batch, and the logits of its last token if they are wanted. Single tokens on a card are
// recorded: their kernels are always the same, but for what Runner::prepare() places.
Result<void> Sequence::run_batch(std::span<const int32_t> batch, int64_t whole, bool logits_of_last,
                                 const layers::Listener& listener) {
  const auto m = static_cast<int64_t>(batch.size());
  NIBBLE_TRY(reserve_logits(1));
  NIBBLE_TRY(runner_.prepare(*stream_, batch, whole, cache_));
  const auto body = [&] {
    hidden_ = runner_.run(*stream_, cache_, listener);
    if (!logits_of_last) return;
    const float* last = hidden_ + (m - 1) * decoder_->spec.width();
    runner_.logits(*stream_, last, 1, reinterpret_cast<float*>(logits_.data()));
  };
  if (m == 1 && logits_of_last && !listener) {
    step_.run(*stream_, body);
  } else {
    body();
  }
  runner_.sent(*stream_);
  tokens_.insert(tokens_.end(), batch.begin(), batch.end());
  cache_.set_length(length());
  last_row_ = logits_of_last ? 0 : -1;
  return {};
}

Result<void> Sequence::reserve_logits(int64_t rows) {
  const auto bytes = static_cast<size_t>(rows * decoder_->spec.vocab) * sizeof(float);
  if (logits_.size() >= bytes) return {};
  last_row_ = -1;
  logits_ = {};
  NIBBLE_ASSIGN(logits_, device::Memory::allocate(*stream_, bytes));
  return {};
}

template <class Use>
Result<void> Sequence::for_logits(const float* hidden, int64_t m, const Use& use) {
  constexpr int64_t kBytes = int64_t{32} << 20;  // of a card's logits at a time, at least
  const int64_t vocab = decoder_->spec.vocab;
  int64_t rows = 32;
  if (stream_->cuda() != nullptr) {
    rows = std::max(rows, kBytes / (vocab * static_cast<int64_t>(sizeof(float))));
  }
  rows = std::min(rows, m);
  NIBBLE_TRY(reserve_logits(rows));
  last_row_ = -1;  // until that of the last token is there: this may end before
  for (int64_t begin = 0; begin < m; begin += rows) {
    const int64_t count = std::min(rows, m - begin);
    runner_.logits(*stream_, hidden + begin * decoder_->spec.width(), count,
                   reinterpret_cast<float*>(logits_.data()));
    NIBBLE_TRY(use(begin, count));
    if (begin + count == m) last_row_ = count - 1;
  }
  return {};
}

// The first rows of logits_ for the host, finite.
Result<std::span<const float>> Sequence::rows_on_host(int64_t count) {
  const auto size = static_cast<size_t>(count * decoder_->spec.vocab);
  const auto* from = reinterpret_cast<const float*>(logits_.data());
  if (stream_->cuda() != nullptr) {
    host_logits_.resize(size);
    NIBBLE_TRY(device::copy_to_host(*stream_, host_logits_.data(), from, size * sizeof(float)));
    from = host_logits_.data();
  }
  const std::span<const float> rows(from, size);
  if (kernels::first_not_finite(ops_, rows)) return fail(blame());
  return rows;
}

Result<void> Sequence::emit_rows(const float* hidden, int64_t m, const RowSink& rows) {
  const auto vocab = static_cast<size_t>(decoder_->spec.vocab);
  const int64_t first = length() - m;
  return for_logits(hidden, m, [&](int64_t begin, int64_t count) -> Result<void> {
    NIBBLE_ASSIGN(const std::span<const float> all, rows_on_host(count));
    for (int64_t i = 0; i < count; ++i) {
      if (!rows(first + begin + i, all.subspan(static_cast<size_t>(i) * vocab, vocab))) {
        return fail(ErrorCode::kCancelled, "cancelled");
      }
    }
    return {};
  });
}

Result<std::vector<double>> Sequence::append_scored(std::span<const int32_t> tokens) {
  if (tokens.empty()) return std::vector<double>();
  NIBBLE_TRY(check(tokens));
  const auto total = static_cast<int64_t>(tokens.size());
  const int64_t whole = length() + total;
  NIBBLE_TRY(remake_keys(whole));
  std::vector<double> out(tokens.size());
  std::vector<int32_t> next(tokens.begin() + 1, tokens.end());
  next.push_back(0);  // of the last token nothing is asked
  const int64_t most = batch_of(*stream_);
  for (int64_t done = 0; done < total;) {
    const int64_t m = std::min(most, total - done);
    const auto batch = tokens.subspan(static_cast<size_t>(done), static_cast<size_t>(m));
    Undo undo(cache_, &tokens_, length());
    NIBBLE_TRY(run_batch(batch, whole, false, {}));
    const auto score = [&](int64_t begin, int64_t count) -> Result<void> {
      const auto at = static_cast<size_t>(done + begin);
      const std::span<double> scores(out.data() + at, static_cast<size_t>(count));
      NIBBLE_TRY(kernels::negative_log_likelihoods(
          *stream_, reinterpret_cast<const float*>(logits_.data()), count, decoder_->spec.vocab,
          {next.data() + at, static_cast<size_t>(count)}, scores));
      const bool finite =
          std::all_of(scores.begin(), scores.end(), [](double one) { return std::isfinite(one); });
      return finite ? Result<void>() : fail(blame());
    };
    NIBBLE_TRY(undo.after(for_logits(hidden_, m, score)));
    done += m;
  }
  out.pop_back();
  return out;
}

Result<std::span<const float>> Sequence::last_logits() {
  if (last_row_ < 0) {
    return fail(ErrorCode::kUsage,
                "there are no logits yet: nothing was appended, or not to its end");
  }
  const auto vocab = static_cast<size_t>(decoder_->spec.vocab);
  if (stream_->cuda() == nullptr) {  // append() has looked at them
    return std::span(reinterpret_cast<const float*>(logits_.data()), (last_row_ + 1) * vocab)
        .last(vocab);
  }
  NIBBLE_ASSIGN(const std::span<const float> rows, rows_on_host(last_row_ + 1));
  return rows.last(vocab);
}

Result<int32_t> Sequence::sample(kernels::Sampler& sampler) {
  if (stream_->cuda() == nullptr || last_row_ < 0) {
    NIBBLE_ASSIGN(const std::span<const float> logits, last_logits());
    return sampler.sample(logits);
  }
  const int64_t vocab = decoder_->spec.vocab;
  const auto* last = reinterpret_cast<const float*>(logits_.data()) + last_row_ * vocab;
  NIBBLE_ASSIGN(const std::optional<int32_t> id, sampler.sample_on_card(*stream_, last, vocab));
  if (!id) return fail(blame());
  return *id;
}

Result<void> Sequence::settle() {
  return stream_->cuda() == nullptr ? Result<void>() : stream_->cuda()->wait();
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
  const int64_t most = batch_of(*stream_);
  try {
    for (int64_t done = 0; runner && cache && !found && done < length(); done += most) {
      const auto m = static_cast<size_t>(std::min(most, length() - done));
      const std::span<const int32_t> all(tokens_);
      if (!runner->forward(*stream_, all.subspan(static_cast<size_t>(done), m), length(), *cache,
                           ear)) {
        break;
      }
    }
  } catch (const std::bad_alloc&) {
    // What is wrong is said all the same; only the culprit stays the last module.
  }
  return {ErrorCode::kCorrupt,
          fmt::format("the logits are not finite (nan or inf); the first module whose output was "
                      "not is {}; check the file with `nibble verify`",
                      culprit)};
}

void Sequence::truncate(int64_t length) {
  NIBBLE_CHECK(length >= 0 && length <= this->length());
  if (length < this->length()) last_row_ = -1;  // logits are those of a token that is gone
  tokens_.resize(static_cast<size_t>(length));
  cache_.truncate(length);
}

}  // namespace nibble::generate
