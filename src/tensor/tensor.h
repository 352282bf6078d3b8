// Names, views and owners of tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "nibble/result.h"
#include "tensor/dtype.h"

namespace nibble::tensor {

// Dimensions, slowest first (row-major): a linear weight is {N, K}. A scalar is {}.
using Shape = std::vector<int64_t>;

std::string to_string(const Shape& shape);  // "(576, 1536)"

// The number of elements; nothing when a dimension is negative or the product overflows int64.
std::optional<int64_t> element_count(const Shape& shape);

// The bytes that `shape` takes as `dtype`; nothing on overflow or when the last dimension does not
// divide into the type's blocks.
std::optional<uint64_t> byte_count(DType dtype, const Shape& shape);

// What a header says about a stored tensor. No bytes.
struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;          // as the Hugging Face tools see it: rows first, also for GGUF
  uint64_t bytes = 0;   // in the file
  uint64_t offset = 0;  // in the file
  uint32_t file = 0;    // which file of the checkpoint
};

// Bytes that somebody else owns.
struct TensorView {
  DType dtype = DType::kF32;
  Shape shape;
  const std::byte* data = nullptr;  // may be unaligned
  uint64_t bytes = 0;
};

// Owned bytes, 64-byte aligned; large ones on 2 MB pages where the system gives them. Not zeroed.
class Buffer {
 public:
  Buffer() = default;
  static Result<Buffer> allocate(size_t bytes);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  template <class T>
  std::span<T> as() {
    return {reinterpret_cast<T*>(data_), size_ / sizeof(T)};
  }
  template <class T>
  std::span<const T> as() const {
    return {reinterpret_cast<const T*>(data_), size_ / sizeof(T)};
  }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  size_t mapped_ = 0;  // bytes of the mapping; 0 when the memory is from the heap
};

}  // namespace nibble::tensor
