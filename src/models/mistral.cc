// Mistral and Ministral: Llama without biases, every layer with the same sliding window or with
// none; with `layer_types` each as it says there. (transformers takes a config of mistral that has
// them for one of ministral.)
#include "models/architecture.h"
#include "models/config.h"

namespace nibble::models {

Result<layers::DecoderSpec> mistral(const base::Json& config) {
  NIBBLE_ASSIGN(layers::DecoderSpec spec,
                read_common(config, {.kv_heads = 8, .max_positions = 131072}));
  // A window that is null is none; one that is absent is the class's default.
  if (config.find("sliding_window") == nullptr || config.find_set("sliding_window") != nullptr) {
    NIBBLE_ASSIGN(const int64_t window, get_size_or(config, "sliding_window", 4096));
    same_window(spec, window);
    NIBBLE_TRY(read_layer_types(config, spec, window, [](int64_t) { return true; }));
  }
  note_ignored(config, {"attention_bias", "mlp_bias"}, spec);
  if (config.find_set("use_sliding_window") != nullptr) {
    spec.notes.push_back(config.where() +
                         ": use_sliding_window has no effect: sliding_window alone decides");
  }
  return spec;
}

}  // namespace nibble::models
