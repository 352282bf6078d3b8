#include "kernels/rope/rope.h"

#include <cmath>
#include <fstream>
#include <sstream>

#include "base/json.h"
#include "kernels/isa_test.h"

namespace nibble::kernels {
namespace {

std::vector<double> numbers(const base::Json& json, const char* key) {
  std::vector<double> out;
  if (const base::Json* list = json.find_set(key)) {
    for (const auto& v : list->as_array()) out.push_back(v.as_double());
  }
  return out;
}

RopeType type_of(const std::string& name) {
  const std::pair<const char*, RopeType> names[] = {{"default", RopeType::kDefault},
                                                    {"linear", RopeType::kLinear},
                                                    {"dynamic", RopeType::kDynamic},
                                                    {"yarn", RopeType::kYarn},
                                                    {"llama3", RopeType::kLlama3},
                                                    {"longrope", RopeType::kLongRope},
                                                    {"proportional", RopeType::kProportional}};
  for (const auto& [word, type] : names) {
    if (name == word) return type;
  }
  ADD_FAILURE() << name;
  return RopeType::kDefault;
}

RopeConfig config_of(const base::Json& one) {
  const base::Json& p = *one.find("rope_parameters");
  const auto number = [&](const char* key, double otherwise) {
    return *p.get_double_or(key, otherwise);
  };
  RopeConfig c;
  c.type = type_of(*p.get_string("rope_type"));
  c.head_dim = static_cast<int>(*one.get_int("head_dim"));
  c.rotary_dim = static_cast<int>(c.head_dim * number("partial_rotary_factor", 1));
  c.theta = number("rope_theta", 10000);
  const bool by_ratio = c.type == RopeType::kYarn || c.type == RopeType::kLongRope;
  c.factor = number("factor", by_ratio ? 0 : 1);
  c.attention_factor = number("attention_factor", 0);
  c.beta_fast = number("beta_fast", 0);
  c.beta_slow = number("beta_slow", 0);
  c.mscale = number("mscale", 0);
  c.mscale_all_dim = number("mscale_all_dim", 0);
  c.truncate = *p.get_bool_or("truncate", true);
  c.low_freq_factor = number("low_freq_factor", 1);
  c.high_freq_factor = number("high_freq_factor", 4);
  c.max_positions = *one.get_int("max_position_embeddings");
  c.original_max_positions = *p.get_int_or("original_max_position_embeddings", 0);
  c.short_factor = numbers(p, "short_factor");
  c.long_factor = numbers(p, "long_factor");
  return c;
}

TEST(rope, frequencies_are_those_of_transformers) {
  std::ifstream file(NIBBLE_SOURCE_DIR "/tests/golden/rope/frequencies.json");
  std::stringstream text;
  text << file.rdbuf();
  const auto document = base::parse_json(text.str(), "frequencies.json");
  ASSERT_TRUE(document) << document.error().message;
  const auto& cases = document->find("cases")->as_array();
  EXPECT_GE(cases.size(), 25u);
  for (const auto& one : cases) {
    SCOPED_TRACE(*one.get_string("name"));
    const auto rope = Rope::create(config_of(one));
    ASSERT_TRUE(rope) << rope.error().message;
    const auto got = rope->frequencies(*one.get_int("length"));
    const auto want = numbers(one, "inv_freq");
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      // transformers works in float32: the exponent's rounding counts ln(theta) < 14 times, and
      // some eight roundings follow. (yarn and llama3 add terms of one sign: nothing cancels.)
      EXPECT_NEAR(got[i], want[i], (14 + 8) * kUnit * want[i]) << i;
    }
    EXPECT_NEAR(rope->attention_factor(), *one.get_double("attention_factor"), 1e-12);
  }
}

TEST(rope, threads_share_the_rows) {
  RopeConfig c;
  c.head_dim = c.rotary_dim = 64;
  const auto rope = Rope::create(c);
  ASSERT_TRUE(rope);
  device::ThreadPool one(1);
  device::ThreadPool four(4);
  RopeRows want, got;
  rope->fill(one, 5, 501, 506, &want);
  rope->fill(four, 5, 501, 506, &got);
  EXPECT_EQ(got.cos, want.cos);
  EXPECT_EQ(got.sin, want.sin);
  EXPECT_EQ(want.cos[500 * 32 + 1], static_cast<float>(std::cos(505 * rope->frequencies(506)[1])));
}

TEST(rope, rows_hold_cos_and_sin_of_position_times_frequency) {
  for (PairOrder order : {PairOrder::kHalves, PairOrder::kNeighbours}) {
    RopeConfig c;
    c.head_dim = 8;
    c.rotary_dim = 6;
    c.order = order;
    const auto rope = Rope::create(c);
    ASSERT_TRUE(rope);
    RopeRows rows;
    device::ThreadPool pool(1);
    rope->fill(pool, 100000, 3, 100003, &rows);
    EXPECT_EQ(rows.m, 3);
    EXPECT_EQ(rows.rotary_dim, 6);
    for (int t = 0; t < 3; ++t) {
      for (int i = 0; i < 3; ++i) {
        const double angle = (100000 + t) * std::pow(10000, -2.0 * i / 6);
        if (order == PairOrder::kHalves) {
          EXPECT_FLOAT_EQ(rows.cos[static_cast<size_t>(t * 3 + i)], std::cos(angle));
          EXPECT_FLOAT_EQ(rows.sin[static_cast<size_t>(t * 3 + i)], std::sin(angle));
        } else {
          EXPECT_FLOAT_EQ(rows.cos[static_cast<size_t>(t * 6 + 2 * i)], std::cos(angle));
          EXPECT_FLOAT_EQ(rows.sin[static_cast<size_t>(t * 6 + 2 * i)], -std::sin(angle));
          EXPECT_FLOAT_EQ(rows.sin[static_cast<size_t>(t * 6 + 2 * i + 1)], std::sin(angle));
        }
      }
    }
  }
}

TEST(rope, gguf_divisors_divide) {
  RopeConfig c;
  c.head_dim = 4;
  c.divisors = {1, 8};
  const auto rope = Rope::create(c);
  ASSERT_TRUE(rope);
  EXPECT_DOUBLE_EQ(rope->frequencies(1)[0], 1);
  EXPECT_DOUBLE_EQ(rope->frequencies(1)[1], 0.01 / 8);
}

TEST(rope, numbers_that_make_no_sense_are_refused_by_name) {
  const auto message = [](auto change) {
    RopeConfig c;
    c.head_dim = 64;
    c.original_max_positions = 4096;
    c.max_positions = 8192;
    change(c);
    const auto rope = Rope::create(c);
    return rope ? std::string("accepted") : rope.error().message;
  };
  EXPECT_EQ(message([](RopeConfig& c) { c.rotary_dim = 7; }),
            "rope_scaling: 7 rotating dimensions of a head of 64 make no pairs");
  EXPECT_EQ(message([](RopeConfig& c) { c.rotary_dim = 66; }),
            "rope_scaling: 66 rotating dimensions of a head of 64 make no pairs");
  EXPECT_EQ(message([](RopeConfig& c) { c.theta = 0; }), "rope_scaling: rope_theta is 0");
  EXPECT_EQ(message([](RopeConfig& c) { c.factor = -2; }), "rope_scaling: factor is -2");
  EXPECT_EQ(message([](RopeConfig& c) {
              c.type = RopeType::kLongRope;
              c.short_factor = {1, 2};
            }),
            "rope_scaling: short_factor has 2 numbers; 64 rotating dimensions need 32");
  EXPECT_EQ(message([](RopeConfig& c) {
              c.type = RopeType::kLlama3;
              c.high_freq_factor = 1;
            }),
            "rope_scaling: low_freq_factor 1 and high_freq_factor 1 leave no band between");
  EXPECT_EQ(message([](RopeConfig& c) {
              c.type = RopeType::kYarn;
              c.original_max_positions = 0;
            }),
            "rope_scaling: original_max_position_embeddings is 0");
  EXPECT_EQ(message([](RopeConfig& c) {
              c.type = RopeType::kDynamic;
              c.max_positions = 0;
            }),
            "rope_scaling: dynamic scaling needs max_position_embeddings and more than one pair");
}

class rotation : public IsaTest {
 protected:
  device::Stream stream_{2};
};
NIBBLE_FOR_ISAS(rotation);

// The reference is itself checked against the formula, written with complex numbers in mind.
TEST_P(rotation, both_orders_turn_pairs_and_leave_the_rest) {
  const Ops reference = ops_for(device::Isa::kReference);
  for (PairOrder order : {PairOrder::kHalves, PairOrder::kNeighbours}) {
    for (int rotary : {2, 6, 16, 18, 32, 64, 80, 96, 128}) {
      RopeConfig c;
      c.head_dim = rotary + 10;
      c.rotary_dim = rotary;
      c.order = order;
      const auto rope = Rope::create(c);
      ASSERT_TRUE(rope);
      const int64_t m = 5;
      const int64_t heads = 3;
      const int64_t ld = heads * c.head_dim + 1;
      RopeRows rows;
      rope->fill(stream_.pool(), 37, m, 42, &rows);
      const auto x = normal_floats(static_cast<size_t>(m * ld), 11);
      auto fast = x;
      auto plain = x;
      rotate(stream_, ops_, rows, fast.data(), ld, heads, c.head_dim);
      rotate(stream_, reference, rows, plain.data(), ld, heads, c.head_dim);
      const auto f = rope->frequencies(42);
      for (int64_t t = 0; t < m; ++t) {
        for (int64_t at = 0; at < ld; ++at) {
          const size_t i = static_cast<size_t>(t * ld + at);
          const int64_t d = at % c.head_dim;
          if (at >= heads * c.head_dim || d >= rotary) {
            ASSERT_EQ(fast[i], x[i]);
            ASSERT_EQ(plain[i], x[i]);
            continue;
          }
          const bool halves = order == PairOrder::kHalves;
          const int64_t pair = halves ? d % (rotary / 2) : d / 2;
          const bool second = halves ? d >= rotary / 2 : d % 2 == 1;
          const int64_t step = halves ? rotary / 2 : 1;
          const double a = x[i - static_cast<size_t>(second ? step : 0)];
          const double b = x[i + static_cast<size_t>(second ? 0 : step)];
          const double angle = static_cast<double>(37 + t) * f[static_cast<size_t>(pair)];
          const double want = second ? a * std::sin(angle) + b * std::cos(angle)
                                     : a * std::cos(angle) - b * std::sin(angle);
          // cos and sin are rounded, then the products and the sum.
          const double allowed = 4 * kUnit * (std::fabs(a) + std::fabs(b));
          ASSERT_NEAR(plain[i], want, allowed);
          ASSERT_NEAR(fast[i], want, allowed) << "rotary " << rotary << " at " << at;
        }
      }
    }
  }
}

TEST_P(rotation, scores_depend_on_the_distance_alone) {
  RopeConfig c;
  c.head_dim = 64;
  const auto rope = Rope::create(c);
  ASSERT_TRUE(rope);
  const auto q = normal_floats(64, 12);
  const auto k = normal_floats(64, 13);
  const auto score = [&](int64_t at_q, int64_t at_k) {
    auto a = q;
    auto b = k;
    RopeRows rows;
    rope->fill(stream_.pool(), at_q, 1, 1, &rows);
    rotate(stream_, ops_, rows, a.data(), 64, 1, 64);
    rope->fill(stream_.pool(), at_k, 1, 1, &rows);
    rotate(stream_, ops_, rows, b.data(), 64, 1, 64);
    double s = 0;
    for (size_t i = 0; i < 64; ++i) s += static_cast<double>(a[i]) * b[i];
    return s;
  };
  EXPECT_NEAR(score(10, 3), score(5010, 5003), 64 * 16 * kUnit);
}

}  // namespace
}  // namespace nibble::kernels
