#include <cstddef>
#include <cstdint>
#include <span>

#include "checkpoint/safetensors.h"

// The bytes are a whole file. What is accepted must tile the file exactly.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  const auto head = nibble::checkpoint::safetensors_head_bytes(bytes, size, "f.safetensors");
  if (!head) return 0;
  if (*head > size) __builtin_trap();
  const auto header =
      nibble::checkpoint::parse_safetensors_header(bytes.first(*head), size, "f.safetensors");
  if (!header) return 0;
  uint64_t end = *head;
  for (const nibble::tensor::TensorInfo& t : header->tensors) {
    if (t.offset != end) __builtin_trap();
    end += t.bytes;
  }
  if (end != size) __builtin_trap();
  return 0;
}
