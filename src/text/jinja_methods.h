// The methods of each type; jinja_methods.cc finds them for method_of() of jinja_filters.h.
#pragma once

#include "text/jinja_filters.h"

namespace nibble::text::jinja {

extern const FilterRow kStringMethods[];  // jinja_string_methods.cc; an empty name ends it

}  // namespace nibble::text::jinja
