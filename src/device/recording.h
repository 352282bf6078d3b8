// What makes a step of a card cheap for the host: what the host knows goes over with one copy
// (Staging), and the kernels are recorded once and then started as a whole (Recording). On a CPU
// both do nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "device/cuda.h"
#include "device/memory.h"
#include "device/stream.h"
#include "nibble/result.h"

namespace nibble::device {

// Host memory that a card reads and writes at its own time. Empty on a CPU.
class SharedMemory {
 public:
  SharedMemory() = default;
  // At least `bytes`.
  static Result<SharedMemory> allocate(Stream& stream, size_t bytes);
  SharedMemory(SharedMemory&& other) noexcept
      : cuda_(std::move(other.cuda_)),
        data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)) {}
  SharedMemory& operator=(SharedMemory&& other) noexcept {
    std::swap(cuda_, other.cuda_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~SharedMemory();

  std::byte* data() { return data_; }
  size_t size() const { return size_; }

 private:
  std::shared_ptr<Cuda> cuda_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

class Staging {
 public:
  // Room for `bytes` of what put() is given, rounded up to kAlign each; forgets what was put
  // before, once the card has read it.
  Result<void> begin(Stream& stream, size_t bytes);
  // Where kernels will find a copy of the values; on a CPU, the values themselves.
  template <class T>
  const T* put(std::span<const T> values) {
    return reinterpret_cast<const T*>(put_bytes(values.data(), values.size_bytes()));
  }
  // The copy, in the stream's order; may be recorded. Once the kernels that read it were put into
  // the stream, or their recording was replayed, `sent` is to be called.
  void send(Stream& stream);
  void sent(Stream& stream);

  static constexpr size_t kAlign = 64;

 private:
  const void* put_bytes(const void* from, size_t bytes);

  SharedMemory host_;
  Memory placed_;
  size_t used_ = 0;
  bool marked_ = true;  // false: what was sent last ended without sent()
};

// Recorded kernels read and write where they did when they were recorded: numbers that change from
// step to step must come to them by memory. A recording is made anew after memory of the card was
// taken or given back.
class Recording {
 public:
  Recording() = default;
  Recording(Recording&& other) noexcept { swap(other); }
  Recording& operator=(Recording&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Recording() { forget(); }

  // body() puts kernels into the stream; it is called, or what it did the last time is done again.
  // It must do the same each time and have no other effects that matter.
  template <class Body>
  void run(Stream& stream, const Body& body) {
    Cuda* cuda = stream.cuda();
    if (cuda == nullptr || !cuda->records() || useless_) return body();
    if (graph_ == nullptr || generation_ != cuda->generation()) {
      const bool known = generation_ == cuda->generation();
      forget();
      if (!known) {  // the first time memory may be taken, which cannot be recorded
        body();
        generation_ = cuda->generation();
        return;
      }
      cuda->device().begin_recording(cuda->context());
      try {
        body();
      } catch (...) {  // memory ran out; the stream must not stay in recording
        give_up(stream);
        throw;
      }
      keep(stream);
      if (useless_) return body();
    }
    cuda->device().replay(cuda->context(), graph_);
  }

 private:
  void keep(Stream& stream);
  void give_up(Stream& stream);
  void forget();
  void swap(Recording& other) noexcept;

  std::shared_ptr<Cuda> cuda_;
  void* graph_ = nullptr;
  uint64_t generation_ = UINT64_MAX;  // of the last run
  bool useless_ = false;              // this cannot be recorded
};

}  // namespace nibble::device
