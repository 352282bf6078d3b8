// Threads that work on one loop at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace nibble::device {

// A non-owning reference to a callable void(int64_t begin, int64_t end, int worker), so that a
// parallel loop allocates nothing.
class LoopBody {
 public:
  template <class F>
  LoopBody(const F& f)  // NOLINT: implicit on purpose
      : object_(&f), call_([](const void* object, int64_t begin, int64_t end, int worker) {
          (*static_cast<const F*>(object))(begin, end, worker);
        }) {}
  void operator()(int64_t begin, int64_t end, int worker) const {
    call_(object_, begin, end, worker);
  }

 private:
  const void* object_;
  void (*call_)(const void*, int64_t, int64_t, int);
};

// A fixed set of workers (the caller is worker 0). A loop is cut into chunks that workers claim one
// by one, so a worker whose core was taken away delays the end by one chunk, not by its share.
// Waiting spins for some microseconds, then sleeps. Chunk borders depend on the arguments only,
// never on the number of threads.
class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // at least 1
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const;

  // Calls body over [0, count) in chunks of `chunk` (the last may be short); returns when all are
  // done. One chunk, or one thread, runs on the caller alone. Not reentrant: a body must not call
  // parallel_for, and only one thread at a time may.
  void parallel_for(int64_t count, int64_t chunk, LoopBody body);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace nibble::device
