// Attention on a card against the definition of right on the CPU: what is turned, kept and attended
// to, for every type, prompts and single tokens. Skipped where there is no card.
#include "device/cuda.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "device/memory.h"
#include "kernels/attention/attention.h"
#include "kernels/isa_test.h"

namespace nibble::kernels {
namespace {

struct Case {
  int64_t heads = 4;
  int64_t kv_heads = 2;
  int64_t dim = 64;
  KvType type = KvType::kF16;
  bool token_scales = false;
  bool exact = false;
  int64_t window = 0;
  float soft_cap = 0;
  bool sinks = false;
  PairOrder order = PairOrder::kHalves;
  int64_t rotary_dim = 0;  // 0: all
  KvScales scales = {};
  Held out = Held::kF32;
};

std::string describe(const Case& c) {
  return std::to_string(c.heads) + "/" + std::to_string(c.kv_heads) + " heads of " +
         std::to_string(c.dim) + " " + name(c.type) + (c.token_scales ? " own scales" : "") +
         (c.exact ? " exact" : "") + " window " + std::to_string(c.window) + " cap " +
         std::to_string(c.soft_cap) + (c.sinks ? " sinks" : "") +
         (c.out == Held::kBf16 ? " to bf16" : "");
}

class AttentionOnCard : public testing::Test {
 protected:
  void SetUp() override {
    auto cuda = device::Cuda::open(0);
    if (!cuda) GTEST_SKIP() << cuda.error().message;
    card_.emplace(1, *cuda);
  }

  std::vector<float> to_host(const float* from, size_t count) {
    std::vector<float> out(count);
    auto ok = device::copy_to_host(*card_, out.data(), from, count * sizeof(float));
    EXPECT_TRUE(ok) << ok.error().message;
    return out;
  }

  // Steps of `steps` tokens each, one after the other, on both; outputs are compared.
  void check(const Case& c, const std::vector<int64_t>& steps);

  device::Stream host_{2};
  std::optional<device::Stream> card_;
};

// Factors of 16 bits are off by half a unit of their last place, scores of about 4 by as much of
// themselves; single tokens have twice the bits.
float tolerance(const Case& c, int64_t m) {
  if (c.exact || c.type == KvType::kF32) return 5e-5f;
  if (m == 1) return c.type == KvType::kF16 ? 1e-4f : 5e-4f;
  return c.type == KvType::kF16 ? 6e-3f : 5e-2f;
}

float* mutable_data(device::Memory& memory) { return reinterpret_cast<float*>(memory.data()); }

void AttentionOnCard::check(const Case& c, const std::vector<int64_t>& steps) {
  SCOPED_TRACE(describe(c));
  const Ops ops = ops_for(device::Isa::kReference);
  const KvShape shape = {c.kv_heads, c.dim, c.dim, c.type, c.token_scales};
  auto on_host = KvCache::create(shape, c.scales);
  auto on_card = KvCache::create(shape, c.scales);
  auto rope = Rope::create({.order = c.order,
                            .head_dim = static_cast<int>(c.dim),
                            .rotary_dim = static_cast<int>(c.rotary_dim)});
  ASSERT_TRUE(on_host && on_card && rope);
  const auto sink_values = normal_floats(static_cast<size_t>(c.heads), 5, 2);
  auto placed_sinks = device::Floats::place(*card_, sink_values);
  ASSERT_TRUE(placed_sinks);
  AttentionConfig config{.heads = c.heads,
                         .scale = 1 / std::sqrt(static_cast<float>(c.dim)),
                         .soft_cap = c.soft_cap,
                         .window = c.window,
                         .exact = c.exact};
  int64_t position = 0;
  for (const int64_t m : steps) {
    SCOPED_TRACE("at " + std::to_string(position) + " + " + std::to_string(m));
    const auto count = [m, &c](int64_t heads) { return static_cast<size_t>(m * heads * c.dim); };
    const auto seed = static_cast<uint32_t>(position);
    auto q = normal_floats(count(c.heads), seed + 100);
    auto k = normal_floats(count(c.kv_heads), seed + 200);
    auto v = normal_floats(count(c.kv_heads), seed + 300);
    RopeRows rows;
    rope->fill(card_->pool(), position, m, position + m, &rows);
    auto cos = device::Floats::place(*card_, rows.cos);
    auto sin = device::Floats::place(*card_, rows.sin);
    auto card_q = device::Memory::copy_of(*card_, q.data(), q.size() * sizeof(float));
    auto card_k = device::Memory::copy_of(*card_, k.data(), k.size() * sizeof(float));
    auto card_v = device::Floats::place(*card_, v);
    const std::vector<float> poison(q.size(), std::numeric_limits<float>::quiet_NaN());
    auto card_out = device::Memory::copy_of(*card_, poison.data(), q.size() * sizeof(float));
    ASSERT_TRUE(cos && sin && card_q && card_k && card_v && card_out);
    rows.placed_cos = cos->data();
    rows.placed_sin = sin->data();
    ASSERT_TRUE(on_host->reserve(host_, position + m));
    ASSERT_TRUE(on_card->reserve(*card_, position + m));
    std::vector<float> want(q.size());
    AttentionStep step{.rope = &rows,
                       .q = q.data(),
                       .ldq = c.heads * c.dim,
                       .k = k.data(),
                       .ldk = c.kv_heads * c.dim,
                       .v = v.data(),
                       .ldv = c.kv_heads * c.dim,
                       .position = position,
                       .m = m,
                       .out = want.data(),
                       .ldo = c.heads * c.dim};
    config.sinks = c.sinks ? sink_values.data() : nullptr;
    attend(host_, ops, config, *on_host, step);
    config.sinks = c.sinks ? placed_sinks->data() : nullptr;
    step.q = mutable_data(*card_q);
    step.k = mutable_data(*card_k);
    step.v = card_v->data();
    step.out = Rows(card_out->data(), c.out);
    attend(*card_, ops, config, *on_card, step);
    EXPECT_EQ(on_card->size(), position + m);
    const std::vector<float> got = to_host(mutable_data(*card_out), want.size());
    float worst = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      float error = std::fabs(got[i] - want[i]);
      if (c.out == Held::kBf16) {  // two in the place of a float
        const uint32_t pair = std::bit_cast<uint32_t>(got[i / 2]);
        const float rounded = std::bit_cast<float>(i % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
        constexpr float kHalfUnit = 0x1p-8f;
        error = std::max(0.0f, std::fabs(rounded - want[i]) - kHalfUnit * std::fabs(want[i]) -
                                   kHalfUnit * tolerance(c, m));
      }
      if (!(error <= worst)) worst = error;
    }
    EXPECT_LE(worst, tolerance(c, m));
    position += m;
  }
}

const std::vector<int64_t> kSteps = {3, 1, 60, 1, 1, 200, 1, 37, 1};

TEST_F(AttentionOnCard, every_type_of_cache) {
  for (const KvType type : {KvType::kF32, KvType::kF16, KvType::kBf16}) {
    check({.type = type}, kSteps);
    check({.type = type, .exact = true}, kSteps);
  }
  for (const KvType type : {KvType::kE4M3, KvType::kE5M2, KvType::kS8}) {
    const bool whole = type == KvType::kS8;
    const KvScales tensor = {{0.031f}, {0.027f}, {whole ? 3.0f : 0.0f}, {whole ? -7.0f : 0.0f}};
    const KvScales heads = {{0.031f, 0.05f}, {0.027f, 0.04f}, {}, {}};
    for (const bool exact : {false, true}) {
      check({.type = type, .exact = exact, .scales = tensor}, kSteps);
      check({.type = type, .exact = exact, .scales = heads}, kSteps);
      check({.type = type, .token_scales = true, .exact = exact}, kSteps);
    }
  }
}

TEST_F(AttentionOnCard, every_size_of_head_and_group) {
  for (const int64_t dim : {8, 18, 32, 64, 80, 96, 112, 128, 256}) {
    for (const KvType type : {KvType::kF16, KvType::kBf16, KvType::kE4M3}) {
      check({.dim = dim, .type = type, .token_scales = type == KvType::kE4M3}, kSteps);
    }
  }
  for (const auto& [heads, kv_heads] : {std::pair{9, 3}, {8, 8}, {20, 1}, {48, 1}, {32, 8}}) {
    check({.heads = heads, .kv_heads = kv_heads, .dim = 64}, kSteps);
  }
  for (const int64_t dim : {18, 96, 128}) check({.dim = dim, .out = Held::kBf16}, kSteps);
}

TEST_F(AttentionOnCard, windows_caps_sinks_and_ropes) {
  for (const int64_t window : {0, 1, 17, 64, 100}) {
    for (const float cap : {0.0f, 2.0f}) {
      check({.window = window, .soft_cap = cap, .sinks = true}, kSteps);
    }
  }
  check({.exact = true, .window = 33, .soft_cap = 2, .sinks = true}, kSteps);
  check({.order = PairOrder::kNeighbours}, kSteps);
  check({.order = PairOrder::kNeighbours, .rotary_dim = 32}, kSteps);
  check({.rotary_dim = 16}, kSteps);
}

TEST_F(AttentionOnCard, a_long_context_in_many_parts) {
  check({.heads = 8, .kv_heads = 2, .dim = 128}, {1500, 1, 1});
  check({.heads = 4, .kv_heads = 1, .dim = 64, .type = KvType::kS8, .token_scales = true},
        {1500, 1, 700, 1});
  check({.heads = 4, .kv_heads = 1, .dim = 64, .window = 900, .sinks = true}, {1500, 1, 1});
}

TEST_F(AttentionOnCard, eight_bit_caches_remember_what_they_cannot_hold) {
  const Ops ops = ops_for(device::Isa::kReference);
  for (const bool exact : {false, true}) {
    for (const KvType type : {KvType::kE4M3, KvType::kS8}) {
      auto cache = KvCache::create({1, 64, 64, type});
      ASSERT_TRUE(cache);
      const AttentionConfig config{.heads = 1, .exact = exact};
      const auto append = [&](int64_t position, float first) {
        std::vector<float> x(64, 1.0f);
        x[7] = first;
        auto memory = device::Memory::copy_of(*card_, x.data(), 64 * sizeof(float));
        auto out = device::Memory::allocate(*card_, 64 * sizeof(float));
        EXPECT_TRUE(memory && out && cache->reserve(*card_, position + 1));
        float* all = mutable_data(*memory);
        attend(*card_, ops, config, *cache,
               {.q = all,
                .ldq = 64,
                .k = all,
                .ldk = 64,
                .v = all,
                .ldv = 64,
                .position = position,
                .m = 1,
                .out = mutable_data(*out),
                .ldo = 64});
        return to_host(mutable_data(*out), 64)[0];
      };
      EXPECT_TRUE(std::isfinite(append(0, 1)));
      EXPECT_TRUE(std::isnan(append(1, std::numeric_limits<float>::infinity())));
      EXPECT_TRUE(std::isnan(append(2, 1)));
      cache->truncate(2);
      EXPECT_TRUE(std::isnan(append(2, 1)));
      cache->truncate(1);
      EXPECT_TRUE(std::isfinite(append(1, 1)));
    }
  }
}

}  // namespace
}  // namespace nibble::kernels
