// Runs a program as a shell would and keeps what it said.
#pragma once

#include <string>
#include <vector>

namespace nibble::cli {

struct Spawn {
  std::vector<std::string> arguments;         // the program first
  std::string input = {};                     // its stdin
  std::vector<std::string> environment = {};  // "KEY=value", added to this process's own
  bool close_stdout_early = false;            // stop reading after the first byte
  bool interrupt_early = false;               // Ctrl-C after the first byte of stdout
  unsigned short columns = 120;               // of the terminal
};

struct Ran {
  int exit_code = -1;  // -1: ended by a signal
  int signal = 0;
  std::string out, err;
  double seconds = 0;
};

// Kills the program after `limit` seconds.
Ran run(const Spawn& spawn, double limit = 60);

// False where the system gives no terminals (a chroot without /dev/pts): run_on_terminal needs one.
bool has_terminals();

// A user at a terminal: once everything so far holds `wait_for`, `type` is typed.
struct Step {
  std::string wait_for;
  std::string type;
};

// Runs a program on a terminal of its own; `out` is all that the terminal showed. Each step looks
// only at what came after the step before.
Ran run_on_terminal(const Spawn& spawn, const std::vector<Step>& steps, double limit = 60);

}  // namespace nibble::cli
