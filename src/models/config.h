// Reading the keys of config.json that most decoder families share, with their checks.
#pragma once

#include "base/json.h"
#include "layers/decoder.h"
#include "nibble/result.h"

namespace nibble::models {

// hidden_size, num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim,
// intermediate_size, vocab_size, rms_norm_eps, hidden_act, tie_word_embeddings,
// max_position_embeddings and the rope keys; module names are those of Llama.
Result<layers::DecoderSpec> read_common(const base::Json& config);

// sliding_window (with use_sliding_window and layer_types where they stand) -> spec.windows.
Result<void> read_sliding_window(const base::Json& config, layers::DecoderSpec& spec);

}  // namespace nibble::models
