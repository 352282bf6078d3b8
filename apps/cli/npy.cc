#include "cli/npy.h"

#include <fmt/format.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>

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

namespace {

Failure cannot_write(const std::string& path) {
  if (path == "-") {
    return fail(ErrorCode::kIo, fmt::format("stdout could not be written: {}", strerror(errno)));
  }
  return fail(ErrorCode::kIo, fmt::format("{}: could not be written: {}", path, strerror(errno)));
}

}  // namespace

Result<NpyWriter> NpyWriter::create(const std::string& path, int64_t rows, int64_t columns) {
  std::FILE* file = path == "-" ? stdout : std::fopen(path.c_str(), "wb");
  if (file == nullptr) return cannot_write(path);
  NpyWriter writer(path, file, rows * columns);
  const std::string header = npy_header(rows, columns);
  if (std::fwrite(header.data(), 1, header.size(), file) != header.size()) {
    return cannot_write(path);
  }
  return writer;
}

NpyWriter::~NpyWriter() {
  if (file_ == nullptr || path_ == "-") return;
  file_.reset();
  std::error_code ignored;
  if (std::filesystem::is_regular_file(path_, ignored)) std::filesystem::remove(path_, ignored);
}

Result<void> NpyWriter::append(std::span<const float> values) {
  const bool closed = path_ == "-" && std::ferror(stdout) != 0;  // whoever read it went away
  if (!closed &&
      std::fwrite(values.data(), sizeof(float), values.size(), file_.get()) != values.size() &&
      !(path_ == "-" && errno == EPIPE)) {
    return cannot_write(path_);
  }
  missing_ -= static_cast<int64_t>(values.size());
  return {};
}

Result<void> NpyWriter::finish() {
  if (missing_ != 0) {
    return fail(ErrorCode::kIo,
                fmt::format("{}: {} values are missing at its end.", path_, missing_));
  }
  if (std::fflush(file_.get()) != 0 && !(path_ == "-" && errno == EPIPE)) {
    return cannot_write(path_);
  }
  file_.reset();
  return {};
}

}  // namespace nibble::cli
