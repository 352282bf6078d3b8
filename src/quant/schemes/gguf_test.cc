#include <gtest/gtest.h>

#include "quant/gguf_blocks.h"
#include "quant/test_support.h"

namespace nibble::quant {
namespace {

using tensor::DType;

// One Q4_1 block: d = 0.5, m = -1, codes 0..15 in the low nibbles, 15..0 in the high ones.
std::string q4_1_block() {
  std::string block = {0, 0x38, 0, static_cast<char>(0xbc)};
  for (int i = 0; i < 16; ++i) block += static_cast<char>(i | (15 - i) << 4);
  return block;
}

TEST(gguf, every_tensor_says_its_own_type) {
  TestCheckpoint checkpoint;
  checkpoint.add_bytes("blk.0.attn_q.weight", DType::kQ4_1, {1, 32}, q4_1_block());
  checkpoint.add<float>("blk.0.attn_k.weight", DType::kF32, {1, 2}, {1, 2});
  CheckpointFacts facts;
  facts.gguf = true;
  facts.tensors = checkpoint.lookup();
  const auto scheme = detect_scheme(facts, "");
  ASSERT_TRUE(scheme) << message(scheme);
  EXPECT_EQ((*scheme)->name, "gguf");
  const auto config = (*scheme)->parse(facts);
  ASSERT_TRUE(config);

  const LinearLayer q{"blk.0.attn_q", 1, 32, false, {}};
  const auto method = (*config)->linear_method(q, checkpoint.lookup());
  ASSERT_TRUE(method);
  EXPECT_EQ(tensor::to_string((*method)->weight_format()), "q4_1");
  const auto raw = load_whole(checkpoint, q, **method);
  const auto weight = (*method)->process_weights_after_loading(1, 32, *raw);
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(weight->format, (*method)->weight_format());
  const std::vector<float> w = dequantize(*weight);
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(w[static_cast<size_t>(i)], 0.5f * static_cast<float>(i) - 1);
    EXPECT_EQ(w[static_cast<size_t>(i + 16)], 0.5f * static_cast<float>(15 - i) - 1);
  }
  const auto plain =
      (*config)->linear_method({"blk.0.attn_k", 1, 2, false, {}}, checkpoint.lookup());
  ASSERT_TRUE(plain);
  EXPECT_EQ((*plain)->scheme(), "unquantized");
}

TEST(gguf, a_type_nobody_stores_weights_in_is_refused) {
  TestCheckpoint checkpoint;
  checkpoint.add_bytes("blk.0.attn_q.weight", DType::kQ8_1, {1, 32}, std::string(36, '\0'));
  CheckpointFacts facts;
  facts.gguf = true;
  facts.tensors = checkpoint.lookup();
  const auto config = (*detect_scheme(facts, ""))->parse(facts);
  EXPECT_EQ(message((*config)->linear_method({"blk.0.attn_q", 1, 32, false, {}}, facts.tensors)),
            "blk.0.attn_q.weight: its type q8_1 is not one that weights are read from");
}

TEST(gguf, bytes_that_do_not_fit_the_shape_are_refused) {
  const std::string bytes(20, '\0');
  const tensor::TensorView view{
      DType::kQ4_1, {1, 32}, reinterpret_cast<const std::byte*>(bytes.data()), 20};
  EXPECT_EQ(message(gguf_to_canonical(DType::kQ4_1, 2, 32, view)),
            "expected q4_1 (2, 32) in blocks of 32 elements, found q4_1 (1, 32) of 20 bytes");
  EXPECT_EQ(message(gguf_to_canonical(DType::kQ4_1, 1, 33, view)),
            "expected q4_1 (1, 33) in blocks of 32 elements, found q4_1 (1, 32) of 20 bytes");
}

TEST(gguf, a_scale_that_is_not_finite_is_refused_with_its_place) {
  std::string bytes = q4_1_block() + q4_1_block() + q4_1_block() + q4_1_block();
  bytes[3 * 20 + 2] = 0;
  bytes[3 * 20 + 3] = 0x7c;  // m = inf
  const tensor::TensorView view{
      DType::kQ4_1, {2, 64}, reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()};
  EXPECT_EQ(message(gguf_to_canonical(DType::kQ4_1, 2, 64, view)),
            "the scale of row 1, inputs 32 to 63 is inf; the file is damaged");
  std::string mxfp4(17, '\0');
  mxfp4[0] = static_cast<char>(0xff);  // nan in e8m0
  const tensor::TensorView nan{
      DType::kMXFP4, {1, 32}, reinterpret_cast<const std::byte*>(mxfp4.data()), mxfp4.size()};
  EXPECT_EQ(message(gguf_to_canonical(DType::kMXFP4, 1, 32, nan)),
            "the scale of row 0, inputs 0 to 31 is nan; the file is damaged");
}

}  // namespace
}  // namespace nibble::quant
