#include "device/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

namespace nibble::device {
namespace {

TEST(thread_pool, every_index_is_visited_once) {
  for (int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    ASSERT_EQ(pool.size(), threads);
    for (int64_t count : {0, 1, 2, 7, 64, 1000}) {
      for (int64_t chunk : {1, 3, 64, 5000}) {
        std::vector<std::atomic<int>> visits(static_cast<size_t>(count));
        pool.parallel_for(count, chunk, [&](int64_t begin, int64_t end, int worker) {
          EXPECT_GE(worker, 0);
          EXPECT_LT(worker, threads);
          for (int64_t i = begin; i < end; ++i) visits[static_cast<size_t>(i)].fetch_add(1);
        });
        for (const auto& v : visits) ASSERT_EQ(v.load(), 1);
      }
    }
  }
}

TEST(thread_pool, chunk_borders_do_not_depend_on_the_number_of_threads) {
  const auto borders = [](int threads, int64_t count, int64_t chunk) {
    ThreadPool pool(threads);
    std::mutex mutex;
    std::set<std::pair<int64_t, int64_t>> seen;
    pool.parallel_for(count, chunk, [&](int64_t begin, int64_t end, int) {
      const std::lock_guard<std::mutex> lock(mutex);
      seen.emplace(begin, end);
    });
    return seen;
  };
  for (int64_t count : {1, 10, 97}) {
    for (int64_t chunk : {1, 4, 10, 100}) {
      const auto alone = borders(1, count, chunk);
      EXPECT_EQ(static_cast<int64_t>(alone.size()), (count + chunk - 1) / chunk);
      EXPECT_EQ(borders(2, count, chunk), alone);
      EXPECT_EQ(borders(5, count, chunk), alone);
    }
  }
}

TEST(thread_pool, one_chunk_runs_on_the_caller) {
  ThreadPool pool(4);
  const auto caller = std::this_thread::get_id();
  for (int i = 0; i < 100; ++i) {
    pool.parallel_for(5, 5, [&](int64_t, int64_t, int worker) {
      EXPECT_EQ(worker, 0);
      EXPECT_EQ(std::this_thread::get_id(), caller);
    });
  }
}

TEST(thread_pool, what_a_body_wrote_is_visible_after_the_loop_and_in_the_next) {
  ThreadPool pool(3);
  std::vector<int64_t> values(300, 0);  // plain memory: TSan watches the happens-before edges
  for (int64_t round = 1; round <= 2000; ++round) {
    pool.parallel_for(300, 7, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        // Read what another worker wrote in the loop before.
        values[static_cast<size_t>(i)] += 1;
      }
    });
    ASSERT_EQ(values[static_cast<size_t>(round % 300)], round);
  }
}

// Loops of every length with and without pauses around the spinning time, so that workers are
// caught awake, falling asleep and asleep, with more threads than cores.
TEST(thread_pool, no_chunk_is_lost_under_stress) {
  for (int threads : {2, 4, 16}) {
    ThreadPool pool(threads);
    uint64_t seed = 12345;
    int64_t expected = 0;
    std::atomic<int64_t> sum{0};
    for (int round = 0; round < 3000; ++round) {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      const int64_t count = 1 + static_cast<int64_t>((seed >> 33) % 40);
      const int64_t chunk = 1 + static_cast<int64_t>((seed >> 50) % 3);
      pool.parallel_for(count, chunk, [&](int64_t begin, int64_t end, int) {
        int64_t local = 0;
        for (int64_t i = begin; i < end; ++i) local += i;
        sum.fetch_add(local, std::memory_order_relaxed);
      });
      expected += count * (count - 1) / 2;
      ASSERT_EQ(sum.load(), expected) << "round " << round << ", threads " << threads;
      if (round % 50 == 0) {
        std::this_thread::sleep_for(std::chrono::microseconds((seed >> 40) % 200));
      }
    }
  }
}

TEST(thread_pool, a_worker_that_is_held_up_does_not_hold_up_the_other_chunks) {
  ThreadPool pool(2);
  std::atomic<int> others{0};
  std::atomic<bool> held{false};
  // Whoever takes the first chunk keeps it until all others are done: this ends only if the other
  // thread takes them all.
  pool.parallel_for(50, 1, [&](int64_t begin, int64_t, int) {
    if (begin == 0) {
      held = true;
      while (others.load() != 49) std::this_thread::yield();
    } else {
      others.fetch_add(1);
    }
  });
  EXPECT_TRUE(held.load());
}

TEST(thread_pool, a_pool_that_never_worked_closes) {
  for (int i = 0; i < 50; ++i) ThreadPool pool(1 + i % 5);
}

}  // namespace
}  // namespace nibble::device
