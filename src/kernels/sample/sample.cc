#include "kernels/sample/sample.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "kernels/activation/activation.h"

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

// best_ = the `count` best, best first. A heap with the worst of them on top: of a vocabulary few
// get past it.
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

// With best_ as top-k left it, or all: the fewest whose share reaches top_p, and their weights.
void Sampler::keep_top_p(std::span<const float> logits) {
  const size_t n = logits.size();
  const size_t k = settings_.top_k > 0 ? std::min(n, static_cast<size_t>(settings_.top_k)) : n;
  double total = 0;
  // Sorting a whole vocabulary is slow and a few hundred mostly suffice: more only if they do not.
  for (size_t count = k == n ? std::min<size_t>(n, 256) : k;; count = std::min(n, count * 16)) {
    pick_largest(logits, count);
    const double largest = best_.front().logit;
    const auto weight_of = [&](float logit) {
      return std::exp((logit - largest) / settings_.temperature);
    };
    weight_.resize(best_.size());
    for (size_t i = 0; i < best_.size(); ++i) weight_[i] = weight_of(best_[i].logit);
    if (k < n) {
      total = std::accumulate(weight_.begin(), weight_.end(), 0.0);
    } else if (total == 0 && settings_.top_p < 1) {
      for (float l : logits) total += weight_of(l);
    }
    double sum = 0;
    for (size_t i = 0; i < weight_.size(); ++i) {
      sum += weight_[i];
      if (settings_.top_p < 1 && sum >= settings_.top_p * total) {
        weight_.resize(i + 1);
        return;
      }
      // Weights fall: past this one min_p drops everything.
      if (weight_[i] < settings_.min_p) return;
    }
    if (count == k) return;
  }
}

int32_t Sampler::draw() {
  double total = 0;
  size_t count = 0;
  // The first has weight 1, so min_p compares with it directly.
  while (count < weight_.size() && (count == 0 || weight_[count] >= settings_.min_p)) {
    total += weight_[count++];
  }
  const double mark = random_.uniform() * total;
  double sum = 0;
  for (size_t i = 0; i + 1 < count; ++i) {
    sum += weight_[i];
    if (mark < sum) return best_[i].id;
  }
  return best_[count - 1].id;
}

int32_t Sampler::sample(std::span<const float> logits) {
  NIBBLE_CHECK(!logits.empty());
  const std::span<const float> l = penalised(logits);
  if (settings_.temperature == 0) return greedy(l);
  keep_top_p(l);
  return draw();
}

}  // namespace nibble::kernels
