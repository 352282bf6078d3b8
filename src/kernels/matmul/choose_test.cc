#include <gtest/gtest.h>

#include <regex>

#include "kernels/matmul/kernel.h"

namespace nibble::kernels {
namespace {

using device::hardware_with;
using device::Isa;
using tensor::Element;
using tensor::WeightFormat;
using tensor::ZeroKind;

MatmulProblem problem(const WeightFormat& weight, int64_t n = 576, int64_t k = 1536) {
  return {n, k, weight, {}};
}

TEST(choose, names_follow_the_grammar) {
  const std::regex grammar(
      "(matmul|matvec)_(f32|bf16|s16|s8x2|s8)_(any|u2|u4|u6|u8|e2m1|x2|x4|x6|x8|x16|f32)[gctb]?_"
      "f32_"
      "(reference|avx2|avx512|avx512vnni|avx512bf16|amx)");
  for (const Kernel& kernel : all_kernels()) {
    EXPECT_TRUE(std::regex_match(kernel.name, grammar)) << kernel.name;
  }
}

TEST(choose, the_reference_is_last_and_reads_everything) {
  EXPECT_STREQ(all_kernels().back().name, "matmul_f32_any_f32_reference");
  for (int e = 0; e <= static_cast<int>(Element::kU2); ++e) {
    WeightFormat f{.element = static_cast<Element>(e), .scaled = true, .group_k = 7};
    auto choice = choose(problem(f), hardware_with(Isa::kReference), {});
    ASSERT_TRUE(choice) << choice.error().message;
    EXPECT_EQ(choice->packing, "plain");
    ASSERT_EQ(choice->ranges.size(), 1u);
    EXPECT_EQ(choice->ranges[0].m_min, 1);
    EXPECT_EQ(choice->ranges[0].m_max, INT64_MAX);
  }
}

TEST(choose, an_empty_weight_is_refused) {
  auto choice = choose(problem({}, 0, 4), hardware_with(Isa::kAvx2), {});
  ASSERT_FALSE(choice);
  EXPECT_EQ(choice.error().message, "a weight of 0 x 4 has no elements");
}

TEST(choose, when_nothing_fits_the_error_says_each_reason_once) {
  auto choice = choose(problem({}), hardware_with(Isa::kAvx2), {.kernel_glob = "nothing*"});
  ASSERT_FALSE(choice);
  EXPECT_NE(choice.error().message.find(" and 32 more: its name does not match --kernel nothing*"),
            std::string::npos)
      << choice.error().message;
}

}  // namespace
}  // namespace nibble::kernels
