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

// Whether the key "a.b" of the config that is called `root` was asked for. One that is set whole
// was if its object was.
bool was_asked(const base::Json::Asked& asked, const std::string& root, std::string_view key);

// "; did you mean X?": the key of `root` that is read and has the longest beginning or end in
// common with `key`; "" where none has.
std::string nearest_key(const base::Json::Asked& asked, std::string_view root,
                        std::string_view key);

}  // namespace nibble::load
