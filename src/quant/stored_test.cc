// What is wrong with a stored tensor is said with its name, the element and the value.
#include "quant/stored.h"

#include <limits>

#include "quant/test_support.h"

namespace nibble::quant {
namespace {

using tensor::DType;

TestCheckpoint with(const std::string& name, DType dtype, const std::vector<int64_t>& values) {
  TestCheckpoint out;
  out.add(name, dtype, {static_cast<int64_t>(values.size())}, values);
  return out;
}

TEST(stored, integers_beyond_32_bits_are_refused_with_their_place) {
  const TestCheckpoint checkpoint = with("g_idx", DType::kS64, {0, 1, int64_t{1} << 40});
  EXPECT_EQ(message(read_ints(checkpoint.view("g_idx"), "g_idx")),
            "g_idx: element (2) is 1099511627776, too large");
}

TEST(stored, integers_of_another_type_are_refused) {
  TestCheckpoint checkpoint;
  checkpoint.add<float>("g_idx", DType::kF32, {2}, {0, 1});
  EXPECT_EQ(message(read_ints(checkpoint.view("g_idx"), "g_idx")),
            "g_idx: expected s32 or s64, found f32");
}

TEST(stored, scales_of_a_type_that_no_tool_writes_are_refused) {
  const TestCheckpoint checkpoint = with("scales", DType::kS64, {1});
  EXPECT_EQ(message(read_floats(checkpoint.view("scales"), "scales")),
            "scales: expected f16, bf16, f32, e8m0 or e4m3, found s64");
}

TEST(stored, a_tensor_that_a_method_cannot_do_without_is_named) {
  EXPECT_EQ(message(need(RawWeights(), Slot::kScale, "scales", {2, 2})),
            "scales: the tensor is missing");
}

}  // namespace
}  // namespace nibble::quant
