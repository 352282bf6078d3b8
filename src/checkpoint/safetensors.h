// The header of a safetensors file (format: huggingface/safetensors, README, "Format").
//
//   byte 0        8            8 + N                      file size
//        | N: u64 | JSON, N bytes | data ..................... |
//
//   {"__metadata__": {"format": "pt"},
//    "lm_head.weight": {"dtype": "BF16", "shape": [49152, 576], "data_offsets": [0, 56623104]},
//    ...}
//
// Offsets count from byte 8 + N. Together the tensors cover the data exactly: no hole, no overlap,
// no byte left over.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nibble/result.h"
#include "tensor/tensor.h"

namespace nibble::checkpoint {

struct SafetensorsHeader {
  // In the order of their offsets; `offset` counts from the start of the file, `file` is 0.
  std::vector<tensor::TensorInfo> tensors;
  std::vector<std::pair<std::string, std::string>> metadata;  // in file order
};

constexpr uint64_t kSafetensorsMaxHeader = 100'000'000;  // the format's own limit

// The bytes from the start of the file to the end of the header (8 + N), from at least its first
// min(512, file_size) bytes. Checks N, and says so when this is some other kind of file.
Result<uint64_t> safetensors_head_bytes(std::span<const std::byte> first, uint64_t file_size,
                                        std::string_view where);

// `head` is what safetensors_head_bytes() asked for. Every rule of the format is checked; `where`
// names the file in messages.
Result<SafetensorsHeader> parse_safetensors_header(std::span<const std::byte> head,
                                                   uint64_t file_size, std::string_view where);

// The format's name of a type, "F8_E4M3"; nothing for those it has none for (GGUF's).
std::optional<tensor::DType> dtype_from_safetensors(std::string_view name);
std::string_view safetensors_name(tensor::DType dtype);  // "" when there is none

// The bytes of `shape`; nothing on overflow or when they are no whole number. (The sub-byte types
// are packed across rows, so only the total counts.)
std::optional<uint64_t> packed_bytes(tensor::DType dtype, const tensor::Shape& shape);

}  // namespace nibble::checkpoint
