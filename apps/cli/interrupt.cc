#include "cli/interrupt.h"

#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace nibble::cli {
namespace {

std::atomic<int> g_catching{0};  // how many CatchInterrupt live
std::atomic<bool> g_requested{false};
std::atomic<int> g_wake{-1};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free,
              "a signal handler may not wait");

void on_interrupt(int) {
  if (g_catching == 0 || g_requested.exchange(true)) _exit(kInterrupted);
  const uint64_t one = 1;
  if (write(g_wake, &one, sizeof one) < 0) return;  // without it, requested() still tells
}

}  // namespace

void install_signal_handlers() {
  struct sigaction ignore = {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignore, nullptr);
  sigaction(SIGXFSZ, &ignore, nullptr);
  g_wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  // Without SA_RESTART: a read from the terminal ends with EINTR.
  struct sigaction interrupt = {};
  interrupt.sa_handler = on_interrupt;
  sigaction(SIGINT, &interrupt, nullptr);
}

CatchInterrupt::CatchInterrupt() {
  ++g_catching;
  g_requested = false;
  uint64_t count = 0;
  while (read(g_wake, &count, sizeof count) > 0) {
  }
}

CatchInterrupt::~CatchInterrupt() { --g_catching; }

bool CatchInterrupt::requested() const { return g_requested; }

int CatchInterrupt::descriptor() const { return g_wake; }

}  // namespace nibble::cli
