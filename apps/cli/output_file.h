// A file that --out or /save names.
#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "nibble/result.h"

namespace nibble::cli {

// "-" is stdout. A file is written beside its place and has its name only when it is complete: what
// had the name before stays until then, and a file that is not finished is removed. What is no file
// (a pipe, a device) is written to as it is.
class OutputFile {
 public:
  static Result<OutputFile> create(const std::string& path);
  OutputFile(OutputFile&&) noexcept = default;
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile();

  const std::string& path() const { return path_; }
  // Whoever read stdout and went away is no error.
  Result<void> write(std::string_view bytes);
  // Checks that the system took everything.
  Result<void> finish();

 private:
  struct Close {
    void operator()(std::FILE* file) const {
      if (file != stdout) std::fclose(file);
    }
  };
  OutputFile(std::string path, std::string target, std::FILE* file)
      : path_(std::move(path)), target_(std::move(target)), file_(file) {}
  Failure cannot_write() const;
  bool is_closed_pipe() const;

  std::string path_;
  std::string target_;  // the file that is there at the end; "": path_ is written to as it is
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace nibble::cli
