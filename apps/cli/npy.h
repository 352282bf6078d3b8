// Writes arrays as NumPy's .npy files, version 1.0
// (https://numpy.org/neps/nep-0001-npy-format.html):
//
//   93 "NUMPY" 01 00 | header length u16 LE | header, blanks, "\n" | data, C order, little endian
//
// with the header padded so that the data begin at a multiple of 64 bytes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "cli/output_file.h"
#include "nibble/result.h"

namespace nibble::cli {

// Everything before the data of a float32 array of this shape, in C order.
std::string npy_header(int64_t rows, int64_t columns);

// A float32 (rows, columns) array, written row by row; see OutputFile.
class NpyWriter {
 public:
  static Result<NpyWriter> create(const std::string& path, int64_t rows, int64_t columns);

  Result<void> append(std::span<const float> values);
  // Checks that all rows are there and that the system took them.
  Result<void> finish();

 private:
  NpyWriter(OutputFile file, int64_t values) : file_(std::move(file)), missing_(values) {}

  OutputFile file_;
  int64_t missing_;  // values still to come
};

}  // namespace nibble::cli
