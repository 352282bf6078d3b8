// How Hopper's kernels would cut products with weights in tiles: asked on any machine.
#include <gtest/gtest.h>

#include <string>

#include "kernels/matmul/cuda_w4_few.cuh"
#include "kernels/matmul/cuda_w4_wgmma.cuh"

namespace nibble::kernels::cuda {
namespace {

constexpr int kProcessors = 132;

// call(weight, what it is) for every kind that tiles hold, with rows of k inputs.
template <class Call>
void for_kinds(int n, int k, const Call& call) {
  static const uint8_t some = 0;
  for (const int bits : {4, 8}) {
    for (const bool zeros : {false, true}) {
      if (bits == 8 && zeros) continue;
      for (const int group : {32, 64, 128, 192, 256, k}) {
        W4Args w;
        w.bits = bits;
        w.zeros = zeros ? &some : nullptr;
        w.group = group < k ? group : k;
        w.n = n;
        w.k = k;
        call(w, std::to_string(bits) + " bits, groups of " + std::to_string(group) +
                    (zeros ? ", zeros, " : ", ") + std::to_string(n) + " x " + std::to_string(k));
      }
    }
  }
}

TEST(cuda_plans, what_is_chosen_for_many_tokens_can_run) {
  for (const int n : {1, 64, 1000, 4096, 6144, 28672, 57344, 256000}) {
    for (const int k : {128, 512, 4096, 8192, 14336, 57344}) {
      for_kinds(n, k, [&](W4Args w, const std::string& what) {
        for (const int processors : {kProcessors, 114, 78}) {
          for (int m = 1; m <= 2100; m += m < 300 ? 1 : 37) {
            w.m = m;
            ASSERT_TRUE(w4_can(w, choose_w4(w, processors))) << what << ", m " << m;
          }
        }
      });
    }
  }
}

// Up to 16 at once, and where rows are too long for that, half as many until they fit
// (cuda_tiles.cu).
TEST(cuda_plans, few_tokens_of_rows_of_any_length_can_run) {
  for (const int k : {128, 256, 1024, 4096, 8192, 14336, 28672, 53248, 57344, 131072}) {
    for_kinds(4096, k, [&](const W4Args& w, const std::string& what) {
      for (int m = 1; m <= kFewTokens; ++m) {
        W4Few few;
        few.weights = &w;
        few.count = 1;
        few.k = few.ldx = k;
        few.m = m;
        for (const bool f32 : {false, true}) {
          if (f32 && m > kFewTokensF32) continue;
          few.x_is_f32 = f32;
          const int most = k <= 14336 ? 16 : k <= 28672 ? 14 : k <= 57344 ? 7 : 3;
          const W4FewPlan plan = plan_w4_few(few, kProcessors);
          if (m <= most) {
            EXPECT_GE(plan.ranks, 1) << what << ", m " << m;
          }
          if (plan.ranks > 0) {
            EXPECT_GE(plan.stages, 2) << what << ", m " << m;
            EXPECT_GE(plan.early, 1) << what << ", m " << m;
            EXPECT_LE(plan.early, plan.stages) << what << ", m " << m;
          }
        }
      }
    });
  }
}

}  // namespace
}  // namespace nibble::kernels::cuda
