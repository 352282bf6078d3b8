#include "device/memory.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "device/cuda.h"

namespace nibble::device {

Result<Memory> Memory::allocate(Stream& stream, size_t bytes) {
  Memory out;
  out.size_ = bytes;
  if (stream.cuda() == nullptr) {
    NIBBLE_ASSIGN(out.host_, tensor::Buffer::allocate(bytes));
    out.data_ = out.host_.data();
    return out;
  }
  out.cuda_ = stream.shared_cuda();
  out.data_ = static_cast<std::byte*>(out.cuda_->allocate(bytes));
  if (out.data_ == nullptr) {
    return fail(ErrorCode::kOutOfMemory,
                fmt::format("the memory of the card ran out: {} MiB more do not fit on {}; other "
                            "programs may hold some of it",
                            (bytes >> 20) + 1, out.cuda_->gpu().name));
  }
  return out;
}

Result<Memory> Memory::copy_of(Stream& stream, const void* from, size_t bytes) {
  NIBBLE_ASSIGN(Memory out, allocate(stream, bytes));
  if (bytes == 0) return out;
  if (out.cuda_ != nullptr) {
    constexpr size_t kWorthStaging = size_t{256} << 10;
    if (bytes < kWorthStaging) {
      out.cuda_->to_device(out.data_, from, bytes);
    } else {
      out.cuda_->upload(stream.pool(), out.data_, from, bytes);
    }
  } else {
    std::memcpy(out.data_, from, bytes);
  }
  return out;
}

Memory::Memory(Memory&& other) noexcept
    : host_(std::move(other.host_)),
      cuda_(std::move(other.cuda_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

Memory& Memory::operator=(Memory&& other) noexcept {
  if (this == &other) return *this;
  release();
  host_ = std::move(other.host_);
  cuda_ = std::move(other.cuda_);
  data_ = std::exchange(other.data_, nullptr);
  size_ = std::exchange(other.size_, 0);
  return *this;
}

Memory::~Memory() { release(); }

void Memory::release() {
  if (cuda_ != nullptr && data_ != nullptr) cuda_->release(data_, size_);
}

Result<Floats> Floats::place(Stream& stream, std::span<const float> values) {
  Floats out;
  if (values.empty()) return out;
  NIBBLE_ASSIGN(out.memory_, Memory::copy_of(stream, values.data(), values.size_bytes()));
  return out;
}

Result<void> copy_to_host(Stream& stream, void* to, const void* from, size_t bytes) {
  if (stream.cuda() != nullptr) return stream.cuda()->to_host(to, from, bytes);
  std::memcpy(to, from, bytes);
  return {};
}

}  // namespace nibble::device
