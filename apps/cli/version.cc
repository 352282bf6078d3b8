#include "cli/version.h"

#include <fmt/format.h>

namespace nibble::cli {
namespace {

std::string list(const std::vector<std::string>& words) {
  return words.empty() ? "none" : fmt::format("{}", fmt::join(words, ", "));
}

}  // namespace

std::string version_text(const VersionInfo& version) {
  return fmt::format(
      "nibble {}\ncommit    {}\ncompiler  {}\nISAs      compiled in: {}; found: {}\n"
      "devices   compiled in: {}; found: {}\n",
      version.version, version.commit, version.compiler, list(version.isas_compiled),
      list(version.isas_found), list(version.devices_compiled), list(version.devices_found));
}

}  // namespace nibble::cli
