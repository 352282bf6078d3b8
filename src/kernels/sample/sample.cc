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

int32_t Sampler::draw() {
  // The largest weight is 1, so min_p compares with it directly.
  const auto stays = [&](size_t i) { return weight_[i] >= settings_.min_p; };
  double total = 0;
  for (size_t i = 0; i < weight_.size(); ++i) total += stays(i) ? weight_[i] : 0.0;
  const double mark = random_.uniform() * total;
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
  NIBBLE_CHECK(!logits.empty());
  const std::span<const float> l = penalised(logits);
  if (settings_.temperature == 0) return greedy(l);
  const size_t k = settings_.top_k > 0 ? static_cast<size_t>(settings_.top_k) : l.size();
  if (k >= l.size() && settings_.top_p == 1) {
    keep_all(l);
  } else {
    keep_largest(l, std::min(k, l.size()));
  }
  return draw();
}

}  // namespace nibble::kernels
