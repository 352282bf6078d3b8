#include "tensor/tensor.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "tensor/weight_format.h"

namespace nibble::tensor {
namespace {

TEST(tensor, byte_counts_refuse_overflow_and_ragged_blocks) {
  EXPECT_EQ(byte_count(DType::kF32, {2, 3}), 24u);
  EXPECT_EQ(byte_count(DType::kF32, {}), 4u);
  EXPECT_EQ(byte_count(DType::kQ4_1, {2, 64}), 80u);
  EXPECT_FALSE(byte_count(DType::kQ4_1, {2, 48}));
  EXPECT_FALSE(byte_count(DType::kF32, {INT64_MAX, 2}));
  EXPECT_FALSE(byte_count(DType::kF32, {INT64_MAX}));
  EXPECT_FALSE(byte_count(DType::kF32, {-1}));
  EXPECT_EQ(byte_count(DType::kE2M1, {3, 4}), 6u);
}

TEST(tensor, buffers_are_aligned_and_move) {
  for (size_t bytes : {size_t{1}, size_t{100}, size_t{5} << 20}) {
    auto buffer = Buffer::allocate(bytes);
    ASSERT_TRUE(buffer);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 64, 0u);
    buffer->data()[bytes - 1] = std::byte{7};
    Buffer other = std::move(*buffer);
    EXPECT_EQ(other.data()[bytes - 1], std::byte{7});
    EXPECT_EQ(other.size(), bytes);
  }
}

TEST(tensor, an_impossible_allocation_is_an_error) {
  EXPECT_FALSE(Buffer::allocate(SIZE_MAX - (size_t{1} << 22)));
}

TEST(weight_format, names_follow_the_command_line_contract) {
  WeightFormat f{.element = Element::kBF16};
  EXPECT_EQ(to_string(f), "bf16");
  f = {.element = Element::kU4, .scaled = true, .group_k = 128, .zero = ZeroKind::kInteger};
  EXPECT_EQ(to_string(f), "u4g128+zp");
  f = {.element = Element::kS4, .scaled = true, .group_k = 32, .act_order = true};
  EXPECT_EQ(to_string(f), "s4g32+act");
  f = {.element = Element::kE4M3, .scaled = true, .group_n = 128, .group_k = 128};
  EXPECT_EQ(to_string(f), "e4m3b128x128");
  f = {.element = Element::kS8, .scaled = true};
  EXPECT_EQ(to_string(f), "s8c");
  f = {.element = Element::kE4M3, .scaled = true, .group_n = 0};
  EXPECT_EQ(to_string(f), "e4m3t");
  f.group_k = 1;
  EXPECT_EQ(to_string(f), "e4m3b*x1");
}

TEST(weight_format, a_row_is_value_minus_zero_times_scale) {
  const uint8_t code[] = {0, 15, 8, 1, 2, 3};
  QuantizedWeight w;
  w.format = {.element = Element::kU4, .scaled = true, .group_k = 4, .zero = ZeroKind::kInteger};
  w.n = 1;
  w.k = 6;
  w.code = {DType::kU8, {1, 6}, reinterpret_cast<const std::byte*>(code), 6};
  w.scale = {0.5f, 2.0f};
  w.zero = {8, 2};
  float row[6];
  dequantize_row(w, 0, row);
  const float expected[] = {-4, 3.5f, 0, -3.5f, 0, 2};
  for (int i = 0; i < 6; ++i) EXPECT_EQ(row[i], expected[i]);
  w.format.act_order = true;
  w.order = {5, 4, 3, 2, 1, 0};
  dequantize_row(w, 0, row);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(row[5 - i], expected[i]);
}

}  // namespace
}  // namespace nibble::tensor
