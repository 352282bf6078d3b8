// Template source -> tree.
#pragma once

#include <string_view>

#include "text/jinja_ast.h"

namespace nibble::text::jinja {

// Parses a whole template. Throws Trouble, with the line, for anything that is not Jinja (kCorrupt)
// or that the interpreter does not have (kUnsupported).
Body parse(std::string_view source);

}  // namespace nibble::text::jinja
