// The help: one screen for the program, one page for each command.
#pragma once

#include <string>
#include <vector>

#include "cli/command.h"

namespace nibble::cli {

std::string program_help(const std::vector<Command>& commands);
std::string command_help(const Command& command);

// What an option's target holds, as the help shows it; "" when there is nothing to show.
std::string default_of(const Option& option);

}  // namespace nibble::cli
