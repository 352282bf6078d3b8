// A file that appears under its name only when it is complete.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "nibble/result.h"

namespace nibble::checkpoint {

// Writes to PATH.part; finish() flushes it to the disk and renames it. Destroyed before that, the
// part is removed.
class OutputFile {
 public:
  static Result<OutputFile> create(const std::string& path);
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&& other) noexcept;
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();

  uint64_t written() const { return written_; }
  Result<void> write(std::span<const std::byte> bytes);
  Result<void> pad(uint64_t bytes);  // zeros
  Result<void> finish();

 private:
  OutputFile() = default;
  Failure system_failure(const char* what) const;

  std::string path_;
  int fd_ = -1;
  uint64_t written_ = 0;
};

}  // namespace nibble::checkpoint
