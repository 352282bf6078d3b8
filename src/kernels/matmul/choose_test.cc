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
      "(matmul|matvec)_(f32|bf16|s16|s8x2|s8)_(any|u2|u4|u6|u8|e2m1|f8|x2|x4|x6|x8|x16|f32)[gctb]?_"
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
  const std::string others = std::to_string(all_kernels().size() - 1);
  EXPECT_NE(choice.error().message.find(" and " + others +
                                        " more: its name does not match --kernel nothing*"),
            std::string::npos)
      << choice.error().message;
}

std::string ranges(const Choice& choice) {
  std::string out = choice.packing + ":";
  for (const ChoiceRange& r : choice.ranges) {
    out += " " + std::to_string(r.m_min) + "+ " + kernel_name(*r.kernel);
  }
  return out;
}

std::string refusal_of(const Choice& choice, const std::string& kernel) {
  for (const Refusal& refused : choice.refusals) {
    if (refused.kernel == kernel) return refused.why;
  }
  return "";
}

const WeightFormat kQ4_1 = {.element = Element::kU4,
                            .scaled = true,
                            .group_k = 32,
                            .scale_type = tensor::DType::kF16,
                            .zero = ZeroKind::kOffset};

TEST(choose, integers_run_as_integers_on_every_machine) {
  auto choice = choose(problem(kQ4_1), hardware_with(Isa::kAvx512), {});
  ASSERT_TRUE(choice);
  EXPECT_EQ(ranges(*choice),
            "n4: 1+ matvec_s8x2_u4g_f32_avx512vnni 13+ matmul_s16_u4g_f32_avx512vnni");
  choice = choose(problem(kQ4_1), hardware_with(Isa::kAvx2), {});
  ASSERT_TRUE(choice);
  EXPECT_EQ(ranges(*choice), "n4: 1+ matvec_s8x2_u4g_f32_avx2 6+ matmul_s16_u4g_f32_avx2");
  EXPECT_EQ(refusal_of(*choice, "matvec_s8x2_u4g_f32_avx512vnni"),
            "needs avx512; this machine has avx2");
  choice = choose(problem(kQ4_1), hardware_with(Isa::kAmx), {.isa = Isa::kAvx2});
  ASSERT_TRUE(choice);
  EXPECT_EQ(refusal_of(*choice, "matvec_s8x2_u4g_f32_avx512vnni"),
            "needs avx512; --isa avx2 forbids it");
}

TEST(choose, exact_holds_activations_in_float) {
  auto choice =
      choose(problem(kQ4_1), hardware_with(Isa::kAvx512), {.precision = Precision::kExact});
  ASSERT_TRUE(choice);
  EXPECT_EQ(ranges(*choice), "n4: 1+ matmul_f32_x4g_f32_avx512");
  EXPECT_EQ(refusal_of(*choice, "matvec_s8x2_u4g_f32_avx512vnni"),
            "holds activations as 16-bit integers; --precision exact wants float");
}

TEST(choose, every_kind_of_weight_has_its_packing) {
  const auto packing = [](const WeightFormat& f) {
    auto choice = choose(problem(f), hardware_with(Isa::kAvx2), {});
    return choice ? choice->packing : choice.error().message;
  };
  EXPECT_EQ(packing({.element = Element::kBF16}), "n16");
  EXPECT_EQ(packing({.element = Element::kF32}), "n32");
  EXPECT_EQ(packing({.element = Element::kE4M3, .scaled = true, .group_n = 0}), "n8");
  EXPECT_EQ(packing({.element = Element::kNF4, .scaled = true, .group_k = 64}), "n4");
  EXPECT_EQ(packing({.element = Element::kS3, .scaled = true, .group_k = 128}), "n4");
  EXPECT_EQ(packing({.element = Element::kU2, .scaled = true, .group_k = 64}), "n2");
  EXPECT_EQ(packing({.element = Element::kS6, .scaled = true, .group_k = 16}), "n6");
  EXPECT_EQ(packing({.element = Element::kU4, .scaled = true, .group_k = 48}), "plain");
}

TEST(choose, a_refusal_says_the_value_that_does_not_fit) {
  const WeightFormat f{.element = Element::kU4, .scaled = true, .group_k = 48};
  auto choice = choose(problem(f), hardware_with(Isa::kAvx512), {});
  ASSERT_TRUE(choice);
  EXPECT_EQ(refusal_of(*choice, "matvec_s8x2_u4g_f32_avx512vnni"),
            "needs groups of 16 or of a multiple of 32 along K; the group is 48");
  EXPECT_EQ(refusal_of(*choice, "matvec_s8x2_u8g_f32_avx512vnni"),
            "holds codes of 7 to 8 bits; u4 has 4");
}

TEST(choose, a_glob_may_force_one_kernel_for_every_m) {
  auto choice =
      choose(problem(kQ4_1), hardware_with(Isa::kAvx512), {.kernel_glob = "matvec_*avx512*"});
  ASSERT_TRUE(choice);
  EXPECT_EQ(ranges(*choice), "n4: 1+ matvec_s8x2_u4g_f32_avx512vnni");
}

TEST(choose, packed_weights_are_hardly_larger_than_stored_ones) {
  struct Kind {
    Element element;
    int64_t group;
    ZeroKind zero;
    double stored;  // bits a weight in the file
  };
  const Kind kinds[] = {{Element::kU2, 16, ZeroKind::kOffset, 2.625},  // q2_k
                        {Element::kS3, 16, ZeroKind::kNone, 3.4375},   // q3_k
                        {Element::kU4, 32, ZeroKind::kOffset, 4.5},    // q4_k
                        {Element::kU5, 32, ZeroKind::kOffset, 5.5},    // q5_k
                        {Element::kS6, 16, ZeroKind::kNone, 6.5625}};  // q6_k
  for (const Kind& kind : kinds) {
    const WeightFormat f{.element = kind.element,
                         .scaled = true,
                         .group_k = kind.group,
                         .super_k = 256,
                         .zero = kind.zero};
    auto choice = choose(problem(f), hardware_with(Isa::kAvx2), {});
    ASSERT_TRUE(choice);
    const double bits = 8.0 * static_cast<double>(packed_bytes(problem(f), *choice)) / (576 * 1536);
    EXPECT_LE(bits, kind.stored + 1.2) << tensor::name(kind.element);
    EXPECT_GE(bits, kind.stored) << tensor::name(kind.element);
  }
}

}  // namespace
}  // namespace nibble::kernels
