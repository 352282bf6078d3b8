#include "device/cuda.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <vector>

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

TEST(gpu, allocations_above_a_mebibyte_take_pieces_of_two) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  EXPECT_EQ(card_bytes(1), 1);
  EXPECT_EQ(card_bytes(kMiB), kMiB);
  EXPECT_EQ(card_bytes(kMiB + 1), 2 * kMiB);
  EXPECT_EQ(card_bytes(5 * kMiB), 6 * kMiB);
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

// Longer than all staging buffers together, and changed as soon as it was taken.
TEST(cuda, long_copies_arrive_whole) {
  auto cuda = Cuda::open(0);
  if (!cuda) GTEST_SKIP() << cuda.error().message;
  Stream stream(2, *cuda);
  std::vector<uint32_t> values(4 * kNibbleStageBytes / sizeof(uint32_t) + 321);
  const auto value = [](size_t i) { return static_cast<uint32_t>(i * 2654435761u); };
  for (size_t i = 0; i < values.size(); ++i) values[i] = value(i);
  const size_t bytes = values.size() * sizeof(uint32_t);
  auto memory = Memory::copy_of(stream, values.data(), bytes);
  ASSERT_TRUE(memory) << memory.error().message;
  std::fill(values.begin(), values.end(), 0);
  ASSERT_TRUE(copy_to_host(stream, values.data(), memory->data(), bytes));
  for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], value(i)) << i;
}

// Bytes that `count` allocations take of the card, by what it has left. Their own opening, as
// memory that is given back to one is kept.
int64_t taken_by(int64_t count, int64_t bytes) {
  auto cuda = Cuda::open(0);
  EXPECT_TRUE(cuda);
  if (!cuda) return -1;
  Stream stream(1, *cuda);
  Gpu gpu = (*cuda)->gpu();
  EXPECT_TRUE(ask_free_memory(0, gpu));
  const int64_t before = gpu.free_bytes;
  std::vector<Memory> held;
  for (int64_t i = 0; i < count; ++i) {
    auto memory = Memory::allocate(stream, static_cast<size_t>(bytes));
    EXPECT_TRUE(memory);
    if (!memory) return -1;
    held.push_back(std::move(*memory));
  }
  EXPECT_TRUE(ask_free_memory(0, gpu));
  return before - gpu.free_bytes;
}

TEST(cuda, allocations_take_no_more_than_card_bytes_says) {
  if (auto cuda = Cuda::open(0); !cuda) GTEST_SKIP() << cuda.error().message;
  constexpr int64_t kMany = 64;
  for (const int64_t bytes : {int64_t{1} << 20, (int64_t{5} << 20) / 4, int64_t{5} << 20}) {
    const int64_t most = kMany * card_bytes(bytes) + (int64_t{4} << 20);
    // Other programs on the card may take or free memory meanwhile: once is enough.
    bool seen = false;
    for (int i = 0; i < 20 && !seen; ++i) {
      const int64_t taken = taken_by(kMany, bytes);
      std::printf("%lld bytes take %lld\n", static_cast<long long>(bytes),
                  static_cast<long long>(taken / kMany));
      seen = taken >= kMany * bytes && taken <= most;
    }
    EXPECT_TRUE(seen) << bytes;
  }
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
