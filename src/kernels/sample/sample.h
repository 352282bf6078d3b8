// From logits to a token.
//
// In this order, which is that of Hugging Face transformers:
//
//   repeat penalty  every id that stands anywhere in the sequence, prompt included, once: a logit
//                   above 0 is divided by it, one below is multiplied (CTRL, arXiv 1909.05858)
//   temperature     logits are divided by it; 0 means greedy: the largest logit, the lowest id
//                   among equals
//   top-k           only the k largest stay
//   top-p           the fewest of the largest whose probabilities add up to at least p stay
//   min-p           those with less than p times the largest probability go
//
// and then one is drawn by probability. Equal logits rank by id, lower first. Everything is done by
// one thread in a fixed order: the same logits, settings and seed give the same token. A card does
// the same, so that only the token comes to the host; where many are to be ranked (top-k above
// 1024, or top-p of a flat distribution) it leaves that to the host.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "device/memory.h"
#include "device/recording.h"
#include "kernels/ops.h"
#include "nibble/result.h"

namespace nibble::kernels {

struct SampleSettings {
  float temperature = 1;
  int32_t top_k = 0;  // 0: all
  float top_p = 1;
  float min_p = 0;
  float repeat_penalty = 1;
  uint64_t seed = 0;
};

// The error names the setting that makes no sense, by the word of the command line.
Result<void> check(const SampleSettings& settings);

// Which of the logits is the first that is inf or nan.
std::optional<int64_t> first_not_finite(const Ops& ops, std::span<const float> logits);

// The lowest id among the largest logits. Precondition: not empty.
int32_t greedy(std::span<const float> logits);

// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014): the seed
// is the state. Chosen because its whole definition fits here and can be had in any language.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // The upper 53 bits as a fraction: 0 <= u < 1.
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

 private:
  uint64_t state_;
};

class Sampler {
 public:
  // Precondition: check(settings).
  explicit Sampler(const SampleSettings& settings) : settings_(settings), random_(settings.seed) {}

  // Tells of a token of the sequence, for the repeat penalty.
  void accept(int32_t id);

  // The next token. Precondition: logits are finite and not empty.
  int32_t sample(std::span<const float> logits);

  // The same of n logits in a card's memory, which need not be finite: nothing if they are not. The
  // error is what went wrong on the card until now. Precondition: stream.cuda().
  Result<std::optional<int32_t>> sample_on_card(device::Stream& stream, const float* logits,
                                                int64_t n);

 private:
  struct Candidate {
    float logit;
    int32_t id;
  };
  static bool before(const Candidate& a, const Candidate& b);
  std::span<const float> penalised(std::span<const float> logits);
  void pick_largest(std::span<const float> logits, size_t count);
  double weight_of(float logit, float largest) const;
  void keep_all(std::span<const float> logits);
  void keep_largest(std::span<const float> logits, size_t k);
  int32_t sample(std::span<const float> logits, double uniform);
  int32_t draw(double uniform);
  Result<void> prepare_card(device::Stream& stream, int64_t n);

  SampleSettings settings_;
  Random random_;
  std::vector<uint8_t> seen_;    // by id
  std::vector<int32_t> ids_;     // those seen, each once
  std::vector<float> work_;      // logits after the penalty
  std::vector<Candidate> best_;  // those that stay; best first unless all do
  std::vector<double> weight_;   // of each of best_: e^((logit - largest) / temperature)
  // On a card.
  device::SharedMemory answer_;
  device::Memory placed_seen_;  // a byte for each id
  device::Memory placed_ids_;   // those of ids_ that it is to learn of
  size_t told_ = 0;             // ids_ that the card has seen
};

// Of m rows of n logits: minus the logarithm of the probability of targets[i]. `logits` and
// `out` are where the stream's kernels run and where the host reads; targets are in range. Sums are
// in double. nan where a logit is not finite.
Result<void> negative_log_likelihoods(device::Stream& stream, const float* logits, int64_t m,
                                      int64_t n, std::span<const int32_t> targets,
                                      std::span<double> out);
// log(sum(e^row)).
double log_sum_exp(std::span<const float> row);

}  // namespace nibble::kernels
