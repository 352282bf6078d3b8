// Where kernels run: on a CPU, a thread pool and scratch memory that lives as long as the stream;
// on a card, the card and its own stream. Then the threads serve what the host does (packing).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "device/thread_pool.h"
#include "tensor/tensor.h"

namespace nibble::device {

class Cuda;

class Stream {
 public:
  explicit Stream(int threads, std::shared_ptr<Cuda> cuda = nullptr)
      : pool_(threads), cuda_(std::move(cuda)) {}

  ThreadPool& pool() { return pool_; }
  int threads() const { return pool_.size(); }

  Cuda* cuda() { return cuda_.get(); }  // null: kernels run on the pool
  const std::shared_ptr<Cuda>& shared_cuda() const { return cuda_; }

  // Host scratch of at least `bytes`, 64-byte aligned, uninitialised. `slot` keeps independent uses
  // apart (a kernel's packed activations, a worker's panel); a slot's memory is valid until the
  // next scratch() of that slot. Growing fails only when the system is out of memory, and then
  // ends in std::bad_alloc, which api/ turns into an Error.
  std::byte* scratch(int slot, size_t bytes);
  template <class T>
  T* scratch_of(int slot, int64_t count) {
    return reinterpret_cast<T*>(scratch(slot, static_cast<size_t>(count) * sizeof(T)));
  }

  static constexpr int kSlots = 16;

 private:
  ThreadPool pool_;
  std::shared_ptr<Cuda> cuda_;
  tensor::Buffer scratch_[kSlots];
};

}  // namespace nibble::device
