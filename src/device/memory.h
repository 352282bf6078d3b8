// Bytes where a stream's kernels run: the host's for a CPU, the card's for a GPU. What is not the
// host's must not be looked into; copies are asked of the stream.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "device/stream.h"
#include "nibble/result.h"
#include "tensor/tensor.h"

namespace nibble::device {

class Memory {
 public:
  Memory() = default;
  // Not zeroed. The error names whose memory ran out.
  static Result<Memory> allocate(Stream& stream, size_t bytes);
  // With a copy of host bytes, which may be changed when it returns. To a card the copy may still
  // be under way; what the stream does later comes after it.
  static Result<Memory> copy_of(Stream& stream, const void* from, size_t bytes);
  Memory(Memory&& other) noexcept;
  Memory& operator=(Memory&& other) noexcept;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory();

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  void release();

  tensor::Buffer host_;
  std::shared_ptr<Cuda> cuda_;  // of a card's memory
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// A vector of float32 where kernels read it.
class Floats {
 public:
  Floats() = default;
  static Result<Floats> place(Stream& stream, std::span<const float> values);

  const float* data() const { return reinterpret_cast<const float*>(memory_.data()); }
  size_t size() const { return memory_.size() / sizeof(float); }
  bool empty() const { return memory_.size() == 0; }

 private:
  Memory memory_;
};

// Host copies of what a stream's kernels wrote; waits for them. The error is whatever went wrong on
// the card until then; a CPU has none.
Result<void> copy_to_host(Stream& stream, void* to, const void* from, size_t bytes);

}  // namespace nibble::device
