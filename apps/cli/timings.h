// What is said on stderr when an answer is complete.
#pragma once

#include <string>

#include "nibble/nibble.h"

namespace nibble::cli {

// "prompt 12 tokens, 0.05 s (240.0 tokens/s); generated 34 tokens, 0.50 s (68.0 tokens/s); stop"
std::string timings_line(const Generated& generated);

}  // namespace nibble::cli
