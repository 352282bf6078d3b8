#include "kernels/sample/sample.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "device/cuda.h"
#include "kernels/activation/activation.h"
#include "kernels/cuda/abi.h"
#include "kernels/scratch.h"

namespace nibble::kernels {

Result<void> check(const SampleSettings& s) {
  const auto bad = [](const char* option, auto value, const char* range) {
    return fail(ErrorCode::kUsage, fmt::format("{} is {}; it must be {}", option, value, range));
  };
  if (!std::isfinite(s.temperature) || s.temperature < 0) {
    return bad("--temp", s.temperature, "0 (greedy) or more");
  }
  if (s.top_k < 0) return bad("--top-k", s.top_k, "0 (all) or more");
  if (!(s.top_p > 0 && s.top_p <= 1)) return bad("--top-p", s.top_p, "above 0 and at most 1");
  if (!(s.min_p >= 0 && s.min_p <= 1)) return bad("--min-p", s.min_p, "from 0 to 1");
  if (!std::isfinite(s.repeat_penalty) || s.repeat_penalty <= 0) {
    return bad("--repeat-penalty", s.repeat_penalty, "above 0");
  }
  return {};
}

std::optional<int64_t> first_not_finite(const Ops& ops, std::span<const float> logits) {
  const int64_t n = static_cast<int64_t>(logits.size());
  const int64_t at = ops.activation->first_not_finite(logits.data(), n);
  if (at == n) return std::nullopt;
  return at;
}

int32_t greedy(std::span<const float> logits) {
  NIBBLE_CHECK(!logits.empty());
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

void Sampler::accept(int32_t id) {
  if (id < 0) return;
  const size_t at = static_cast<size_t>(id);
  if (seen_.size() <= at) seen_.resize(at + 1, 0);
  if (seen_[at] != 0) return;
  seen_[at] = 1;
  ids_.push_back(id);
}

bool Sampler::before(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

std::span<const float> Sampler::penalised(std::span<const float> logits) {
  if (settings_.repeat_penalty == 1) return logits;
  work_.assign(logits.begin(), logits.end());
  for (int32_t id : ids_) {
    if (static_cast<size_t>(id) >= work_.size()) continue;
    float& l = work_[static_cast<size_t>(id)];
    l = l > 0 ? l / settings_.repeat_penalty : l * settings_.repeat_penalty;
  }
  return work_;
}

// best_ becomes the `count` best, best first. A heap with the worst of them on top: of a vocabulary
// few get past it.
void Sampler::pick_largest(std::span<const float> logits, size_t count) {
  best_.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    const Candidate c = {logits[i], static_cast<int32_t>(i)};
    if (best_.size() < count) {
      best_.push_back(c);
      if (best_.size() == count) std::make_heap(best_.begin(), best_.end(), before);
    } else if (c.logit > best_.front().logit) {  // an equal one has a higher id: it ranks behind
      std::pop_heap(best_.begin(), best_.end(), before);
      best_.back() = c;
      std::push_heap(best_.begin(), best_.end(), before);
    }
  }
  std::sort(best_.begin(), best_.end(), before);
}

double Sampler::weight_of(float logit, float largest) const {
  return std::exp((static_cast<double>(logit) - largest) / settings_.temperature);
}

// Neither top-k nor top-p: everything stays, in the order of the ids.
void Sampler::keep_all(std::span<const float> logits) {
  const float largest = logits[static_cast<size_t>(greedy(logits))];
  best_.clear();
  weight_.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    best_.push_back({logits[i], static_cast<int32_t>(i)});
    weight_.push_back(weight_of(logits[i], largest));
  }
}

// Of the k largest the fewest whose share reaches top_p.
void Sampler::keep_largest(std::span<const float> logits, size_t k) {
  const size_t n = logits.size();
  double total = 0;
  // Sorting a whole vocabulary is slow and a few hundred mostly suffice: more only if they do not.
  for (size_t count = k == n ? std::min<size_t>(n, 256) : k;; count = std::min(n, count * 16)) {
    pick_largest(logits, count);
    const float largest = best_.front().logit;
    weight_.clear();
    for (const Candidate& c : best_) weight_.push_back(weight_of(c.logit, largest));
    if (k < n) {
      total = std::accumulate(weight_.begin(), weight_.end(), 0.0);
    } else if (total == 0) {
      for (float l : logits) total += weight_of(l, largest);
    }
    double sum = 0;
    for (size_t i = 0; i < weight_.size() && settings_.top_p < 1; ++i) {
      sum += weight_[i];
      if (sum < settings_.top_p * total) continue;
      best_.resize(i + 1);
      weight_.resize(i + 1);
      return;
    }
    if (count == k) return;
  }
}

int32_t Sampler::draw(double uniform) {
  // The largest weight is 1, so min_p compares with it directly.
  const auto stays = [&](size_t i) { return weight_[i] >= settings_.min_p; };
  double total = 0;
  for (size_t i = 0; i < weight_.size(); ++i) total += stays(i) ? weight_[i] : 0.0;
  const double mark = uniform * total;
  double sum = 0;
  int32_t id = best_.front().id;
  for (size_t i = 0; i < weight_.size(); ++i) {
    if (!stays(i) || weight_[i] == 0) continue;
    id = best_[i].id;
    sum += weight_[i];
    if (mark < sum) break;
  }
  return id;  // the last that has a weight, should the sums' roundings differ
}

int32_t Sampler::sample(std::span<const float> logits) {
  return sample(logits, settings_.temperature == 0 ? 0 : random_.uniform());
}

int32_t Sampler::sample(std::span<const float> logits, double uniform) {
  NIBBLE_CHECK(!logits.empty());
  const std::span<const float> l = penalised(logits);
  if (settings_.temperature == 0) return greedy(l);
  const size_t k = settings_.top_k > 0 ? static_cast<size_t>(settings_.top_k) : l.size();
  if (k >= l.size() && settings_.top_p == 1) {
    keep_all(l);
  } else {
    keep_largest(l, std::min(k, l.size()));
  }
  return draw(uniform);
}

// Memory, and what the card does not know yet of the tokens that were seen.
Result<void> Sampler::prepare_card(device::Stream& stream, int64_t n) {
  if (answer_.size() == 0) {
    NIBBLE_ASSIGN(answer_, device::SharedMemory::allocate(stream, sizeof(CudaSampled)));
  }
  if (settings_.repeat_penalty == 1) return {};
  if (placed_seen_.size() == 0) {
    const std::vector<std::byte> none(static_cast<size_t>(n));
    NIBBLE_ASSIGN(placed_seen_, device::Memory::copy_of(stream, none.data(), none.size()));
  }
  const size_t bytes = (ids_.size() - told_) * sizeof(int32_t);
  if (placed_ids_.size() < bytes || placed_ids_.size() == 0) {
    NIBBLE_ASSIGN(placed_ids_,
                  device::Memory::allocate(stream, std::max<size_t>(bytes, sizeof(int32_t))));
  }
  if (bytes > 0) stream.cuda()->to_device(placed_ids_.data(), ids_.data() + told_, bytes);
  return {};
}

Result<std::optional<int32_t>> Sampler::sample_on_card(device::Stream& stream, const float* logits,
                                                       int64_t n) {
  device::Cuda& cuda = *stream.cuda();
  NIBBLE_TRY(prepare_card(stream, n));
  CudaSample call{};
  call.logits = logits;
  call.n = n;
  call.temperature = settings_.temperature;
  call.top_k = settings_.top_k;
  call.top_p = settings_.top_p;
  call.min_p = settings_.min_p;
  call.repeat_penalty = settings_.repeat_penalty;
  call.uniform = settings_.temperature == 0 ? 0 : random_.uniform();
  if (settings_.repeat_penalty != 1) {
    call.seen = reinterpret_cast<uint8_t*>(placed_seen_.data());
    call.accepted = reinterpret_cast<const int32_t*>(placed_ids_.data());
    call.accepted_count = static_cast<int64_t>(ids_.size() - told_);
  }
  told_ = ids_.size();
  call.answer = reinterpret_cast<CudaSampled*>(answer_.data());
  cuda.kernels().sample(cuda.context(), &call);
  NIBBLE_TRY(cuda.wait());
  const CudaSampled answer = *call.answer;
  if (answer.status == CudaSampled::kNotFinite) return std::optional<int32_t>();
  if (answer.status == CudaSampled::kDone) return std::optional<int32_t>(answer.id);
  std::vector<float> copy(static_cast<size_t>(n));
  NIBBLE_TRY(device::copy_to_host(stream, copy.data(), logits, copy.size() * sizeof(float)));
  return std::optional<int32_t>(sample(copy, call.uniform));
}

double log_sum_exp(std::span<const float> row) {
  const double top = *std::max_element(row.begin(), row.end());
  double sum = 0;
  for (float v : row) sum += std::exp(static_cast<double>(v) - top);
  return top + std::log(sum);
}

Result<void> negative_log_likelihoods(device::Stream& stream, const float* logits, int64_t m,
                                      int64_t n, std::span<const int32_t> targets,
                                      std::span<double> out) {
  NIBBLE_CHECK(targets.size() == static_cast<size_t>(m) && out.size() == targets.size());
  device::Cuda* cuda = stream.cuda();
  if (cuda == nullptr) {
    for (int64_t i = 0; i < m; ++i) {
      const std::span<const float> row(logits + i * n, static_cast<size_t>(n));
      const auto at = static_cast<size_t>(i);
      const bool finite =
          std::all_of(row.begin(), row.end(), [](float v) { return std::isfinite(v); });
      out[at] = finite ? log_sum_exp(row) - row[static_cast<size_t>(targets[at])] : NAN;
    }
    return {};
  }
  std::byte* memory = cuda->scratch(kSampleCudaSlot, targets.size() * (sizeof(double) + 4));
  auto* placed_out = reinterpret_cast<double*>(memory);
  auto* placed_targets = reinterpret_cast<int32_t*>(placed_out + m);
  cuda->to_device(placed_targets, targets.data(), targets.size_bytes());
  cuda->kernels().score(cuda->context(), logits, m, n, placed_targets, placed_out);
  return cuda->to_host(out.data(), placed_out, out.size_bytes());
}

}  // namespace nibble::kernels
