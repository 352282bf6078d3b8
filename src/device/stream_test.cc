#include "device/stream.h"

#include <gtest/gtest.h>

#include <cstring>

namespace nibble::device {
namespace {

TEST(stream, scratch_is_aligned_and_kept_until_it_must_grow) {
  Stream stream(1);
  std::byte* a = stream.scratch(0, 100);
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a) % 64, 0u);
  EXPECT_EQ(stream.scratch(0, 50), a);
  EXPECT_EQ(stream.scratch(0, 100), a);
  std::byte* grown = stream.scratch(0, 1 << 20);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(grown) % 64, 0u);
  std::memset(grown, 1, 1 << 20);
  EXPECT_EQ(stream.scratch(0, 10), grown);
}

TEST(stream, slots_do_not_overlap) {
  Stream stream(1);
  int32_t* a = stream.scratch_of<int32_t>(1, 1000);
  int32_t* b = stream.scratch_of<int32_t>(2, 1000);
  std::memset(a, 1, 4000);
  std::memset(b, 2, 4000);
  EXPECT_EQ(a[999], 0x01010101);
  EXPECT_EQ(b[0], 0x02020202);
}

TEST(stream, nothing_asked_still_gives_an_address) {
  Stream stream(2);
  EXPECT_EQ(stream.threads(), 2);
  EXPECT_NE(stream.scratch(Stream::kSlots - 1, 0), nullptr);
}

}  // namespace
}  // namespace nibble::device
