#include "device/recording.h"

#include <gtest/gtest.h>

#include <vector>

namespace nibble::device {
namespace {

TEST(recording, on_a_cpu_the_body_runs_each_time) {
  Stream stream(1);
  Recording recording;
  int runs = 0;
  for (int i = 0; i < 3; ++i) recording.run(stream, [&] { ++runs; });
  EXPECT_EQ(runs, 3);
}

TEST(staging, on_a_cpu_values_stay_where_they_are) {
  Stream stream(1);
  Staging staging;
  const std::vector<int32_t> values = {1, 2, 3};
  ASSERT_TRUE(staging.begin(stream, 1024));
  EXPECT_EQ(staging.put(std::span<const int32_t>(values)), values.data());
  staging.send(stream);
  staging.sent(stream);
}

TEST(recording, what_was_recorded_is_done_again_with_new_numbers) {
  auto cuda = Cuda::open(0);
  if (!cuda) GTEST_SKIP() << cuda.error().message;
  Stream stream(1, *cuda);
  Staging staging;
  Recording recording;
  int runs = 0;
  for (int32_t i = 0; i < 5; ++i) {
    ASSERT_TRUE(staging.begin(stream, 64));
    const int32_t* placed = staging.put(std::span<const int32_t>(&i, 1));
    recording.run(stream, [&] {
      ++runs;
      staging.send(stream);
    });
    staging.sent(stream);
    int32_t got = -1;
    ASSERT_TRUE(copy_to_host(stream, &got, placed, sizeof got));
    EXPECT_EQ(got, i);
  }
  EXPECT_EQ(runs, 2);  // once as it is, once to be recorded
}

}  // namespace
}  // namespace nibble::device
