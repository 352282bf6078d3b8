// The list of commands. A new one is a file of its name, a declaration in command.h, a line here
// and one in CMakeLists.txt.
#include "cli/command.h"
#include "cli/completion.h"

namespace nibble::cli {

std::vector<Command> all_commands() {
  std::vector<Command> commands;
  for (Command (*make)() : {run_command, chat_command, inspect_command, fit_command, verify_command,
                            weights_command, logits_command, tokenize_command, eval_command,
                            compare_command, bench_command, completion_command}) {
    commands.push_back(make());
  }
  return commands;
}

}  // namespace nibble::cli
