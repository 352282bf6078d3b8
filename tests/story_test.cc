// The story test: greedy text of a whole model is the same bytes however it is run. On the packaged
// SmolLM2 when the quick start has fetched it, and always on a tiny golden model.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "nibble/nibble.h"

namespace nibble {
namespace {

constexpr int64_t kTokens = 64;

class Story : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() == "smollm2") {
      const auto packaged = find_packaged_model("smollm2");
      if (!packaged) GTEST_SKIP() << "smollm2 is not there; ./quickstart fetches it";
      path_ = *packaged;
    } else {
      path_ = std::string(NIBBLE_SOURCE_DIR) + "/tests/golden/" + GetParam();
    }
  }

  Model load(const Options& options) const {
    auto model = Model::load(path_, options);
    if (!model) ADD_FAILURE() << model.error().message;
    return std::move(*model);
  }

  static std::vector<int32_t> prompt(const Model& model) {
    auto ids = model.tokenizer().encode("The river was long and");
    EXPECT_TRUE(ids) << ids.error().message;
    return *ids;
  }

  static Generated tell(const Model& model) {
    Session session(model);
    GenerateOptions greedy;
    greedy.max_tokens = kTokens;
    greedy.temperature = 0;
    greedy.ignore_eos = true;
    auto story = session.generate(prompt(model), greedy);
    EXPECT_TRUE(story) << story.error().message;
    return story ? *story : Generated{};
  }

  std::string path_;
};

TEST_P(Story, is_the_same_at_any_number_of_threads_and_with_or_without_mmap) {
  std::string first;
  for (int threads : {1, 2, 3}) {
    for (bool mmap : {true, false}) {
      Options options;
      options.threads = threads;
      options.mmap = mmap;
      options.ctx = 256;
      const Generated story = tell(load(options));
      if (first.empty()) first = story.text;
      EXPECT_EQ(story.tokens.size(), static_cast<size_t>(kTokens));
      EXPECT_EQ(story.text, first) << threads << " threads, mmap " << mmap;
    }
  }
  EXPECT_FALSE(first.empty());
}

TEST_P(Story, prefill_then_decode_is_one_prefill) {
  Options options;
  options.precision = "exact";
  options.ctx = 256;
  const Model model = load(options);
  const std::vector<int32_t> ids = prompt(model);
  Session whole(model);
  Session steps(model);
  auto at_once = whole.logits(ids);
  ASSERT_TRUE(at_once);
  for (size_t i = 0; i < ids.size(); ++i) {
    auto row = steps.logits({&ids[i], 1});
    ASSERT_TRUE(row);
    double most = 0;
    double error = 0;
    for (size_t v = 0; v < row->values.size(); ++v) {
      const double a = at_once->values[i * row->values.size() + v];
      most = std::max(most, std::fabs(a));
      error = std::max(error, std::fabs(a - row->values[v]));
    }
    // Another order of float32 sums; the bound of golden_test.cc, with 30 layers instead of 2.
    EXPECT_LE(error, 16 * 1.4e-5 * 15 * most) << "token " << i;
  }
}

// Those that are held would be of a token that is gone.
TEST_P(Story, after_tokens_were_forgotten_there_are_no_logits_to_go_on_from) {
  const Model model = load({});
  const std::vector<int32_t> ids = prompt(model);
  ASSERT_GT(ids.size(), 2u);
  Session session(model);
  GenerateOptions one;
  one.max_tokens = 1;
  one.temperature = 0;
  one.ignore_eos = true;
  ASSERT_TRUE(session.logits(ids));
  const auto before = session.generate({}, one);
  ASSERT_TRUE(before) << before.error().message;
  session.truncate(static_cast<int64_t>(ids.size()) - 1);
  const auto none = session.generate({}, one);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().message,
            "there are no logits yet: nothing was appended, or not to its end");
  const auto after = session.generate(std::span(ids).last(1), one);
  ASSERT_TRUE(after) << after.error().message;
  EXPECT_EQ(after->tokens, before->tokens);
}

// Texts of two ISAs may part where two logits are closer than the precision of `fast`: then the
// first difference must stand at such a place.
TEST_P(Story, across_isas_parts_only_where_two_logits_are_close) {
  constexpr float kClose = 0.1f;  // twice the largest difference of a logit seen, 0.02, with room
  std::vector<int32_t> first;
  for (const std::string& isa : version().isas_found) {
    if (isa == "reference" && GetParam() == "smollm2") continue;  // minutes
    Options options;
    options.isa = isa;
    options.ctx = 256;
    const Model model = load(options);
    const Generated story = tell(model);
    if (first.empty()) first = story.tokens;
    const auto [a, b] = std::mismatch(first.begin(), first.end(), story.tokens.begin());
    if (a == first.end()) continue;
    Session session(model);
    std::vector<int32_t> ids = prompt(model);
    ids.insert(ids.end(), first.begin(), a);
    auto rows = session.logits(ids);
    ASSERT_TRUE(rows);
    const float* last = rows->values.data() + rows->values.size() - rows->columns;
    EXPECT_LE(std::fabs(last[*a] - last[*b]), kClose)
        << isa << " parts at token " << (a - first.begin());
  }
}

INSTANTIATE_TEST_SUITE_P(models, Story,
                         testing::Values("smollm2", "gptq/b4_g32", "awq/g32",
                                         "unquantized/bf16_untied", "fp8/tensor_static"),
                         [](const testing::TestParamInfo<std::string>& param) {
                           std::string name = param.param;
                           std::replace(name.begin(), name.end(), '/', '_');
                           return name;
                         });

}  // namespace
}  // namespace nibble
