#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/json.h"
#include "checkpoint/torch_file.h"

using nibble::checkpoint::TorchHeader;

// The bytes are a whole file. Nothing beyond its end is read, what is accepted lies inside, and
// what is said of tensor subclasses is JSON.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto read = [&](uint64_t offset, std::byte* out, uint64_t bytes) -> nibble::Result<void> {
    if (offset > size || bytes > size - offset) __builtin_trap();
    if (bytes != 0) std::memcpy(out, data + offset, bytes);
    return {};
  };
  const auto header = nibble::checkpoint::read_torch_file(read, size, "f.bin");
  if (!header) return 0;
  if (header->tensors.size() != header->strides.size()) __builtin_trap();
  for (size_t i = 0; i < header->tensors.size(); ++i) {
    const nibble::tensor::TensorInfo& t = header->tensors[i];
    const uint64_t span = nibble::checkpoint::span_bytes(t, header->strides[i]);
    if (t.offset > size || span > size - t.offset || t.bytes > size) __builtin_trap();
    if (header->strides[i].empty()) continue;
    std::vector<std::byte> from(span), to(t.bytes);
    if (span != 0) std::memcpy(from.data(), data + t.offset, span);
    nibble::checkpoint::gather(t, header->strides[i], from.data(), to.data());
  }
  for (const nibble::checkpoint::TorchSubclass& s : header->subclasses) {
    if (s.first > header->tensors.size() || s.count > header->tensors.size() - s.first) {
      __builtin_trap();
    }
    if (!nibble::base::parse_json(s.json, "f.bin")) __builtin_trap();
  }
  return 0;
}
