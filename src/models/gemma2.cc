// Gemma 2: norms before and after both blocks, soft caps on the scores and the logits, a sliding
// window in every other layer.
//
//   x += p1(o(attention(rope(q(n1 x)), rope(k(n1 x)), v(n1 x))))     scores: 50 tanh(s / 50)
//   x += p2(down(gelu_tanh(gate(n2 x)) * up(n2 x)))                  logits: 30 tanh(y / 30)
#include "models/architecture.h"
#include "models/config.h"
#include "models/gemma.h"

namespace nibble::models {

Result<layers::DecoderSpec> gemma2(const base::Json& config) {
  NIBBLE_ASSIGN(layers::DecoderSpec spec,
                read_common(config, {.activation_key = "hidden_activation",
                                     .vocab = 256000,
                                     .kv_heads = 4,
                                     .head_dim = 256,
                                     .heads = 8,
                                     .max_positions = 8192,
                                     .activation = "gelu_pytorch_tanh",
                                     .tied = true}));
  NIBBLE_TRY(be_gemma2(config, 30, spec));
  NIBBLE_ASSIGN(spec.attention_soft_cap, get_soft_cap(config, "attn_logit_softcapping", 50));
  NIBBLE_ASSIGN(const int64_t window, get_size_or(config, "sliding_window", 4096));
  NIBBLE_TRY(read_layer_types(config, spec, window, [](int64_t layer) { return layer % 2 == 0; }));
  return spec;
}

}  // namespace nibble::models
