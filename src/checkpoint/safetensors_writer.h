// Writes one safetensors file, tensor by tensor.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/output_file.h"
#include "nibble/result.h"
#include "tensor/tensor.h"

namespace nibble::checkpoint {

//   NIBBLE_ASSIGN(auto writer, SafetensorsWriter::create(path, tensors, {{"format", "pt"}}));
//   for (const TensorInfo& t : writer.tensors()) NIBBLE_TRY(writer.append(bytes_of(t.name)));
//   NIBBLE_TRY(writer.finish());
class SafetensorsWriter {
 public:
  // Of each tensor, name, dtype and shape count. Refuses what the format has no dtype for, names
  // that are not UTF-8, unique or "__metadata__", and shapes that are no whole number of bytes.
  static Result<SafetensorsWriter> create(const std::string& path,
                                          std::vector<tensor::TensorInfo> tensors,
                                          const std::map<std::string, std::string>& metadata);

  // In the order in which append() wants their bytes: wide elements first, so that each tensor is
  // aligned to its element (as the format's own tool does it), then by name.
  const std::vector<tensor::TensorInfo>& tensors() const { return tensors_; }
  // All bytes of the next tensor.
  Result<void> append(std::span<const std::byte> bytes);
  Result<void> finish();  // an error when tensors are missing

 private:
  SafetensorsWriter(OutputFile file, std::string path, std::vector<tensor::TensorInfo> tensors)
      : file_(std::move(file)), path_(std::move(path)), tensors_(std::move(tensors)) {}

  OutputFile file_;
  std::string path_;
  std::vector<tensor::TensorInfo> tensors_;
  size_t next_ = 0;
};

}  // namespace nibble::checkpoint
