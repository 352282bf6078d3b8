#include "cli/interrupt.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>

namespace nibble::cli {
namespace {

std::atomic<bool> g_catching{false};
std::atomic<bool> g_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler may not wait");

void on_interrupt(int) {
  if (g_catching && !g_requested.exchange(true)) return;
  _exit(kInterrupted);
}

}  // namespace

void install_signal_handlers() {
  struct sigaction ignore = {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignore, nullptr);
  // Without SA_RESTART: a read from the terminal ends with EINTR.
  struct sigaction interrupt = {};
  interrupt.sa_handler = on_interrupt;
  sigaction(SIGINT, &interrupt, nullptr);
}

CatchInterrupt::CatchInterrupt() {
  g_requested = false;
  g_catching = true;
}

CatchInterrupt::~CatchInterrupt() { g_catching = false; }

bool CatchInterrupt::requested() const { return g_requested; }

}  // namespace nibble::cli
