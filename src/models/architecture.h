// A model is a declaration: a function from config.json to a DecoderSpec. One file and one line in
// architectures.inc.
#pragma once

#include <string_view>
#include <vector>

#include "base/json.h"
#include "layers/decoder.h"
#include "nibble/result.h"

namespace nibble::models {

struct Architecture {
  std::string_view name;        // as in config.json: architectures
  std::string_view model_type;  // as in config.json, for configs without architectures
  Result<layers::DecoderSpec> (*declare)(const base::Json& config);
};

// The declaration that config.json asks for (architectures, else model_type); the error lists
// the known ones. GGUF metadata is turned into the same keys before.
Result<layers::DecoderSpec> declare_model(const base::Json& config);

std::vector<std::string_view> architecture_names();

}  // namespace nibble::models
