#include "cli/output_file.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace nibble::cli {
namespace {

namespace fs = std::filesystem;

std::string part_of(const std::string& target) { return target + ".part"; }

// Behind a link the file it leads to, so that the link stays; "" for stdout, a pipe or a device.
std::string target_of(const std::string& path) {
  if (path == "-") return {};
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  if (error) return path;  // there is none yet
  return fs::is_regular_file(real, error) ? real.string() : std::string();
}

}  // namespace

Result<OutputFile> OutputFile::create(const std::string& path) {
  const std::string target = target_of(path);
  const std::string written = target.empty() ? path : part_of(target);
  OutputFile out(path, target, path == "-" ? stdout : std::fopen(written.c_str(), "wb"));
  if (out.file_ == nullptr) return out.cannot_write();
  return out;
}

OutputFile::~OutputFile() {
  if (file_ == nullptr || target_.empty()) return;
  file_.reset();
  std::error_code ignored;
  fs::remove(part_of(target_), ignored);
}

Failure OutputFile::cannot_write() const {
  return fail(ErrorCode::kIo, fmt::format("{} could not be written: {}",
                                          path_ == "-" ? "stdout" : path_ + ":", strerror(errno)));
}

bool OutputFile::is_closed_pipe() const { return path_ == "-" && errno == EPIPE; }

Result<void> OutputFile::write(std::string_view bytes) {
  if (path_ == "-" && std::ferror(stdout) != 0) return {};  // whoever read it went away
  if (std::fwrite(bytes.data(), 1, bytes.size(), file_.get()) == bytes.size()) return {};
  return is_closed_pipe() ? Result<void>() : cannot_write();
}

Result<void> OutputFile::finish() {
  if (std::fflush(file_.get()) != 0 && !is_closed_pipe()) return cannot_write();
  if (!target_.empty() && std::rename(part_of(target_).c_str(), target_.c_str()) != 0) {
    return cannot_write();
  }
  file_.reset();
  return {};
}

}  // namespace nibble::cli
