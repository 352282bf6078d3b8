// The program `nibble`: which command, and how it ends.
#include <fmt/format.h>

#include <exception>
#include <new>

#include "cli/command.h"
#include "cli/help.h"
#include "cli/interrupt.h"
#include "cli/parse.h"
#include "cli/report_json.h"
#include "cli/terminal.h"
#include "cli/version.h"

namespace nibble::cli {
namespace {

int exit_code(ErrorCode code) {
  if (code == ErrorCode::kUsage) return 2;
  return code == ErrorCode::kCancelled ? kInterrupted : 1;
}

Result<int> run_program(const std::vector<std::string>& arguments) {
  const std::vector<Command> commands = all_commands();
  NIBBLE_ASSIGN(const Parsed parsed, parse(commands, arguments));
  if (parsed.version) {
    return finish(parsed.json ? version_json(version()) : version_text(version()));
  }
  if (parsed.help) {
    return finish(parsed.command ? command_help(*parsed.command) : program_help(commands));
  }
  if (parsed.command == nullptr) {
    note(program_help(commands));
    return fail(ErrorCode::kUsage, "no command was given.");
  }
  for (const std::string& sentence : parsed.idle) {
    if (!parsed.quiet) warn(sentence);
  }
  return parsed.command->run();
}

int guarded(const std::vector<std::string>& arguments) {
  try {
    const Result<int> result = run_program(arguments);
    if (result) return *result;
    if (result.error().code != ErrorCode::kCancelled) say_error(result.error().message);
    return exit_code(result.error().code);
  } catch (const std::bad_alloc&) {
    say_error("there is not enough memory for this.");
  } catch (const std::exception& error) {
    say_error(fmt::format("something unexpected went wrong: {}", error.what()));
  }
  return 1;
}

}  // namespace
}  // namespace nibble::cli

int main(int argc, char** argv) {
  nibble::cli::occupy_standard_descriptors();
  nibble::cli::install_signal_handlers();
  return nibble::cli::guarded({argv + 1, argv + argc});
}
