#include "device/cuda.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "device/memory.h"

namespace nibble::device {
namespace {

TEST(gpu, cards_before_turing_are_refused_by_name) {
  Gpu gpu = gpu_h200();
  EXPECT_TRUE(check_supported(gpu));
  gpu.name = "Tesla V100-SXM2-16GB";
  gpu.major = 7;
  gpu.minor = 0;
  const auto ok = check_supported(gpu);
  ASSERT_FALSE(ok);
  EXPECT_EQ(ok.error().message,
            "Tesla V100-SXM2-16GB has compute capability 7.0; nibble needs 7.5 (Turing) or newer");
  gpu.minor = 5;
  EXPECT_TRUE(check_supported(gpu));
}

TEST(gpu, capabilities_compare_by_major_then_minor) {
  Gpu gpu = gpu_h200();  // 9.0
  EXPECT_TRUE(gpu.at_least(8, 9));
  EXPECT_TRUE(gpu.at_least(9, 0));
  EXPECT_FALSE(gpu.at_least(9, 1));
  EXPECT_FALSE(gpu.at_least(10, 0));
}

TEST(memory, on_a_cpu_is_the_hosts) {
  Stream stream(1);
  const float values[] = {1, 2, 3};
  auto floats = Floats::place(stream, values);
  ASSERT_TRUE(floats);
  EXPECT_EQ(floats->size(), 3u);
  EXPECT_EQ(floats->data()[2], 3.0f);
  float back[3] = {};
  ASSERT_TRUE(copy_to_host(stream, back, floats->data(), sizeof back));
  EXPECT_EQ(back[1], 2.0f);
  auto none = Floats::place(stream, {});
  ASSERT_TRUE(none);
  EXPECT_TRUE(none->empty());
  EXPECT_EQ(none->data(), nullptr);
}

TEST(cuda, bytes_come_back_from_a_card) {
  auto cuda = Cuda::open(0);
  if (!cuda) GTEST_SKIP() << cuda.error().message;
  Stream stream(1, *cuda);
  const float values[] = {1, 2, 3};
  auto floats = Floats::place(stream, values);
  ASSERT_TRUE(floats) << floats.error().message;
  float back[3] = {};
  ASSERT_TRUE(copy_to_host(stream, back, floats->data(), sizeof back));
  EXPECT_EQ(back[2], 3.0f);
}

TEST(cuda, more_memory_than_the_card_has_is_an_error) {
  auto cuda = Cuda::open(0);
  if (!cuda) GTEST_SKIP() << cuda.error().message;
  Stream stream(1, *cuda);
  const auto bytes = static_cast<size_t>((*cuda)->gpu().memory_bytes) * 2;
  auto memory = Memory::allocate(stream, bytes);
  ASSERT_FALSE(memory);
  EXPECT_EQ(memory.error().code, ErrorCode::kOutOfMemory);
  EXPECT_TRUE(Memory::allocate(stream, 1024));  // and nothing is broken by it
}

TEST(cuda, a_card_that_is_not_there_is_named) {
  auto cards = cuda_cards();
  if (!cards) GTEST_SKIP() << cards.error().message;
  auto cuda = Cuda::open(1000);
  ASSERT_FALSE(cuda);
  EXPECT_NE(cuda.error().message.find(cards->empty() ? "no NVIDIA card" : "no card 1000"),
            std::string::npos)
      << cuda.error().message;
}

}  // namespace
}  // namespace nibble::device
