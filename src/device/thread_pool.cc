#include "device/thread_pool.h"

#include <fmt/format.h>
#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "base/check.h"
#include "device/limits.h"
#include "device/threads_ran_out.h"

namespace nibble::device {
namespace {

using Clock = std::chrono::steady_clock;

// A wake-up through the kernel costs some 5 us here and 50 us there; the pauses between the loops
// of one token are shorter than this.
constexpr std::chrono::microseconds kSpin{60};

// Spins until done() or until the time is over; says whether done().
template <class Done>
bool spin_until(std::chrono::microseconds limit, const Done& done) {
  if (done()) return true;
  if (limit.count() == 0) return false;
  const auto end = Clock::now() + limit;
  do {
    for (int i = 0; i < 32; ++i) {
      _mm_pause();
      if (done()) return true;
    }
  } while (Clock::now() < end);
  return false;
}

}  // namespace

// One loop at a time is published as a ticket:
//
//   bits 63..32  number of the loop        bits 31..0  chunks not yet claimed
//
// A claim is a compare-and-swap that takes one chunk off. Nobody waits for workers to arrive, only
// for chunks to be done: a worker that wakes late finds no chunk left, or helps with a later loop.
// Such a worker may read `count`, `chunk` and `body` while the caller writes the next loop's; what
// it read is used only after its claim succeeded, and a claim succeeds only on the very ticket that
// was loaded before the fields were read. Since that loop then has an unfinished chunk, the fields
// cannot have changed in between.
struct ThreadPool::Impl {
  alignas(128) std::atomic<uint64_t> ticket{0};
  std::atomic<int64_t> count{0};
  std::atomic<int64_t> chunk{0};
  std::atomic<int64_t> chunks{0};
  std::atomic<const LoopBody*> body{nullptr};

  alignas(128) std::atomic<int64_t> done{0};  // chunks finished

  alignas(128) std::atomic<int> sleepers{0};
  std::atomic<bool> caller_sleeps{false};
  std::atomic<bool> stop{false};
  std::mutex mutex;
  std::condition_variable work_came;
  std::condition_variable work_done;

  std::chrono::microseconds spin{0};
  std::vector<std::thread> threads;

  static uint64_t loop_of(uint64_t t) { return t >> 32; }
  static int64_t unclaimed(uint64_t t) { return static_cast<int64_t>(t & 0xffffffffu); }

  void run_chunks(int worker);
  void work(int worker);
  bool wait_for_loop_after(uint64_t seen);
  void wait_until_done(int64_t total);
  void wake(int64_t chunks_to_share);
  void end();
};

void ThreadPool::Impl::end() {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    stop.store(true, std::memory_order_seq_cst);
  }
  work_came.notify_all();
  for (auto& thread : threads) thread.join();
}

void ThreadPool::Impl::run_chunks(int worker) {
  int64_t finished = 0;
  uint64_t t = ticket.load(std::memory_order_acquire);
  while (unclaimed(t) > 0) {
    const int64_t n = count.load(std::memory_order_relaxed);
    const int64_t step = chunk.load(std::memory_order_relaxed);
    const int64_t total = chunks.load(std::memory_order_relaxed);
    const LoopBody* f = body.load(std::memory_order_relaxed);
    if (!ticket.compare_exchange_weak(t, t - 1, std::memory_order_acq_rel,
                                      std::memory_order_acquire)) {
      continue;
    }
    const int64_t begin = (total - unclaimed(t)) * step;
    (*f)(begin, std::min(begin + step, n), worker);
    ++finished;
    t = ticket.load(std::memory_order_acquire);
  }
  if (finished == 0) return;
  // Read before adding: afterwards the loop may be over and `chunks` be the next one's.
  const int64_t total = chunks.load(std::memory_order_relaxed);
  if (done.fetch_add(finished, std::memory_order_seq_cst) + finished != total) return;
  if (worker != 0 && caller_sleeps.load(std::memory_order_seq_cst)) {
    const std::lock_guard<std::mutex> lock(mutex);
    work_done.notify_one();
  }
}

// False: the pool is closing.
bool ThreadPool::Impl::wait_for_loop_after(uint64_t seen) {
  const auto came = [&] {
    return loop_of(ticket.load(std::memory_order_seq_cst)) != seen ||
           stop.load(std::memory_order_seq_cst);
  };
  if (!spin_until(spin, came)) {
    std::unique_lock<std::mutex> lock(mutex);
    // The caller stores the ticket, then reads `sleepers`; here it is the other way round, so one
    // of the two sees the other.
    sleepers.fetch_add(1, std::memory_order_seq_cst);
    work_came.wait(lock, came);
    sleepers.fetch_sub(1, std::memory_order_seq_cst);
  }
  return !stop.load(std::memory_order_seq_cst);
}

void ThreadPool::Impl::work(int worker) {
  uint64_t seen = 0;
  while (wait_for_loop_after(seen)) {
    seen = loop_of(ticket.load(std::memory_order_acquire));
    run_chunks(worker);
  }
}

void ThreadPool::Impl::wait_until_done(int64_t total) {
  const auto over = [&] { return done.load(std::memory_order_seq_cst) == total; };
  if (spin_until(spin, over)) return;
  std::unique_lock<std::mutex> lock(mutex);
  caller_sleeps.store(true, std::memory_order_seq_cst);
  work_done.wait(lock, over);
  caller_sleeps.store(false, std::memory_order_seq_cst);
}

void ThreadPool::Impl::wake(int64_t chunks_to_share) {
  const int asleep = sleepers.load(std::memory_order_seq_cst);
  if (asleep == 0) return;
  { const std::lock_guard<std::mutex> lock(mutex); }  // a sleeper is past its check, or waits
  if (chunks_to_share >= asleep) {
    work_came.notify_all();
  } else {
    for (int64_t i = 0; i < chunks_to_share; ++i) work_came.notify_one();
  }
}

ThreadPool::ThreadPool(int threads) : impl_(std::make_unique<Impl>()) {
  NIBBLE_CHECK(threads >= 1);
  // More threads than CPUs: whoever spins takes the CPU from the one it waits for.
  const bool crowded = threads > static_cast<int>(allowed_cpus().size());
  impl_->spin = crowded ? std::chrono::microseconds(0) : kSpin;
  impl_->threads.reserve(static_cast<size_t>(threads - 1));
  try {
    for (int i = 1; i < threads; ++i) {
      impl_->threads.emplace_back([impl = impl_.get(), i] { impl->work(i); });
    }
  } catch (const std::system_error& error) {
    const std::string text =
        fmt::format("--threads {}: the system started {} of them and no more: {}; fewer may do",
                    threads, size(), error.code().message());
    impl_->end();
    throw ThreadsRanOut(text);
  }
}

ThreadPool::~ThreadPool() { impl_->end(); }

int ThreadPool::size() const { return static_cast<int>(impl_->threads.size()) + 1; }

void ThreadPool::parallel_for(int64_t count, int64_t chunk, LoopBody body) {
  NIBBLE_CHECK(count >= 0 && chunk >= 1);
  const int64_t total = count / chunk + (count % chunk != 0 ? 1 : 0);
  if (total <= 1 || impl_->threads.empty()) {
    for (int64_t begin = 0; begin < count; begin += chunk) {
      body(begin, std::min(begin + chunk, count), 0);
    }
    return;
  }
  NIBBLE_CHECK(total <= INT64_C(0xffffffff));
  Impl& impl = *impl_;
  impl.count.store(count, std::memory_order_relaxed);
  impl.chunk.store(chunk, std::memory_order_relaxed);
  impl.chunks.store(total, std::memory_order_relaxed);
  impl.body.store(&body, std::memory_order_relaxed);
  impl.done.store(0, std::memory_order_relaxed);
  const uint64_t number = Impl::loop_of(impl.ticket.load(std::memory_order_relaxed)) + 1;
  impl.ticket.store((number << 32) | static_cast<uint64_t>(total), std::memory_order_seq_cst);
  impl.wake(total - 1);
  impl.run_chunks(0);
  impl.wait_until_done(total);
}

}  // namespace nibble::device
