// Phi 3, 3.5 and 4 (mini and medium): Llama with q, k, v in one tensor and gate, up in one tensor,
// a part of each head turned, and "longrope" for the long contexts.
//
//   qkv_proj      (q + k + v, hidden)   rows: all of q, all of k, all of v
//   gate_up_proj  (2 ffn, hidden)       rows: gate, up
#include <fmt/format.h>

#include "models/architecture.h"
#include "models/config.h"

namespace nibble::models {

using layers::Part;

Result<layers::DecoderSpec> phi3(const base::Json& config) {
  NIBBLE_ASSIGN(layers::DecoderSpec spec, read_common(config, {.partial_rotary = true,
                                                               .yarn_is_longrope = true,
                                                               .vocab = 32064,
                                                               .max_positions = 4096,
                                                               .original_positions = 4096,
                                                               .norm_eps = 1e-5}));
  if (spec.rope.type != kernels::RopeType::kDefault &&
      spec.rope.type != kernels::RopeType::kLongRope) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("{}: rope_scaling: expected the type longrope (or none) for this model",
                            config.where()));
  }
  if (config.find_set("sliding_window") != nullptr) {
    NIBBLE_ASSIGN(const int64_t window, get_size_or(config, "sliding_window", 0));
    same_window(spec, window);
  }
  for (Part separate : {Part::kQ, Part::kK, Part::kV, Part::kGate, Part::kUp}) {
    spec.names[separate].clear();
  }
  spec.names[Part::kQkv] = "model.layers.{}.self_attn.qkv_proj";
  spec.names[Part::kGateUp] = "model.layers.{}.mlp.gate_up_proj";
  return spec;
}

}  // namespace nibble::models
