// NIBBLE_CHECK: for bugs of ours, never for what a file or a person may do.
#pragma once

namespace nibble::base {

// Called with the failed condition and where it stands. The default prints to stderr and aborts;
// an embedder may replace it (it must not return).
using CheckHandler = void (*)(const char* condition, const char* file, int line);
void set_check_handler(CheckHandler handler) noexcept;

[[noreturn]] void check_failed(const char* condition, const char* file, int line) noexcept;

}  // namespace nibble::base

#define NIBBLE_CHECK(condition)                                     \
  do {                                                              \
    if (!(condition)) [[unlikely]]                                  \
      ::nibble::base::check_failed(#condition, __FILE__, __LINE__); \
  } while (false)
