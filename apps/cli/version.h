// What `nibble --version` prints.
#pragma once

#include <string>

#include "nibble/nibble.h"

namespace nibble::cli {

std::string version_text(const VersionInfo& version);

}  // namespace nibble::cli
