#include "checkpoint/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

namespace nibble::checkpoint {
namespace {

constexpr size_t kSniffed = 512;
constexpr size_t kReadChunk = size_t{64}
                              << 20;  // one read() moves at most 2 GiB; smaller is as fast

// [begin, end) widened to whole pages.
struct PageRange {
  uint64_t begin;
  uint64_t bytes;
};
PageRange pages_of(uint64_t offset, uint64_t bytes) {
  static const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t begin = offset / page * page;
  return {begin, offset + bytes - begin};
}

bool begins_with_ignoring_case(std::string_view text, std::string_view lower) {
  return text.size() >= lower.size() &&
         std::equal(lower.begin(), lower.end(), text.begin(), [](char want, char have) {
           return want == (have >= 'A' && have <= 'Z' ? static_cast<char>(have + 32) : have);
         });
}

// The length of the UTF-8 sequence at the start of `text`; 0 when it is broken.
size_t utf8_length(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const size_t length = lead < 0x80                    ? 1
                        : lead >= 0xc2 && lead <= 0xdf ? 2
                        : lead >= 0xe0 && lead <= 0xef ? 3
                        : lead >= 0xf0 && lead <= 0xf4 ? 4
                                                       : 0;
  if (length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) return 0;
  }
  return length;
}

}  // namespace

std::string system_message(int error) { return std::generic_category().message(error); }

std::string shown(std::string_view text, size_t limit) {
  std::string out;
  while (!text.empty()) {
    const size_t length = utf8_length(text);
    if (out.size() + std::max<size_t>(length, 1) > limit) return out + "...";
    const auto lead = static_cast<unsigned char>(text[0]);
    if (length == 0 || lead < 0x20 || lead == 0x7f) {
      out += '?';
      text.remove_prefix(1);
    } else {
      out += text.substr(0, length);
      text.remove_prefix(length);
    }
  }
  return out;
}

Result<void> refuse_placeholder(std::span<const std::byte> first, uint64_t file_size,
                                std::string_view where) {
  if (file_size == 0) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: the file is empty; download it again", where));
  }
  std::string_view text = as_text(first.first(std::min(first.size(), kSniffed)));
  if (text.starts_with("version https://git-lfs") || text.starts_with("version https://hawser")) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: this is a Git LFS pointer, not the file itself; run \"git lfs "
                            "pull\" in that folder, or download the file",
                            where));
  }
  const size_t start = text.find_first_not_of(" \t\r\n\xef\xbb\xbf");
  text.remove_prefix(std::min(start, text.size()));
  for (std::string_view mark : {"<!doctype", "<html", "<head", "<?xml"}) {
    if (begins_with_ignoring_case(text, mark)) {
      return fail(ErrorCode::kCorrupt,
                  fmt::format("{}: this is a web page (it begins with \"{}\"), perhaps a login or "
                              "error page saved in the file's place; download it again",
                              where, shown(text.substr(0, mark.size()))));
    }
  }
  return {};
}

Result<File> File::open(const std::string& path, std::string name, bool map) {
  File file;
  file.name_ = std::move(name);
  const auto system_failure = [&](const char* what) {
    return fail(errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
                fmt::format("{}: cannot {}: {}", file.name_, what, system_message(errno)));
  };
  // O_NONBLOCK: opening a pipe without a writer must not wait forever.
  file.fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file.fd_ < 0) return system_failure("open");
  struct stat status {};
  if (fstat(file.fd_, &status) != 0) return system_failure("look at");
  if (!S_ISREG(status.st_mode)) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: this is a {}, not a file", file.name_,
                            S_ISDIR(status.st_mode) ? "folder" : "pipe or device"));
  }
  file.size_ = static_cast<uint64_t>(status.st_size);
  if (!map || file.size_ == 0) return file;
  void* raw = mmap(nullptr, file.size_, PROT_READ, MAP_SHARED, file.fd_, 0);
  if (raw == MAP_FAILED) return system_failure("map");
  file.map_ = static_cast<std::byte*>(raw);
  ::close(std::exchange(file.fd_, -1));
  return file;
}

File::File(File&& other) noexcept
    : name_(std::move(other.name_)),
      size_(std::exchange(other.size_, 0)),
      fd_(std::exchange(other.fd_, -1)),
      map_(std::exchange(other.map_, nullptr)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(name_, other.name_);
  std::swap(size_, other.size_);
  std::swap(fd_, other.fd_);
  std::swap(map_, other.map_);
  return *this;
}

File::~File() {
  if (map_ != nullptr) munmap(map_, size_);
  if (fd_ >= 0) ::close(fd_);
}

Result<void> File::read(uint64_t offset, std::byte* out, uint64_t bytes) const {
  if (map_ != nullptr && offset <= size_ && bytes <= size_ - offset) {
    std::copy_n(map_ + offset, bytes, out);
    return {};
  }
  while (bytes != 0) {
    const ssize_t got =
        pread(fd_, out, std::min<uint64_t>(bytes, kReadChunk), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return fail(ErrorCode::kIo, fmt::format("{}: cannot read at byte {}: {}", name_, offset,
                                              system_message(errno)));
    }
    if (got == 0) {
      return fail(ErrorCode::kIo,
                  fmt::format("{}: ends at byte {}, {} bytes too early; it has been "
                              "shortened since it was opened",
                              name_, offset, bytes));
    }
    offset += static_cast<uint64_t>(got);
    bytes -= static_cast<uint64_t>(got);
    out += got;
  }
  return {};
}

Result<std::span<const std::byte>> File::head(uint64_t bytes, tensor::Buffer& owner) const {
  if (map_ != nullptr) return std::span<const std::byte>(map_, bytes);
  NIBBLE_ASSIGN(owner, tensor::Buffer::allocate(bytes));
  NIBBLE_TRY(read(0, owner.data(), bytes));
  return std::span<const std::byte>(owner.data(), bytes);
}

void File::prefetch(uint64_t offset, uint64_t bytes) const {
  const PageRange pages = pages_of(offset, bytes);
  if (bytes == 0) return;
  if (map_ != nullptr) {
    madvise(map_ + pages.begin, pages.bytes, MADV_WILLNEED);
  } else {
    posix_fadvise(fd_, static_cast<off_t>(pages.begin), static_cast<off_t>(pages.bytes),
                  POSIX_FADV_WILLNEED);
  }
}

void File::drop(uint64_t offset, uint64_t bytes) const {
  const PageRange pages = pages_of(offset, bytes);
  if (map_ != nullptr && bytes != 0) madvise(map_ + pages.begin, pages.bytes, MADV_DONTNEED);
}

}  // namespace nibble::checkpoint
