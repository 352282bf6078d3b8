// Sampling and scores on a card against the CPU's. Skipped where there is no card.
#include "device/cuda.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "device/memory.h"
#include "kernels/isa_test.h"
#include "kernels/sample/sample.h"

namespace nibble::kernels {
namespace {

class SampleOnCard : public testing::Test {
 protected:
  void SetUp() override {
    auto cuda = device::Cuda::open(0);
    if (!cuda) GTEST_SKIP() << cuda.error().message;
    card_.emplace(1, *cuda);
  }

  // Some tokens by both, each told to the sampler.
  void check(const SampleSettings& settings, const std::vector<float>& logits) {
    SCOPED_TRACE("temp " + std::to_string(settings.temperature) + " top-k " +
                 std::to_string(settings.top_k) + " top-p " + std::to_string(settings.top_p) +
                 " min-p " + std::to_string(settings.min_p) + " penalty " +
                 std::to_string(settings.repeat_penalty) + " of " + std::to_string(logits.size()));
    Sampler host(settings);
    Sampler card(settings);
    auto placed = device::Floats::place(*card_, logits);
    ASSERT_TRUE(placed);
    for (int32_t id = 0; id < 2000; id += 7) {
      host.accept(id);
      card.accept(id);
    }
    for (int i = 0; i < 12; ++i) {
      const int32_t want = host.sample(logits);
      const auto got =
          card.sample_on_card(*card_, placed->data(), static_cast<int64_t>(logits.size()));
      ASSERT_TRUE(got) << got.error().message;
      ASSERT_EQ(*got, std::optional<int32_t>(want)) << "token " << i;
      host.accept(want);
      card.accept(want);
    }
  }

  std::optional<device::Stream> card_;
};

TEST_F(SampleOnCard, draws_what_the_cpu_draws) {
  std::vector<float> equal(3000, 1.5f);
  for (size_t i = 0; i < equal.size(); i += 3) equal[i] = i % 2 == 0 ? 0.0f : -0.0f;
  const std::vector<std::vector<float>> inputs = {normal_floats(129, 1, 3),
                                                  normal_floats(49152, 2, 4),
                                                  normal_floats(128256, 3, 2),
                                                  equal,
                                                  {0.5f}};
  for (const std::vector<float>& logits : inputs) {
    for (const float penalty : {1.0f, 1.3f}) {
      for (const float temperature : {0.0f, 0.7f, 1.5f}) {
        SampleSettings s{.temperature = temperature, .repeat_penalty = penalty, .seed = 11};
        check(s, logits);
        s.min_p = 0.05f;
        check(s, logits);
        s.top_k = 40;
        check(s, logits);
        s.top_p = 0.9f;
        check(s, logits);
        s.top_k = 0;
        check(s, logits);
        s.min_p = 0;
        s.top_p = 0.999f;
        check(s, logits);
        s.top_k = 3000;
        check(s, logits);
      }
    }
  }
}

TEST_F(SampleOnCard, logits_that_are_not_finite_give_no_token) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    std::vector<float> logits = normal_floats(5000, 4);
    logits[4321] = bad;
    auto placed = device::Floats::place(*card_, logits);
    ASSERT_TRUE(placed);
    Sampler sampler({.temperature = 0});
    const auto got = sampler.sample_on_card(*card_, placed->data(), 5000);
    ASSERT_TRUE(got);
    EXPECT_FALSE(*got);
    double score = 0;
    const int32_t target = 3;
    ASSERT_TRUE(
        negative_log_likelihoods(*card_, placed->data(), 1, 5000, {&target, 1}, {&score, 1}));
    EXPECT_TRUE(std::isnan(score));
  }
}

TEST_F(SampleOnCard, scores_are_the_cpus) {
  constexpr int64_t kRows = 5;
  constexpr int64_t kVocab = 50001;
  const std::vector<float> logits = normal_floats(kRows * kVocab, 5, 4);
  const std::vector<int32_t> targets = {0, 50000, 17, 333, 4444};
  auto placed = device::Floats::place(*card_, logits);
  ASSERT_TRUE(placed);
  device::Stream host(1);
  std::vector<double> want(kRows), got(kRows);
  ASSERT_TRUE(negative_log_likelihoods(host, logits.data(), kRows, kVocab, targets, want));
  ASSERT_TRUE(negative_log_likelihoods(*card_, placed->data(), kRows, kVocab, targets, got));
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-9);
}

}  // namespace
}  // namespace nibble::kernels
