#include "checkpoint/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "checkpoint/file.h"

namespace nibble::checkpoint {
namespace {

constexpr size_t kWriteChunk = size_t{64} << 20;

std::string part_of(const std::string& path) { return path + ".part"; }

}  // namespace

Failure OutputFile::system_failure(const char* what) const {
  return fail(ErrorCode::kIo, fmt::format("{}: cannot {}: {}", path_, what, system_message(errno)));
}

Result<OutputFile> OutputFile::create(const std::string& path) {
  OutputFile out;
  out.path_ = path;
  out.fd_ = ::open(part_of(path).c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (out.fd_ < 0) return out.system_failure("create");
  return out;
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      written_(std::exchange(other.written_, 0)) {}

OutputFile& OutputFile::operator=(OutputFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(written_, other.written_);
  return *this;
}

OutputFile::~OutputFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(part_of(path_).c_str());
}

Result<void> OutputFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(fd_, bytes.data(), std::min(bytes.size(), kWriteChunk));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return system_failure("write");
    written_ += static_cast<uint64_t>(put);
    bytes = bytes.subspan(static_cast<size_t>(put));
  }
  return {};
}

Result<void> OutputFile::pad(uint64_t bytes) {
  static constexpr std::array<std::byte, 4096> kZeros{};
  while (bytes != 0) {
    const size_t some = std::min<uint64_t>(bytes, kZeros.size());
    NIBBLE_TRY(write(std::span(kZeros).first(some)));
    bytes -= some;
  }
  return {};
}

Result<void> OutputFile::finish() {
  if (fsync(fd_) != 0) return system_failure("write");
  if (std::rename(part_of(path_).c_str(), path_.c_str()) != 0) return system_failure("rename");
  ::close(std::exchange(fd_, -1));
  return {};
}

}  // namespace nibble::checkpoint
