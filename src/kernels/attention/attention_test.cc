#include "kernels/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/number.h"
#include "kernels/isa_test.h"

namespace nibble::kernels {
namespace {

struct Case {
  KvShape shape;
  AttentionConfig config;
  int64_t context = 0;  // tokens in the cache
  int64_t m = 1;        // queries, the last tokens of the context
  KvScales scales = {};
};

std::string describe(const Case& c) {
  return "heads " + std::to_string(c.config.heads) + "/" + std::to_string(c.shape.heads) +
         " dims " + std::to_string(c.shape.key_dim) + "," + std::to_string(c.shape.value_dim) +
         " " + name(c.shape.type) + " context " + std::to_string(c.context) + " m " +
         std::to_string(c.m) + " window " + std::to_string(c.config.window) + " cap " +
         std::to_string(c.config.soft_cap);
}

KvCache filled(device::Stream& stream, const Ops& ops, const KvShape& shape, int64_t tokens,
               const KvScales& scales = {}) {
  constexpr uint32_t seed = 20;
  auto cache = KvCache::create(shape, scales);
  EXPECT_TRUE(cache);
  EXPECT_TRUE(cache->reserve(stream, tokens));
  const auto k = normal_floats(static_cast<size_t>(tokens * shape.heads * shape.key_dim), seed);
  const auto v =
      normal_floats(static_cast<size_t>(tokens * shape.heads * shape.value_dim), seed + 1);
  cache->append(stream, ops, k.data(), shape.heads * shape.key_dim, v.data(),
                shape.heads * shape.value_dim, tokens);
  return std::move(*cache);
}

// The largest score in absolute terms that one query and head can see, without cancellation.
double largest_score(const Case& c, const KvCache& cache, const float* q, int64_t kv_head) {
  std::vector<float> k(static_cast<size_t>(c.shape.key_dim));
  double most = 0;
  for (int64_t t = 0; t < c.context; t += 7) {  // a sample, widened below
    cache.key(kv_head, t, k.data());
    double s = 0;
    for (size_t d = 0; d < k.size(); ++d) s += std::fabs(static_cast<double>(q[d]) * k[d]);
    most = std::max(most, s * c.config.scale);
  }
  return 1.5 * most;
}

class attention_test : public IsaTest {
 protected:
  void check(const Case& c) {
    SCOPED_TRACE(describe(c));
    const KvCache cache = filled(stream_, ops_, c.shape, c.context, c.scales);
    const int64_t ldq = c.config.heads * c.shape.key_dim + 3;
    const int64_t ldo = c.config.heads * c.shape.value_dim + 5;
    const auto q = normal_floats(static_cast<size_t>(c.m * ldq), 22);
    std::vector<float> out(static_cast<size_t>(c.m * ldo), 42.0f);
    std::vector<float> want(out);
    attention(stream_, ops_, c.config, cache, q.data(), ldq, c.context - c.m, c.m, out.data(), ldo);
    attention_reference(c.config, cache, q.data(), ldq, c.context - c.m, c.m, want.data(), ldo);
    const int64_t group = c.config.heads / c.shape.heads;
    for (int64_t i = 0; i < c.m; ++i) {
      for (int64_t h = 0; h < c.config.heads; ++h) {
        const double top =
            largest_score(c, cache, q.data() + i * ldq + h * c.shape.key_dim, h / group);
        // A score's error changes a probability by as much, and the sum of all by as much again.
        // key_dim roundings for the score, 3 for its scale and the difference to the maximum;
        // exp's 2.5 units; sums over at most tokens / 16 + 64 terms in a row; values reach 5.
        const double of_score =
            (static_cast<double>(c.shape.key_dim) + 3) * kUnit * top + 3e-7 * c.config.soft_cap;
        const double of_sum = (static_cast<double>(c.context) / 16 + 64 + 16) * kUnit;
        const double allowed = 5 * (2 * of_score + of_sum);
        for (int64_t d = 0; d < c.shape.value_dim; ++d) {
          const size_t at = static_cast<size_t>(i * ldo + h * c.shape.value_dim + d);
          ASSERT_LE(std::fabs(out[at] - want[at]), allowed)
              << "query " << i << " head " << h << " dim " << d;
        }
      }
      for (int64_t d = c.config.heads * c.shape.value_dim; d < ldo; ++d) {
        ASSERT_EQ(out[static_cast<size_t>(i * ldo + d)], 42.0f);
      }
    }
  }

  static Case make(int64_t heads, int64_t kv_heads, int64_t key_dim, int64_t value_dim, KvType type,
                   int64_t context, int64_t m) {
    Case c;
    c.shape = {kv_heads, key_dim, value_dim, type};
    c.config.heads = heads;
    c.config.scale = 1 / std::sqrt(static_cast<float>(key_dim));
    c.context = context;
    c.m = m;
    return c;
  }

  device::Stream stream_{2};
};
NIBBLE_FOR_ISAS(attention_test);

TEST_P(attention_test, one_query_over_every_length_around_the_tiles) {
  for (KvType type : {KvType::kF32, KvType::kBf16, KvType::kF16}) {
    for (int64_t context :
         {1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 513, 1000}) {
      check(make(9, 3, 64, 64, type, context, 1));
    }
  }
}

TEST_P(attention_test, many_queries_of_every_count_around_the_tiles) {
  for (int64_t m : {2, 3, 5, 8, 15, 16, 17, 32, 33, 64, 100}) {
    check(make(9, 3, 64, 64, KvType::kF16, m, m));
    check(make(9, 3, 64, 64, KvType::kF16, m + 70, m));
    check(make(4, 4, 32, 32, KvType::kF32, m + 300, m));
  }
}

TEST_P(attention_test, every_head_size_and_grouping) {
  for (int64_t dim : {1, 8, 24, 64, 80, 96, 100, 128, 192, 256}) {
    for (KvType type : {KvType::kF32, KvType::kBf16, KvType::kF16}) {
      check(make(4, 2, dim, dim, type, 70, 1));
      check(make(4, 2, dim, dim, type, 70, 40));
    }
  }
  for (int64_t group : {1, 2, 4, 5, 6, 7, 8, 9, 16, 71}) {
    check(make(2 * group, 2, 16, 16, KvType::kF16, 90, 1));
    check(make(2 * group, 2, 16, 16, KvType::kF16, 90, 60));
  }
  check(make(6, 2, 192, 128, KvType::kF16, 150, 1));
  check(make(6, 2, 192, 128, KvType::kF16, 150, 150));
  check(make(6, 2, 40, 72, KvType::kBf16, 150, 50));
}

TEST_P(attention_test, sliding_windows) {
  for (int64_t window : {1, 2, 16, 63, 64, 65, 100, 1000}) {
    for (int64_t m : {1, 2, 20, 130}) {
      Case c = make(6, 2, 32, 32, KvType::kF16, 400, m);
      c.config.window = window;
      check(c);
    }
  }
}

// Scales that keep what normal_floats gives inside int8, for two heads.
const KvScales kPerHead = {{0.03f, 0.05f}, {0.04f, 0.033f}, {}, {}};
const KvScales kWithZeros = {{0.05f}, {0.04f, 0.06f}, {3, -20}, {-7}};

TEST_P(attention_test, eight_bit_caches_with_every_kind_of_scale) {
  for (KvType type : {KvType::kE4M3, KvType::kE5M2, KvType::kS8}) {
    for (int64_t m : {1, 3, 40}) {
      for (int64_t context : {40, 64, 65, 300}) {
        Case c = make(8, 2, 64, 64, type, context, m);
        c.shape.token_scales = true;
        check(c);
        c.shape.token_scales = false;
        c.scales = kPerHead;
        check(c);
        if (type == KvType::kS8) c.scales = kWithZeros;
        c.config.soft_cap = 5;
        check(c);
        c.config.soft_cap = 0;
        c.config.window = 33;
        check(c);
      }
    }
    for (int64_t dim : {1, 8, 24, 80, 100, 128}) {
      for (int64_t m : {1, 40}) {
        Case c = make(4, 2, dim, dim + 1, type, 70, m);
        c.shape.token_scales = dim != 24;
        check(c);
      }
    }
  }
}

// What the format's own tool would store, as float: by the one formula of kv_cache.h.
float as_stored(KvType type, float x, float scale, float zero) {
  if (type == KvType::kE4M3) return base::f32_from_e4m3(base::e4m3_from_f32(x / scale)) * scale;
  if (type == KvType::kE5M2) {
    const float most = std::clamp(x / scale, -57344.0f, 57344.0f);
    return base::f32_from_e5m2(base::e5m2_from_f32(most)) * scale;
  }
  return (std::clamp(std::nearbyint(x / scale + zero), -128.0f, 127.0f) - zero) * scale;
}

TEST_P(attention_test, eight_bit_codes_are_those_of_the_formula) {
  std::vector<float> x;  // ties, subnormals, both ends, every exponent
  for (int e = -30; e <= 20; ++e) {
    for (int i = 0; i < 64; ++i) x.push_back(std::ldexp(1 + static_cast<float>(i) / 64, e));
  }
  for (int i = -400; i <= 400; ++i) x.push_back(static_cast<float>(i) * 0.5f);
  const size_t positive = x.size();
  for (size_t i = 0; i < positive; ++i) x.push_back(-x[i]);
  x.push_back(0);
  const auto dim = static_cast<int64_t>(x.size());
  for (KvType type : {KvType::kE4M3, KvType::kE5M2, KvType::kS8}) {
    for (float scale : {1.0f, 0.25f, 0.0371f}) {
      const float zero = type == KvType::kS8 ? 5.0f : 0.0f;
      auto cache = KvCache::create({1, dim, dim, type}, {{scale}, {scale}, {zero}, {zero}});
      ASSERT_TRUE(cache);
      ASSERT_TRUE(cache->reserve(stream_, 1));
      cache->append(stream_, ops_, x.data(), dim, x.data(), dim, 1);
      std::vector<float> key(x.size()), value(x.size());
      cache->key(0, 0, key.data());
      cache->value(0, 0, value.data());
      for (size_t i = 0; i < x.size(); ++i) {
        ASSERT_EQ(key[i], as_stored(type, x[i], scale, zero)) << name(type) << " " << x[i];
        ASSERT_EQ(value[i], key[i]) << name(type) << " " << x[i];
      }
    }
  }
}

TEST_P(attention_test, a_scale_of_its_own_bounds_each_tokens_error) {
  auto cache = KvCache::create({1, 4, 4, KvType::kS8, true});
  ASSERT_TRUE(cache);
  ASSERT_TRUE(cache->reserve(stream_, 3));
  const float x[12] = {1000, -3, 200, 0, 1e-3f, 2e-3f, -5e-4f, 0, 0, 0, 0, 0};
  cache->append(stream_, ops_, x, 4, x, 4, 3);
  float out[4];
  for (int64_t t = 0; t < 3; ++t) {
    cache->key(0, t, out);
    for (int64_t d = 0; d < 4; ++d) {
      EXPECT_NEAR(out[d], x[t * 4 + d], std::fabs(x[t == 1 ? 5 : t * 4]) / 254 + 1e-12f);
    }
  }
}

TEST_P(attention_test, eight_bit_caches_remember_what_they_cannot_hold) {
  for (KvType type : {KvType::kE4M3, KvType::kE5M2, KvType::kS8}) {
    for (float bad :
         {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
      const KvShape shape = {1, 16, 16, type, true};
      KvCache cache = filled(stream_, ops_, shape, 20);
      std::vector<float> k(16, 1.0f), v(16, 1.0f);
      v[7] = bad;
      ASSERT_TRUE(cache.reserve(stream_, 22));
      cache.append(stream_, ops_, k.data(), 16, k.data(), 16, 1);
      EXPECT_FALSE(cache.has_not_finite());
      cache.append(stream_, ops_, k.data(), 16, v.data(), 16, 1);
      EXPECT_TRUE(cache.has_not_finite());
      AttentionConfig config;
      config.heads = 1;
      float out[16];
      attention(stream_, ops_, config, cache, k.data(), 16, 21, 1, out, 16);
      EXPECT_TRUE(std::isnan(out[0]) && std::isnan(out[15]));
      cache.truncate(21);
      attention(stream_, ops_, config, cache, k.data(), 16, 20, 1, out, 16);
      EXPECT_TRUE(std::isfinite(out[0]));
    }
  }
}

TEST_P(attention_test, soft_caps_and_sinks) {
  const auto sinks = normal_floats(6, 23, 2);
  for (int64_t m : {1, 2, 50}) {
    Case c = make(6, 2, 64, 64, KvType::kF32, 300, m);
    c.config.soft_cap = 5;
    check(c);
    c.config.sinks = sinks.data();
    check(c);
    c.config.soft_cap = 0;
    c.config.window = 33;
    check(c);
  }
}

TEST_P(attention_test, a_long_context) { check(make(4, 1, 64, 64, KvType::kF16, 20000, 1)); }

TEST_P(attention_test, results_do_not_depend_on_the_number_of_threads) {
  for (int64_t m : {1, 3, 200}) {
    const Case c = make(9, 3, 64, 64, KvType::kF16, 700, m);
    const KvCache cache = filled(stream_, ops_, c.shape, c.context);
    const auto q = normal_floats(static_cast<size_t>(m * 9 * 64), 24);
    const auto run = [&](int threads) {
      device::Stream stream(threads);
      std::vector<float> out(q.size());
      attention(stream, ops_, c.config, cache, q.data(), 9 * 64, c.context - m, m, out.data(),
                9 * 64);
      return out;
    };
    const auto one = run(1);
    EXPECT_EQ(run(2), one);
    EXPECT_EQ(run(5), one);
  }
}

TEST_P(attention_test, a_prompt_at_once_and_token_by_token_agree) {
  const Case c = make(4, 2, 64, 64, KvType::kF16, 150, 150);
  const KvCache cache = filled(stream_, ops_, c.shape, c.context);
  const auto q = normal_floats(static_cast<size_t>(150 * 4 * 64), 25);
  std::vector<float> at_once(q.size());
  std::vector<float> each(q.size());
  attention(stream_, ops_, c.config, cache, q.data(), 256, 0, 150, at_once.data(), 256);
  for (int64_t i = 0; i < 150; ++i) {
    attention(stream_, ops_, c.config, cache, q.data() + i * 256, 256, i, 1, each.data() + i * 256,
              256);
  }
  // Both are within the error that check() derives; scores reach 5.
  for (size_t i = 0; i < q.size(); ++i) {
    ASSERT_NEAR(at_once[i], each[i], 2 * 5 * (2 * 67 * 5 + 90) * kUnit);
  }
}

TEST_P(attention_test, the_cache_holds_what_was_appended_rounded_to_its_type) {
  const Ops reference = ops_for(device::Isa::kReference);
  for (KvType type : {KvType::kF32, KvType::kBf16, KvType::kF16}) {
    for (int64_t dim : {1, 7, 8, 16, 24, 65, 128}) {
      const KvShape shape = {2, dim, dim + 1, type};
      const int64_t tokens = 300;
      auto k = normal_floats(static_cast<size_t>(tokens * 2 * dim), 20);
      auto v = normal_floats(static_cast<size_t>(tokens * 2 * (dim + 1)), 21);
      k[0] = std::numeric_limits<float>::infinity();
      k[1] = 1e-7f;  // a subnormal f16
      v[0] = std::numeric_limits<float>::quiet_NaN();
      v[1] = -70000;  // beyond f16
      const auto rounded = [&](float x) {
        if (type == KvType::kF32) return x;
        return type == KvType::kF16 ? base::f32_from_f16(base::f16_from_f32(x))
                                    : base::f32_from_bf16(base::bf16_from_f32(x));
      };
      for (const Ops& ops : {ops_, reference}) {
        auto cache = KvCache::create(shape);
        ASSERT_TRUE(cache);
        ASSERT_TRUE(cache->reserve(stream_, tokens));
        // In two pieces.
        cache->append(stream_, ops, k.data(), 2 * dim, v.data(), 2 * (dim + 1), 100);
        cache->append(stream_, ops, k.data() + 100 * 2 * dim, 2 * dim,
                      v.data() + 100 * 2 * (dim + 1), 2 * (dim + 1), 200);
        EXPECT_EQ(cache->size(), tokens);
        std::vector<float> row(static_cast<size_t>(dim + 1));
        for (int64_t t = 0; t < tokens; ++t) {
          for (int64_t h = 0; h < 2; ++h) {
            cache->key(h, t, row.data());
            for (int64_t d = 0; d < dim; ++d) {
              ASSERT_EQ(row[static_cast<size_t>(d)],
                        rounded(k[static_cast<size_t>((t * 2 + h) * dim + d)]));
            }
            cache->value(h, t, row.data());
            for (int64_t d = 0; d < dim + 1; ++d) {
              const float want = rounded(v[static_cast<size_t>((t * 2 + h) * (dim + 1) + d)]);
              const float got = row[static_cast<size_t>(d)];
              ASSERT_TRUE(got == want || (std::isnan(got) && std::isnan(want)));
            }
          }
        }
      }
    }
  }
}

TEST_P(attention_test, forgotten_tokens_do_no_harm_even_if_they_were_not_finite) {
  const Case c = make(2, 1, 16, 16, KvType::kF16, 37, 1);
  KvCache cache = filled(stream_, ops_, c.shape, c.context);
  const std::vector<float> nan(16 * 10, std::numeric_limits<float>::quiet_NaN());
  ASSERT_TRUE(cache.reserve(stream_, 47));
  cache.append(stream_, ops_, nan.data(), 16, nan.data(), 16, 10);
  cache.truncate(37);
  const auto q = normal_floats(32 * 20, 26);
  std::vector<float> out(32 * 20);
  attention(stream_, ops_, c.config, cache, q.data(), 32, 36, 1, out.data(), 32);
  attention(stream_, ops_, c.config, cache, q.data(), 32, 17, 20, out.data(), 32);
  for (float x : out) ASSERT_TRUE(std::isfinite(x));
}

TEST_P(attention_test, what_is_not_finite_shows) {
  const Case c = make(2, 1, 16, 16, KvType::kF16, 100, 1);
  const KvCache cache = filled(stream_, ops_, c.shape, c.context);
  auto q = normal_floats(32, 27);
  q[3] = std::numeric_limits<float>::quiet_NaN();
  q[20] = std::numeric_limits<float>::infinity();
  std::vector<float> out(32);
  attention(stream_, ops_, c.config, cache, q.data(), 32, 99, 1, out.data(), 32);
  EXPECT_TRUE(std::isnan(out[0]));
  EXPECT_TRUE(std::isnan(out[16]));
}

TEST_P(attention_test, a_window_does_not_need_the_pages_it_has_passed) {
  Case c = make(2, 1, 16, 16, KvType::kF16, 1000, 1);
  c.config.window = 200;
  KvCache cache = filled(stream_, ops_, c.shape, c.context);
  const auto q = normal_floats(32, 28);
  std::vector<float> before(32);
  std::vector<float> after(32);
  attention(stream_, ops_, c.config, cache, q.data(), 32, 999, 1, before.data(), 32);
  const int64_t bytes = cache.bytes();
  cache.drop_before(800);
  EXPECT_EQ(cache.bytes(), bytes / 4);  // 3 of 4 pages lie before token 768
  attention(stream_, ops_, c.config, cache, q.data(), 32, 999, 1, after.data(), 32);
  EXPECT_EQ(before, after);
}

TEST(kv_cache, memory_grows_with_use) {
  device::Stream stream(1);
  const KvShape shape = {3, 64, 64, KvType::kF16};
  auto cache = KvCache::create(shape);
  ASSERT_TRUE(cache);
  EXPECT_EQ(cache->bytes(), 0);
  ASSERT_TRUE(cache->reserve(stream, 1));
  EXPECT_EQ(cache->bytes(), 3 * 256 * 128 * 2);
  ASSERT_TRUE(cache->reserve(stream, 256));
  EXPECT_EQ(cache->bytes(), KvCache::bytes_for(shape, 256));
  ASSERT_TRUE(cache->reserve(stream, 257));
  EXPECT_EQ(cache->bytes(), KvCache::bytes_for(shape, 512));
}

TEST(kv_cache, eight_bits_take_half_of_sixteen_and_scales_a_little_more) {
  KvShape shape = {3, 64, 64, KvType::kS8};
  EXPECT_EQ(KvCache::bytes_for(shape, 256), 3 * 256 * 128);
  shape.token_scales = true;
  EXPECT_EQ(KvCache::bytes_for(shape, 256), 3 * 256 * (128 + 8));
}

TEST(kv_cache, senseless_shapes_are_refused) {
  EXPECT_FALSE(KvCache::create({0, 64, 64, KvType::kF16}));
  EXPECT_FALSE(KvCache::create({1, -1, 64, KvType::kF16}));
  EXPECT_FALSE(KvCache::create({1, 64, int64_t{1} << 40, KvType::kF16}));
}

TEST(attention_reference_test, one_key_gives_its_value_and_equal_keys_the_mean) {
  device::Stream stream(1);
  const Ops ops = ops_for(device::Isa::kReference);
  auto cache = KvCache::create({1, 2, 2, KvType::kF32});
  ASSERT_TRUE(cache);
  ASSERT_TRUE(cache->reserve(stream, 3));
  const float k[6] = {1, 0, 1, 0, 1, 0};
  const float v[6] = {1, 2, 3, 4, 8, 9};
  cache->append(stream, ops, k, 2, v, 2, 3);
  const float q[6] = {1, 5, 1, 5, 1, 5};
  float out[6];
  AttentionConfig config;
  config.heads = 1;
  attention(stream, ops, config, *cache, q, 2, 0, 3, out, 2);
  EXPECT_FLOAT_EQ(out[0], 1);
  EXPECT_FLOAT_EQ(out[1], 2);
  EXPECT_FLOAT_EQ(out[2], 2);
  EXPECT_FLOAT_EQ(out[4], 4);
  // A sink as strong as each key takes a share like theirs, and has no value.
  const float sink = 1;
  config.sinks = &sink;
  attention(stream, ops, config, *cache, q, 2, 0, 3, out, 2);
  EXPECT_FLOAT_EQ(out[0], 0.5f);
  EXPECT_FLOAT_EQ(out[4], 3);
  // A window of two sees the last two.
  config.sinks = nullptr;
  config.window = 2;
  attention(stream, ops, config, *cache, q, 2, 0, 3, out, 2);
  EXPECT_FLOAT_EQ(out[4], 5.5f);
  // Scores of log 3 and 0: three quarters and a quarter.
  config.window = 0;
  const float k2[4] = {std::log(3.0f), 0, 0, 0};
  cache->truncate(0);
  cache->append(stream, ops, k2, 2, v, 2, 2);
  attention(stream, ops, config, *cache, q, 2, 1, 1, out, 2);
  EXPECT_FLOAT_EQ(out[0], 1.5f);
}

}  // namespace
}  // namespace nibble::kernels
