#include "device/recording.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace nibble::device {

Result<SharedMemory> SharedMemory::allocate(Stream& stream, size_t bytes) {
  SharedMemory out;
  if (stream.cuda() == nullptr) return out;
  out.cuda_ = stream.shared_cuda();
  out.size_ = bytes;
  out.data_ = static_cast<std::byte*>(out.cuda_->allocate_host(&out.size_));
  if (out.data_ == nullptr) {
    return fail(ErrorCode::kOutOfMemory,
                fmt::format("the host has no {} MiB of memory left that a card can read",
                            (bytes >> 20) + 1));
  }
  return out;
}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) cuda_->release_host(data_, size_);
}

Result<void> Staging::begin(Stream& stream, size_t bytes) {
  used_ = 0;
  Cuda* cuda = stream.cuda();
  if (cuda == nullptr) return {};
  if (marked_) {
    cuda->device().wait_for_mark(cuda->context());
  } else {  // memory ran out between the two: the copy may still be under way
    cuda->device().wait(cuda->context());
  }
  if (host_.size() >= bytes) return {};
  // Both or none: one of them may not be had.
  NIBBLE_ASSIGN(SharedMemory host, SharedMemory::allocate(stream, bytes));
  NIBBLE_ASSIGN(Memory placed, Memory::allocate(stream, host.size()));
  host_ = std::move(host);
  placed_ = std::move(placed);
  return {};
}

const void* Staging::put_bytes(const void* from, size_t bytes) {
  if (host_.size() == 0) return from;
  NIBBLE_CHECK(used_ + bytes <= host_.size());
  if (bytes != 0) std::memcpy(host_.data() + used_, from, bytes);
  const std::byte* out = placed_.data() + used_;
  used_ = std::min(host_.size(), (used_ + bytes + kAlign - 1) / kAlign * kAlign);
  return out;
}

void Staging::send(Stream& stream) {
  Cuda* cuda = stream.cuda();
  if (cuda == nullptr) return;
  marked_ = false;
  cuda->device().upload(cuda->context(), placed_.data(), host_.data(), used_);
}

void Staging::sent(Stream& stream) {
  Cuda* cuda = stream.cuda();
  if (cuda == nullptr) return;
  cuda->device().mark(cuda->context());
  marked_ = true;
}

void Recording::give_up(Stream& stream) {
  keep(stream);
  forget();
  useless_ = false;
}

void Recording::keep(Stream& stream) {
  cuda_ = stream.shared_cuda();
  graph_ = cuda_->device().end_recording(cuda_->context());
  useless_ = graph_ == nullptr;
}

void Recording::forget() {
  if (graph_ != nullptr) cuda_->device().release_graph(cuda_->context(), graph_);
  graph_ = nullptr;
}

void Recording::swap(Recording& other) noexcept {
  std::swap(cuda_, other.cuda_);
  std::swap(graph_, other.graph_);
  std::swap(generation_, other.generation_);
  std::swap(useless_, other.useless_);
}

}  // namespace nibble::device
