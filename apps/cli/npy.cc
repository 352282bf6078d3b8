#include "cli/npy.h"

#include <fmt/format.h>

#include <bit>

namespace nibble::cli {

static_assert(std::endian::native == std::endian::little, "the data are written as they lie");

std::string npy_header(int64_t rows, int64_t columns) {
  std::string header =
      fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows, columns);
  constexpr size_t kPrefix = 10;  // magic, version, length
  const size_t total = (kPrefix + header.size() + 1 + 63) / 64 * 64;
  header.append(total - kPrefix - header.size() - 1, ' ');
  header += '\n';
  std::string prefix("\x93NUMPY\x01\x00", 8);
  prefix += static_cast<char>(header.size() & 0xFF);
  prefix += static_cast<char>(header.size() >> 8);
  return prefix + header;
}

Result<NpyWriter> NpyWriter::create(const std::string& path, int64_t rows, int64_t columns) {
  NIBBLE_ASSIGN(OutputFile file, OutputFile::create(path));
  NIBBLE_TRY(file.write(npy_header(rows, columns)));
  return NpyWriter(std::move(file), rows * columns);
}

Result<void> NpyWriter::append(std::span<const float> values) {
  NIBBLE_TRY(file_.write({reinterpret_cast<const char*>(values.data()), values.size_bytes()}));
  missing_ -= static_cast<int64_t>(values.size());
  return {};
}

Result<void> NpyWriter::finish() {
  if (missing_ != 0) {
    return fail(ErrorCode::kIo,
                fmt::format("{}: {} values are missing at its end.", file_.path(), missing_));
  }
  return file_.finish();
}

}  // namespace nibble::cli
