// What the Gemma families share.
#pragma once

#include "base/json.h"
#include "layers/decoder.h"
#include "nibble/result.h"

namespace nibble::models {

// (1 + w) norms, embeddings times sqrt(hidden), and a refusal of use_bidirectional_attention.
Result<void> be_gemma(const base::Json& config, layers::DecoderSpec& spec);

// Gemma 2 and 3: norms around both blocks, query_pre_attn_scalar, final_logit_softcapping
// (`cap` when absent).
Result<void> be_gemma2(const base::Json& config, float cap, layers::DecoderSpec& spec);

// Gemma 3's text model, of its own config or of a wrapper's text_config.
Result<layers::DecoderSpec> gemma3(const base::Json& config);

// A soft cap; 0 when the key is null.
Result<float> get_soft_cap(const base::Json& config, std::string_view key, float fallback);

}  // namespace nibble::models
