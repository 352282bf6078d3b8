#include "tensor/tensor.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cstdlib>
#include <utility>

namespace nibble::tensor {

std::string to_string(const Shape& shape) { return fmt::format("({})", fmt::join(shape, ", ")); }

std::optional<int64_t> element_count(const Shape& shape) {
  int64_t count = 1;
  for (int64_t dim : shape) {
    if (dim < 0 || __builtin_mul_overflow(count, dim, &count)) return std::nullopt;
  }
  return count;
}

std::optional<uint64_t> byte_count(DType dtype, const Shape& shape) {
  const DTypeInfo& type = info(dtype);
  const std::optional<int64_t> count = element_count(shape);
  if (!count) return std::nullopt;
  const int64_t row = shape.empty() ? 1 : shape.back();
  if (row % type.block_elements != 0) return std::nullopt;
  int64_t bytes;
  if (__builtin_mul_overflow(*count / type.block_elements, type.block_bytes, &bytes)) {
    return std::nullopt;
  }
  return static_cast<uint64_t>(bytes);
}

namespace {
constexpr size_t kAlignment = 64;
constexpr size_t kHugePage = size_t{2} << 20;
}  // namespace

Result<Buffer> Buffer::allocate(size_t bytes) {
  Buffer out;
  out.size_ = bytes;
  if (bytes == 0) return out;
  if (bytes >= 2 * kHugePage) {
    // Map one page too many so that the start can be moved to a huge-page border.
    const size_t mapped = bytes + kHugePage;
    if (mapped < bytes) {
      return fail(ErrorCode::kOutOfMemory, fmt::format("cannot allocate {} bytes", bytes));
    }
    void* raw = mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED) {
      return fail(ErrorCode::kOutOfMemory, fmt::format("cannot allocate {} bytes", bytes));
    }
    auto start = reinterpret_cast<uintptr_t>(raw);
    const size_t skip = (kHugePage - start % kHugePage) % kHugePage;
    if (skip != 0) munmap(raw, skip);
    out.data_ = static_cast<std::byte*>(raw) + skip;
    out.mapped_ = mapped - skip;
    madvise(out.data_, out.mapped_, MADV_HUGEPAGE);  // a wish; small pages work too
    return out;
  }
  void* raw = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  if (raw == nullptr) {
    return fail(ErrorCode::kOutOfMemory, fmt::format("cannot allocate {} bytes", bytes));
  }
  out.data_ = static_cast<std::byte*>(raw);
  return out;
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      mapped_(std::exchange(other.mapped_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(mapped_, other.mapped_);
  return *this;
}

Buffer::~Buffer() {
  if (mapped_ != 0) {
    munmap(data_, mapped_);
  } else {
    std::free(data_);
  }
}

}  // namespace nibble::tensor
