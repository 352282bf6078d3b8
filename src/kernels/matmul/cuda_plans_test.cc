// How Hopper's kernels would cut products with weights in tiles: asked on any machine.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/matmul/cuda_tile_shapes.h"
#include "kernels/matmul/cuda_w4_few.cuh"
#include "kernels/matmul/cuda_w4_runs.cuh"
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
          for (int m = 1; m <= 4100; m += m < 300 ? 1 : 37) {
            w.m = m;
            ASSERT_TRUE(w4_can(w, choose_w4(w, processors))) << what << ", m " << m;
          }
        }
      });
    }
  }
}

// Else cuda_tiles_test.cc would not run some of them.
TEST(cuda_plans, every_tile_is_chosen_for_a_product_that_is_tested) {
  static const uint8_t some = 0;
  const auto name = [](const W4Args& w, const W4Choice& c) {
    return std::to_string(w.bits) + " bits, " + std::to_string(c.rows) + " x " +
           std::to_string(c.tokens) + (c.on_sums ? ", scales on sums" : "");
  };
  std::set<std::string> exist;
  std::set<std::string> chosen;
  for (const auto& [bits, zeros] : {std::pair{4, false}, {4, true}, {8, false}}) {
    W4Args w;
    w.bits = bits;
    w.zeros = zeros ? &some : nullptr;
    w.group = 128;
    for (const ProductShape& shape : kEveryTile) {
      w.n = shape.n;
      w.k = shape.k;
      w.m = shape.m;
      chosen.insert(name(w, choose_w4(w, kProcessors)));
    }
    for (int rows = 64; rows <= 256; rows *= 2) {
      for (int tokens = 8; tokens <= 256; tokens += 8) {
        for (const bool on_sums : {false, true}) {
          for (const int wide : {1, 2}) {
            for (const int slices : {1, 2}) {
              const W4Choice c{rows, tokens, on_sums, 0, wide, slices};
              if (w4_can(w, c)) exist.insert(name(w, c));
            }
          }
        }
      }
    }
  }
  EXPECT_EQ(chosen, exist);
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

// All blocks of a product do what they do, without a card: every step of every tile is done once,
// every piece of a shared tile has one who finishes it, who waits for exactly what others leave,
// and leaves all that others wait for before.
void expect_all_is_done_once(const w4::Deal& deal) {
  const w4::Runs& runs = deal.runs;
  struct Part {
    w4::Segment segment;
    w4::Sharers sharers;
    bool is_last;  // of the block's shared segments
  };
  std::vector<std::vector<int>> done(static_cast<size_t>(runs.tiles),
                                     std::vector<int>(static_cast<size_t>(runs.steps)));
  std::map<int, std::map<int, Part>> shared;  // by tile and block
  std::set<int> slots;
  for (int block = 0; block < deal.blocks; ++block) {
    w4::Segments all(runs, block, deal.blocks);
    w4::Segment g{};
    Part* before = nullptr;
    while (all.next(g)) {
      ASSERT_EQ(g.tile, g.row_tile * runs.token_tiles + g.token_tile);
      ASSERT_TRUE(g.tile < runs.tiles && g.begin < g.end && g.end <= runs.steps);
      for (int i = g.begin; i < g.end; ++i) {
        ++done[static_cast<size_t>(g.tile)][static_cast<size_t>(i)];
      }
      if (g.begin == 0 && g.end == runs.steps) continue;
      if (before != nullptr) before->is_last = false;
      before = &shared[g.tile][all.me()];
      *before = {g, all.sharers(g.tile), true};
      EXPECT_TRUE(slots.insert(w4::Segments::slot(all.me(), g.begin == 0)).second);
    }
  }
  for (const auto& tile : done) {
    for (const int times : tile) ASSERT_EQ(times, 1);
  }
  constexpr int kUnits = 16;
  for (const auto& [tile, parts] : shared) {
    const w4::Sharers who = parts.begin()->second.sharers;
    ASSERT_GE(who.finishers, 1) << "tile " << tile;
    ASSERT_EQ(static_cast<int>(parts.size()), who.last - who.first + 1);
    int owned = 0;
    for (const auto& [block, part] : parts) {
      EXPECT_TRUE(part.sharers.first == who.first && part.sharers.last == who.last &&
                  part.sharers.finishers == who.finishers);
      EXPECT_EQ(part.segment.begin == 0, block == who.first);
      const bool finishes = block - who.first < who.finishers;
      // Who waits for others has left all that it leaves.
      EXPECT_TRUE(!finishes || part.is_last) << "block " << block << " of tile " << tile;
      EXPECT_TRUE(finishes || block == who.last) << "block " << block << " of tile " << tile;
      for (int unit = 0; unit < kUnits; ++unit) {
        if (who.owner(unit, kUnits) == block - who.first) {
          EXPECT_TRUE(finishes);
          ++owned;
        }
      }
    }
    EXPECT_EQ(owned, kUnits);
  }
}

TEST(cuda_plans, tiles_of_many_tokens_are_dealt_so_that_all_is_done_once) {
  std::mt19937 random(3);
  const auto up_to = [&](int most) {
    return static_cast<int>(random() % static_cast<unsigned>(most)) + 1;
  };
  for (int i = 0; i < 6000; ++i) {
    const int row_tiles = up_to(i % 3 == 0 ? 450 : 40);
    const int token_tiles = i % 4 == 0 ? up_to(52) : 1;
    const int steps = up_to(i % 5 == 0 ? 420 : 112);
    const int places = i % 2 == 0 ? kProcessors : i % 7 == 0 ? 2 * kProcessors : up_to(160);
    constexpr int kSplits[] = {0, 1, 2, 3, 4, 5, 6, 7, 8};
    const int split = kSplits[random() % std::size(kSplits)];
    if (split > steps) continue;
    SCOPED_TRACE(std::to_string(row_tiles) + " x " + std::to_string(token_tiles) + " tiles of " +
                 std::to_string(steps) + " steps, split " + std::to_string(split) + ", " +
                 std::to_string(places) + " places");
    expect_all_is_done_once(w4::deal(row_tiles, token_tiles, steps, split, places));
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace nibble::kernels::cuda
