// The header of a GGUF file (format: ggml, docs/gguf.md), versions 2 and 3, little-endian.
//
//   "GGUF" | version: u32 | tensors: u64 | pairs: u64
//   pairs:    key: string | type: u32 | value
//   tensors:  name: string | rank: u32 | dims: u64 each, fastest first | type: u32 | offset: u64
//   padding to `general.alignment` (32 unless said) | data; offsets count from here
//
//   string: length u64, bytes.  array: element type u32, count u64, elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/name_map.h"
#include "nibble/result.h"
#include "tensor/tensor.h"

namespace nibble::checkpoint {

// The numbers are the file's.
enum class GgufType : uint32_t {
  kU8 = 0,
  kS8 = 1,
  kU16 = 2,
  kS16 = 3,
  kU32 = 4,
  kS32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kS64 = 11,
  kF64 = 12,
};
std::string_view name(GgufType type);  // "u8", "string", "array"

// One key and its value, undecoded: pointing into the bytes that were parsed.
struct GgufEntry {
  std::string_view key;
  GgufType type = GgufType::kU8;  // of the value; of the elements when is_array
  bool is_array = false;
  uint64_t count = 1;                // elements of an array
  std::span<const std::byte> value;  // a string's length included; unaligned
};

// The key-value pairs of a GGUF file. Getters return an error that names the file, the key, the
// expected and the found type; those with a fallback return it only when the key is absent. Any
// integer type is accepted for an integer it fits, and integers for a real.
class GgufMetadata {
 public:
  const std::vector<GgufEntry>& entries() const { return entries_; }  // in file order
  const GgufEntry* find(std::string_view key) const;
  bool has(std::string_view key) const { return find(key) != nullptr; }
  const std::string& where() const { return where_; }

  Result<int64_t> get_int(std::string_view key) const;
  Result<int64_t> get_int_or(std::string_view key, int64_t fallback) const;
  Result<uint64_t> get_uint(std::string_view key) const;
  Result<double> get_double(std::string_view key) const;
  Result<double> get_double_or(std::string_view key, double fallback) const;
  Result<bool> get_bool(std::string_view key) const;
  Result<bool> get_bool_or(std::string_view key, bool fallback) const;
  // Strings point into the file's bytes: valid as long as the checkpoint is open. They need not be
  // UTF-8 (tokens are byte strings).
  Result<std::string_view> get_string(std::string_view key) const;
  Result<std::string_view> get_string_or(std::string_view key, std::string_view fallback) const;

  // Arrays. A scalar where an array is expected is an error: ask find(key)->is_array where a file
  // may hold either (as head_count_kv does).
  Result<std::vector<std::string_view>> get_strings(std::string_view key) const;
  Result<std::vector<int64_t>> get_ints(std::string_view key) const;
  Result<std::vector<double>> get_doubles(std::string_view key) const;
  Result<std::vector<float>> get_floats(std::string_view key) const;  // exact for f32
  Result<std::vector<bool>> get_bools(std::string_view key) const;

  // A value for a person, cut after some 60 characters: `"llama"`, `32`, `array of 49152 strings`.
  static std::string describe(const GgufEntry& entry);

 private:
  friend class GgufReader;

  Result<const GgufEntry*> scalar(std::string_view key, const char* expected) const;
  Result<const GgufEntry*> array(std::string_view key, const char* expected) const;
  Failure wrong_type(const GgufEntry& entry, const char* expected) const;

  std::string where_;
  std::vector<GgufEntry> entries_;
  NameMap<uint32_t> index_;
};

struct GgufHeader {
  uint32_t version = 0;
  uint64_t data_offset = 0;  // of the first tensor byte
  GgufMetadata metadata;
  std::vector<tensor::TensorInfo> tensors;  // in file order; offsets from the start of the file
  std::vector<std::string> warnings;
};

// Parses the header from the first bytes of a file. `bytes` may be less than the file; when it ends
// before the header does, the result is an error and *ended_early (if given) becomes true: try
// again with more. The metadata points into `bytes`.
Result<GgufHeader> parse_gguf(std::span<const std::byte> bytes, uint64_t file_size,
                              std::string_view where, bool* ended_early = nullptr);

}  // namespace nibble::checkpoint
