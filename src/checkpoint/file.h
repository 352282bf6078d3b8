// One file of a checkpoint: mapped into memory, or read piece by piece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "nibble/result.h"
#include "tensor/tensor.h"

namespace nibble::checkpoint {

// A regular file, open for reading. Mapped, its pages are shared with the page cache and cost
// memory only while they are touched; a file that someone shortens while it is mapped kills the
// process (SIGBUS), which is why `map` can be turned off.
class File {
 public:
  // `name` is what messages call it. Refuses what is no regular file (a folder, a pipe, a device).
  static Result<File> open(const std::string& path, std::string name, bool map);
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File();

  const std::string& name() const { return name_; }
  uint64_t size() const { return size_; }
  bool is_mapped() const { return map_ != nullptr; }
  // All bytes when mapped, else empty.
  std::span<const std::byte> mapped() const { return {map_, map_ == nullptr ? 0 : size_}; }

  // Reads [offset, offset + bytes) into `out`; an error when the file ends before.
  Result<void> read(uint64_t offset, std::byte* out, uint64_t bytes) const;
  // The first `bytes` bytes: of the map, else read into `owner`. Precondition: bytes <= size().
  Result<std::span<const std::byte>> head(uint64_t bytes, tensor::Buffer& owner) const;

  // Hints about [offset, offset + bytes): read it soon; give its pages back. Dropped pages of a map
  // come back from the file when they are touched again, so pages shared with a neighbour may go
  // too.
  void prefetch(uint64_t offset, uint64_t bytes) const;
  void drop(uint64_t offset, uint64_t bytes) const;

 private:
  File() = default;

  std::string name_;
  uint64_t size_ = 0;
  int fd_ = -1;  // kept open only when not mapped
  std::byte* map_ = nullptr;
};

// What often lies in the place of a weight or JSON file: nothing at all, a Git LFS pointer, a web
// page. `first` holds the first bytes of the file (up to 512 are looked at).
Result<void> refuse_placeholder(std::span<const std::byte> first, uint64_t file_size,
                                std::string_view where);

// The text of `errno`: "Permission denied".
std::string system_message(int error);

// Text from a file, fit for a message: control characters and broken UTF-8 become '?', and what is
// longer than `limit` bytes is cut and ends in "...".
std::string shown(std::string_view text, size_t limit = 120);

inline std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace nibble::checkpoint
