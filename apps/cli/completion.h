// Shell completions and the manual page, made from the commands themselves.
#pragma once

#include <string>
#include <vector>

#include "cli/command.h"

namespace nibble::cli {

std::string bash_completion(const std::vector<Command>& commands);
std::string zsh_completion(const std::vector<Command>& commands);
std::string fish_completion(const std::vector<Command>& commands);
std::string manual_page(const std::vector<Command>& commands, const std::string& version);

// `nibble completion bash|zsh|fish|man`: prints one of them. The build uses it; the help does not
// list it.
Command completion_command();

}  // namespace nibble::cli
