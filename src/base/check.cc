#include "base/check.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace nibble::base {
namespace {

void print_and_abort(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "nibble: internal error: %s does not hold (%s:%d)\n", condition, file, line);
  std::abort();
}

std::atomic<CheckHandler> g_handler{&print_and_abort};

}  // namespace

void set_check_handler(CheckHandler handler) noexcept {
  g_handler = handler != nullptr ? handler : &print_and_abort;
}

void check_failed(const char* condition, const char* file, int line) noexcept {
  g_handler.load()(condition, file, line);
  std::abort();
}

}  // namespace nibble::base
