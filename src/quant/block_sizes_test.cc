#include "quant/block_sizes.h"

#include "quant/test_support.h"

namespace nibble::quant {
namespace {

using tensor::DType;

std::optional<int64_t> found(std::vector<std::pair<int64_t, int64_t>> seen) {
  BlockSize out;
  for (const auto& [size, scales] : seen) out.see(size, scales);
  return out.find();
}

TEST(block_sizes, one_layer_tells_the_power_of_two_or_the_size_without_a_short_block) {
  EXPECT_EQ(found({{160, 2}}), 128);  // 80 to 159
  EXPECT_EQ(found({{300, 3}}), 128);  // 100 to 149
  EXPECT_EQ(found({{192, 4}}), 48);   // 48 to 63
  EXPECT_EQ(found({{64, 64}}), 1);
  EXPECT_EQ(found({{64, 1}}), 64);
  EXPECT_EQ(found({{4096, 32}}), 128);
  EXPECT_EQ(found({{10, 4}}), std::nullopt);  // 3, and the last block would be of 1
  EXPECT_EQ(found({{10, 6}}), std::nullopt);  // blocks of 1 are 10, of 2 are 5
  EXPECT_EQ(found({{10, 0}}), std::nullopt);
  EXPECT_EQ(found({{10, 11}}), std::nullopt);
}

TEST(block_sizes, more_layers_narrow_what_one_leaves_open) {
  EXPECT_EQ(found({{96, 2}}), 64);  // 48 to 95
  EXPECT_EQ(found({{96, 2}, {192, 4}}), 48);
  EXPECT_EQ(found({{192, 4}, {96, 2}, {40, 1}}), 48);
  EXPECT_EQ(found({{50, 1}, {192, 4}}), std::nullopt);  // 50 to 63
  EXPECT_EQ(found({{100, 1}, {192, 4}}), std::nullopt);
  BlockSize size;
  size.see(50, 1);
  EXPECT_EQ(size.range(), "50 or more");
  size.see(192, 4);
  EXPECT_EQ(size.range(), "50 to 63");
  size.see(100, 1);
  EXPECT_TRUE(size.empty());
}

TEST(block_sizes, a_side_that_is_never_cut_is_as_long_as_the_other_or_whole) {
  BlockSizes sizes;
  sizes.see({6, 40}, {1, 3});
  EXPECT_EQ(sizes.find(), std::pair(int64_t{16}, int64_t{16}));
  sizes.see({64, 40}, {1, 3});
  EXPECT_EQ(sizes.find(), std::pair(int64_t{64}, int64_t{16}));
  BlockSizes rows;
  rows.see({256, 128}, {2, 128});
  EXPECT_EQ(rows.find(), std::pair(int64_t{128}, int64_t{1}));
}

TEST(block_sizes, only_scales_per_block_are_seen) {
  TestCheckpoint checkpoint;
  const auto add = [&](const std::string& module, DType type, tensor::Shape shape,
                       tensor::Shape scale) {
    checkpoint.add_bytes(module + ".weight", type, std::move(shape), "");
    checkpoint.add_bytes(module + ".weight_scale_inv", DType::kF32, std::move(scale), "");
  };
  add("per_output", DType::kE4M3, {64, 8}, {64, 1});
  add("one", DType::kE4M3, {64, 8}, {1, 1});
  add("flat", DType::kE4M3, {64, 8}, {64});
  add("plain", DType::kBF16, {64, 8}, {2, 2});
  const BlockSizes none = block_sizes_of(checkpoint.lookup());
  EXPECT_TRUE(none.n.whole() && none.k.whole());
  add("blocks", DType::kE4M3, {96, 96}, {2, 96});
  EXPECT_EQ(block_sizes_of(checkpoint.lookup()).find(), std::pair(int64_t{64}, int64_t{1}));
  add("more", DType::kE4M3, {192, 96}, {4, 96});
  EXPECT_EQ(block_sizes_of(checkpoint.lookup()).find(), std::pair(int64_t{48}, int64_t{1}));
}

}  // namespace
}  // namespace nibble::quant
