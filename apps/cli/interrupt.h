// Ctrl-C and closed pipes.
#pragma once

namespace nibble::cli {

constexpr int kInterrupted = 130;  // the exit code of a program that Ctrl-C ended

// From here on a closed pipe and a file that grew too large are errors of write(), and Ctrl-C ends
// the program with exit code 130.
void install_signal_handlers();

// While one lives, the first Ctrl-C is only noted; the second one ends the program. A new one
// forgets what was noted before.
class CatchInterrupt {
 public:
  CatchInterrupt();
  ~CatchInterrupt();
  CatchInterrupt(const CatchInterrupt&) = delete;
  CatchInterrupt& operator=(const CatchInterrupt&) = delete;

  bool requested() const;
  // Becomes readable with the first Ctrl-C, whichever thread the signal went to; -1 on a system
  // that has none.
  int descriptor() const;
};

}  // namespace nibble::cli
