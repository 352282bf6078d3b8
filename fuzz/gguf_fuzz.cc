#include <cstddef>
#include <cstdint>
#include <span>

#include "checkpoint/gguf.h"

using nibble::checkpoint::GgufEntry;
using nibble::checkpoint::GgufHeader;
using nibble::checkpoint::GgufMetadata;

namespace {

// Every getter on every key: an answer or an error, never a crash.
void ask_everything(const GgufMetadata& metadata) {
  for (const GgufEntry& entry : metadata.entries()) {
    if (metadata.find(entry.key) == nullptr) __builtin_trap();
    (void)GgufMetadata::describe(entry);
    (void)metadata.get_int(entry.key);
    (void)metadata.get_uint(entry.key);
    (void)metadata.get_double(entry.key);
    (void)metadata.get_bool(entry.key);
    (void)metadata.get_string(entry.key);
    (void)metadata.get_strings(entry.key);
    (void)metadata.get_ints(entry.key);
    (void)metadata.get_doubles(entry.key);
    (void)metadata.get_floats(entry.key);
    (void)metadata.get_bools(entry.key);
  }
}

}  // namespace

// The bytes are a whole file, then the first half of one: the answer may not depend on bytes that
// were not given.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  auto header = nibble::checkpoint::parse_gguf(bytes, size, "f.gguf");
  if (header) {
    ask_everything(header->metadata);
    for (const nibble::tensor::TensorInfo& t : header->tensors) {
      if (t.offset < header->data_offset || t.offset > size || t.bytes > size - t.offset) {
        __builtin_trap();
      }
    }
  }
  bool ended_early = false;
  const auto half =
      nibble::checkpoint::parse_gguf(bytes.first(size / 2), size, "f.gguf", &ended_early);
  if (header && !half && !ended_early && size > 1) __builtin_trap();
  return 0;
}
