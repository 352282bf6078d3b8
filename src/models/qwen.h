// What the Qwen families share.
#pragma once

#include "base/json.h"
#include "layers/decoder.h"
#include "nibble/result.h"

namespace nibble::models {

// use_sliding_window, sliding_window, layer_types, max_window_layers -> spec.windows.
Result<void> read_qwen_windows(const base::Json& config, layers::DecoderSpec& spec);

}  // namespace nibble::models
