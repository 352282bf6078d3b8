// Qwen 2 and 2.5: Llama with biases on q, k and v; the upper layers may have a sliding window.
#include "models/architecture.h"
#include "models/config.h"
#include "models/qwen.h"

namespace nibble::models {

Result<void> read_qwen_windows(const base::Json& config, layers::DecoderSpec& spec) {
  NIBBLE_ASSIGN(const bool used, config.get_bool_or("use_sliding_window", false));
  if (!used ||
      (config.find("sliding_window") != nullptr && config.find_set("sliding_window") == nullptr)) {
    return {};
  }
  NIBBLE_ASSIGN(const int64_t window, get_size_or(config, "sliding_window", 4096));
  NIBBLE_ASSIGN(const int64_t first, config.get_int_or("max_window_layers", 28));
  return read_layer_types(config, spec, window, [first](int64_t layer) { return layer >= first; });
}

Result<layers::DecoderSpec> qwen2(const base::Json& config) {
  NIBBLE_ASSIGN(layers::DecoderSpec spec,
                read_common(config, {.kv_heads = 32, .max_positions = 32768}));
  spec.qkv_bias = true;
  NIBBLE_TRY(read_qwen_windows(config, spec));
  return spec;
}

}  // namespace nibble::models
