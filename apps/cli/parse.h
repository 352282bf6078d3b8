// From argv to a command with its options filled in.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/command.h"

namespace nibble::cli {

struct Parsed {
  const Command* command = nullptr;  // nullptr: none was named
  bool help = false;
  bool version = false;
  bool json = false;  // of `nibble --version --json`
  bool quiet = false;
  std::vector<std::string> idle;  // a sentence for each option that was given and changes nothing
};

// Fills the targets of the command that `arguments` (without the program's name) names. Every
// error is kUsage, one sentence.
Result<Parsed> parse(const std::vector<Command>& commands,
                     const std::vector<std::string>& arguments);

// Options alone, no command and no positional; `where` stands in the errors.
Result<void> parse_options(const std::vector<OptionGroup>& groups,
                           const std::vector<std::string>& arguments, const std::string& where);

}  // namespace nibble::cli
