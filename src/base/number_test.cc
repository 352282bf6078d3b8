#include "base/number.h"

#include <gtest/gtest.h>

#include <cmath>

namespace nibble::base {
namespace {

TEST(number, every_finite_f16_code_survives_a_round_trip) {
  for (uint32_t code = 0; code < 65536; ++code) {
    const float v = f32_from_f16(static_cast<uint16_t>(code));
    if (std::isnan(v)) continue;
    EXPECT_EQ(f16_from_f32(v), code) << v;
  }
}

TEST(number, every_bf16_code_survives_a_round_trip) {
  for (uint32_t code = 0; code < 65536; ++code) {
    const float v = f32_from_bf16(static_cast<uint16_t>(code));
    if (std::isnan(v)) continue;
    EXPECT_EQ(bf16_from_f32(v), code);
  }
}

TEST(number, f16_agrees_with_the_compiler_for_every_code) {
  for (uint32_t code = 0; code < 65536; ++code) {
    const auto native = static_cast<float>(std::bit_cast<_Float16>(static_cast<uint16_t>(code)));
    const float ours = f32_from_f16(static_cast<uint16_t>(code));
    if (std::isnan(native)) {
      EXPECT_TRUE(std::isnan(ours));
    } else {
      EXPECT_EQ(bits_from_f32(ours), bits_from_f32(native)) << code;
    }
  }
}

TEST(number, f16_rounding_agrees_with_the_compiler) {
  uint32_t state = 12345;
  for (int i = 0; i < 2000000; ++i) {
    state = state * 1664525u + 1013904223u;
    const float v = f32_from_bits(state);
    if (std::isnan(v)) continue;
    ASSERT_EQ(f16_from_f32(v), std::bit_cast<uint16_t>(static_cast<_Float16>(v))) << v;
  }
}

TEST(number, e4m3_has_the_values_of_the_ocp_table) {
  EXPECT_EQ(f32_from_e4m3(0x7e), 448.0f);
  EXPECT_EQ(f32_from_e4m3(0x01), 0x1p-9f);
  EXPECT_EQ(f32_from_e4m3(0x08), 0x1p-6f);
  EXPECT_EQ(f32_from_e4m3(0x38), 1.0f);
  EXPECT_TRUE(std::isnan(f32_from_e4m3(0x7f)));
  EXPECT_TRUE(std::isnan(f32_from_e4m3(0xff)));
  EXPECT_EQ(f32_from_e4m3fnuz(0x7f), 240.0f);
  EXPECT_TRUE(std::isnan(f32_from_e4m3fnuz(0x80)));
  EXPECT_EQ(f32_from_e5m2(0x7b), 57344.0f);
  EXPECT_TRUE(std::isinf(f32_from_e5m2(0x7c)));
  EXPECT_EQ(f32_from_e5m2fnuz(0x7f), 57344.0f);
}

TEST(number, eight_bit_codes_survive_a_round_trip) {
  for (int code = 0; code < 256; ++code) {
    const auto byte = static_cast<uint8_t>(code);
    const float e4m3 = f32_from_e4m3(byte);
    if (!std::isnan(e4m3)) {
      EXPECT_EQ(e4m3_from_f32(e4m3), byte);
    }
    const float e5m2 = f32_from_e5m2(byte);
    if (!std::isnan(e5m2)) {
      EXPECT_EQ(e5m2_from_f32(e5m2), byte);
    }
  }
}

TEST(number, e4m3_saturates_and_rounds_to_even) {
  EXPECT_EQ(e4m3_from_f32(1e9f), 0x7e);
  EXPECT_EQ(e4m3_from_f32(-INFINITY), 0xfe);
  EXPECT_EQ(f32_from_e4m3(e4m3_from_f32(17.0f)), 16.0f);  // between 16 and 18: even mantissa
  EXPECT_EQ(f32_from_e4m3(e4m3_from_f32(19.0f)), 20.0f);
  EXPECT_EQ(e4m3_from_f32(0x1p-11f), 0x00);
}

TEST(number, e2m1_has_eight_magnitudes) {
  const float expected[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (uint8_t code = 0; code < 8; ++code) {
    EXPECT_EQ(f32_from_e2m1(code), expected[code]);
    EXPECT_EQ(f32_from_e2m1(static_cast<uint8_t>(code | 8)), -expected[code]);
    EXPECT_EQ(e2m1_from_f32(expected[code]), code);
  }
  EXPECT_EQ(e2m1_from_f32(100.0f), 7);
  EXPECT_EQ(e2m1_from_f32(2.5f), 4);  // tie between 2 and 3
}

TEST(number, e8m0_is_a_power_of_two) {
  EXPECT_EQ(f32_from_e8m0(127), 1.0f);
  EXPECT_EQ(f32_from_e8m0(0), 0x1p-127f);
  EXPECT_EQ(f32_from_e8m0(254), 0x1p127f);
  EXPECT_TRUE(std::isnan(f32_from_e8m0(255)));
}

TEST(number, s4_is_twos_complement) {
  EXPECT_EQ(s32_from_s4(7), 7);
  EXPECT_EQ(s32_from_s4(8), -8);
  EXPECT_EQ(s32_from_s4(15), -1);
}

}  // namespace
}  // namespace nibble::base
