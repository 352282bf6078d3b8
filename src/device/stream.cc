#include "device/stream.h"

#include <algorithm>
#include <new>

#include "base/check.h"

namespace nibble::device {

std::byte* Stream::scratch(int slot, size_t bytes) {
  NIBBLE_CHECK(slot >= 0 && slot < kSlots);
  tensor::Buffer& buffer = scratch_[slot];
  if (buffer.size() < bytes || buffer.data() == nullptr) {
    // Grown by half at least, so that a context growing token by token does not reallocate each.
    const size_t wanted = std::max({bytes, buffer.size() + buffer.size() / 2, size_t{64}});
    buffer = tensor::Buffer();  // the old one goes first: both at once would be the peak
    auto grown = tensor::Buffer::allocate(wanted);
    if (!grown) throw std::bad_alloc();
    buffer = std::move(*grown);
  }
  return buffer.data();
}

}  // namespace nibble::device
