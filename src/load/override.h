// The keys of --override: where they stand in a config, and setting them.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"
#include "nibble/result.h"

namespace nibble::load {

// Where the key of an --override stands. The rope keys are read from rope_scaling or, in newer
// configs, rope_parameters, where they outrank those of the same name at the top (models/rope.cc).
// Error: one of them for each kind of layer.
Result<std::string> place_of(const base::Json& config, const std::string& key);

// Sets a key; the value is JSON, or else a string. "a.b" reaches into objects. Error: through
// something that is none.
Result<void> apply_override(base::Json& config, std::string_view key, const std::string& text);

// The value at "a.b", or nullptr.
const base::Json* find_path(const base::Json& config, std::string_view key);

}  // namespace nibble::load
