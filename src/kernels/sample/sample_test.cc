#include "kernels/sample/sample.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "kernels/isa_test.h"

namespace nibble::kernels {
namespace {

std::map<int32_t, int> counts(const SampleSettings& settings, const std::vector<float>& logits,
                              int draws) {
  Sampler sampler(settings);
  std::map<int32_t, int> out;
  for (int i = 0; i < draws; ++i) ++out[sampler.sample(logits)];
  return out;
}

std::set<int32_t> support(const SampleSettings& settings, const std::vector<float>& logits) {
  std::set<int32_t> out;
  for (const auto& [id, count] : counts(settings, logits, 3000)) out.insert(id);
  return out;
}

TEST(sample, the_generator_gives_the_published_sequence) {
  Random random(1234567);
  EXPECT_EQ(random.next(), 6457827717110365317u);
  EXPECT_EQ(random.next(), 3203168211198807973u);
  EXPECT_EQ(random.next(), 9817491932198370423u);
  EXPECT_EQ(random.next(), 4593380528125082431u);
  EXPECT_EQ(random.next(), 16408922859458223821u);
}

TEST(sample, greedy_is_the_lowest_id_among_the_largest) {
  EXPECT_EQ(greedy(std::vector<float>{-3, -1, -1, -2}), 1);
  SampleSettings settings;
  settings.temperature = 0;
  EXPECT_EQ(Sampler(settings).sample(std::vector<float>{1, 7, 7, 2}), 1);
}

TEST(sample, draws_follow_the_probabilities_at_the_temperature) {
  const std::vector<float> logits = {0, 1, 2};
  for (float temperature : {0.5f, 1.0f, 2.0f}) {
    SampleSettings settings;
    settings.temperature = temperature;
    settings.seed = 7;
    const int draws = 20000;
    const auto got = counts(settings, logits, draws);
    double total = 0;
    for (float l : logits) total += std::exp(l / temperature);
    for (int32_t id = 0; id < 3; ++id) {
      const double p = std::exp(logits[static_cast<size_t>(id)] / temperature) / total;
      const double deviation = std::sqrt(draws * p * (1 - p));
      EXPECT_NEAR(got.at(id), draws * p, 5 * deviation) << "id " << id << " at " << temperature;
    }
  }
}

TEST(sample, the_same_seed_gives_the_same_tokens_and_another_does_not) {
  const auto logits = normal_floats(1000, 30, 2);
  const auto run = [&](uint64_t seed) {
    SampleSettings settings;
    settings.seed = seed;
    Sampler sampler(settings);
    std::vector<int32_t> ids;
    for (int i = 0; i < 50; ++i) ids.push_back(sampler.sample(logits));
    return ids;
  };
  EXPECT_EQ(run(1), run(1));
  EXPECT_NE(run(1), run(2));
}

TEST(sample, top_k_keeps_the_k_largest_and_lower_ids_among_equals) {
  SampleSettings settings;
  settings.top_k = 2;
  EXPECT_EQ(support(settings, {1, 3, 2, 3.5f}), (std::set<int32_t>{1, 3}));
  EXPECT_EQ(support(settings, {1, 1, 1, 1}), (std::set<int32_t>{0, 1}));
  settings.top_k = 100;
  EXPECT_EQ(support(settings, {1, 1, 1, 1}), (std::set<int32_t>{0, 1, 2, 3}));
}

TEST(sample, top_p_keeps_the_fewest_that_reach_it) {
  // Probabilities .5 .25 .125 .125.
  const float two = std::log(2.0f);
  const std::vector<float> logits = {two, 0, 2 * two, 0};
  SampleSettings settings;
  settings.top_p = 0.4f;
  EXPECT_EQ(support(settings, logits), (std::set<int32_t>{2}));
  settings.top_p = 0.7f;
  EXPECT_EQ(support(settings, logits), (std::set<int32_t>{0, 2}));
  settings.top_p = 0.8f;
  EXPECT_EQ(support(settings, logits), (std::set<int32_t>{0, 1, 2}));
  settings.top_p = 1;
  EXPECT_EQ(support(settings, logits), (std::set<int32_t>{0, 1, 2, 3}));
  // After top-k the shares are those among what is left: 2/3 and 1/3.
  settings.top_k = 2;
  settings.top_p = 0.6f;
  EXPECT_EQ(support(settings, logits), (std::set<int32_t>{2}));
}

TEST(sample, top_p_reaches_past_the_first_few_hundred) {
  const std::vector<float> flat(3000, 1.0f);
  SampleSettings settings;
  settings.top_p = 0.5f;
  Sampler sampler(settings);
  int32_t highest = 0;
  for (int i = 0; i < 2000; ++i) {
    const int32_t id = sampler.sample(flat);
    ASSERT_LT(id, 1500);
    highest = std::max(highest, id);
  }
  EXPECT_GT(highest, 1400);
}

TEST(sample, min_p_drops_what_is_small_beside_the_largest) {
  const std::vector<float> logits = {0, std::log(0.3f), std::log(0.05f)};
  SampleSettings settings;
  settings.min_p = 0.1f;
  EXPECT_EQ(support(settings, logits), (std::set<int32_t>{0, 1}));
  settings.min_p = 0.5f;
  EXPECT_EQ(support(settings, logits), (std::set<int32_t>{0}));
  settings.min_p = 0.1f;
  settings.temperature = 3;  // 0.05^(1/3) = 0.37: the temperature comes first
  EXPECT_EQ(support(settings, logits), (std::set<int32_t>{0, 1, 2}));
}

TEST(sample, top_k_keeps_the_front_of_a_full_sort) {
  const auto logits = normal_floats(5000, 31, 3);
  std::vector<int32_t> order(logits.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  SampleSettings settings;
  settings.top_k = 40;
  const std::set<int32_t> best(order.begin(), order.begin() + 40);
  for (int32_t id : support(settings, logits)) EXPECT_TRUE(best.count(id)) << id;
  EXPECT_TRUE(support(settings, logits).count(order[0]));
}

TEST(sample, the_repeat_penalty_divides_positive_and_multiplies_negative_logits_once) {
  SampleSettings settings;
  settings.temperature = 0;
  settings.repeat_penalty = 2;
  Sampler sampler(settings);
  sampler.accept(1);
  sampler.accept(1);   // once is all
  sampler.accept(99);  // outside these logits
  EXPECT_EQ(sampler.sample(std::vector<float>{2.1f, 4, 0}), 0);
  EXPECT_EQ(sampler.sample(std::vector<float>{1.9f, 4, 0}), 1);
  EXPECT_EQ(sampler.sample(std::vector<float>{-3, -1, -9}), 1);
  EXPECT_EQ(sampler.sample(std::vector<float>{-1.9f, -1, -9}), 0);
}

TEST(sample, a_tiny_temperature_is_greedy_without_overflow) {
  SampleSettings settings;
  settings.temperature = 1e-30f;
  EXPECT_EQ(support(settings, {1, 3, 2}), (std::set<int32_t>{1}));
}

TEST(sample, settings_that_make_no_sense_are_refused_by_name) {
  const auto message = [](auto change) {
    SampleSettings settings;
    change(settings);
    const auto result = check(settings);
    return result ? std::string("accepted") : result.error().message;
  };
  EXPECT_EQ(message([](auto&) {}), "accepted");
  EXPECT_EQ(message([](auto& s) { s.temperature = -1; }),
            "--temp is -1; it must be 0 (greedy) or more");
  EXPECT_EQ(message([](auto& s) { s.top_k = -1; }), "--top-k is -1; it must be 0 (all) or more");
  EXPECT_EQ(message([](auto& s) { s.top_p = 0; }),
            "--top-p is 0; it must be above 0 and at most 1");
  EXPECT_EQ(message([](auto& s) { s.min_p = 2; }), "--min-p is 2; it must be from 0 to 1");
  EXPECT_EQ(message([](auto& s) { s.repeat_penalty = 0; }),
            "--repeat-penalty is 0; it must be above 0");
}

class sample_isa : public IsaTest {};
NIBBLE_FOR_ISAS(sample_isa);

TEST_P(sample_isa, the_first_logit_that_is_not_finite_is_named) {
  std::vector<float> logits(49152, 1.0f);
  EXPECT_FALSE(first_not_finite(ops_, logits));
  logits[40000] = NAN;
  logits[40001] = INFINITY;
  EXPECT_EQ(first_not_finite(ops_, logits), 40000);
}

}  // namespace
}  // namespace nibble::kernels
