// The table of contents of a zip archive whose entries are stored as they are (PKWARE's APPNOTE,
// sections 4.3 and 4.4; with its 64-bit extensions).
//
//   | local header, name, extra | data |  ...  | central directory | end record |
//
// torch.save writes such archives: nothing is compressed, so a tensor's bytes lie in the file.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/result.h"

namespace nibble::checkpoint {

struct ZipEntry {
  std::string name;
  uint64_t offset = 0;  // of its data, in the file
  uint64_t bytes = 0;
};

// Reads [offset, offset + bytes) of a file; never asked for what lies beyond its end.
using ReadAt = std::function<Result<void>(uint64_t offset, std::byte* out, uint64_t bytes)>;

// The entries, in the order of the directory; their data lies inside the file. Errors: no archive,
// or one cut short; an entry that is compressed or encrypted; a name that stands twice.
Result<std::vector<ZipEntry>> read_zip(const ReadAt& read, uint64_t file_size,
                                       std::string_view where);

}  // namespace nibble::checkpoint
