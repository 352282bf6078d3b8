// The system starts no more threads, where only an exception can say so.
#pragma once

#include <new>
#include <string>
#include <utility>

namespace nibble::device {

class ThreadsRanOut : public std::bad_alloc {
 public:
  explicit ThreadsRanOut(std::string text) : text_(std::move(text)) {}
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::string text_;
};

}  // namespace nibble::device
