// Writes one GGUF file (version 3), tensor by tensor.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "checkpoint/gguf.h"
#include "checkpoint/output_file.h"
#include "nibble/result.h"
#include "tensor/tensor.h"

namespace nibble::checkpoint {

template <class T>
constexpr GgufType gguf_type_of() {
  if constexpr (std::is_same_v<T, uint8_t>) return GgufType::kU8;
  if constexpr (std::is_same_v<T, int8_t>) return GgufType::kS8;
  if constexpr (std::is_same_v<T, uint16_t>) return GgufType::kU16;
  if constexpr (std::is_same_v<T, int16_t>) return GgufType::kS16;
  if constexpr (std::is_same_v<T, uint32_t>) return GgufType::kU32;
  if constexpr (std::is_same_v<T, int32_t>) return GgufType::kS32;
  if constexpr (std::is_same_v<T, uint64_t>) return GgufType::kU64;
  if constexpr (std::is_same_v<T, int64_t>) return GgufType::kS64;
  if constexpr (std::is_same_v<T, float>) return GgufType::kF32;
  if constexpr (std::is_same_v<T, double>) return GgufType::kF64;
  return GgufType::kArray;  // no number
}

//   GgufWriter writer;
//   writer.add_string("general.architecture", "llama");
//   writer.add_number("llama.block_count", uint32_t{30});
//   writer.add_tensor("blk.0.attn_q.weight", DType::kQ4_1, {576, 576});
//   NIBBLE_TRY(writer.begin(path));
//   NIBBLE_TRY(writer.append(bytes));   // in the order of the add_tensor() calls
//   NIBBLE_TRY(writer.finish());
class GgufWriter {
 public:
  // Pairs, written in the order of the calls; the C++ type decides the file's type.
  // "general.alignment" (a u32) sets the alignment.
  template <class T>
  void add_number(std::string_view key, T value) {
    static_assert(gguf_type_of<T>() != GgufType::kArray);
    add_pair(key, gguf_type_of<T>(), std::as_bytes(std::span(&value, 1)));
  }
  void add_bool(std::string_view key, bool value);
  void add_string(std::string_view key, std::string_view value);
  template <class T>
  void add_numbers(std::string_view key, std::span<const T> values) {
    static_assert(gguf_type_of<T>() != GgufType::kArray);
    add_array(key, gguf_type_of<T>(), values.size(), std::as_bytes(values));
  }
  void add_strings(std::string_view key, std::span<const std::string_view> values);
  // Copies a pair of another file as it is.
  void add_entry(const GgufEntry& entry);

  // `shape` is rows first; the file gets it reversed.
  void add_tensor(std::string name, tensor::DType dtype, tensor::Shape shape);

  // Checks everything added and writes the header.
  Result<void> begin(const std::string& path);
  Result<void> append(std::span<const std::byte> bytes);  // all bytes of the next tensor
  Result<void> finish();                                  // an error when tensors are missing

 private:
  void add_pair(std::string_view key, GgufType type, std::span<const std::byte> value);
  void add_array(std::string_view key, GgufType type, uint64_t count,
                 std::span<const std::byte> elements);
  Result<std::string> header(const std::string& path);

  std::string pairs_;  // encoded
  uint64_t pair_count_ = 0;
  uint64_t alignment_ = 32;
  std::vector<tensor::TensorInfo> tensors_;  // offsets within the data
  std::string path_;
  std::optional<OutputFile> file_;
  uint64_t data_offset_ = 0;
  size_t next_ = 0;
};

}  // namespace nibble::checkpoint
