// What a GGUF file says in its own words, as the keys of config.json and the parts of a decoder.
#pragma once

#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "layers/decoder.h"
#include "nibble/result.h"

namespace nibble::load {

// `general.architecture` and its hyper-parameters as a config.json would spell them, so that a
// model is declared once for both kinds of file. Error: an architecture without such a mapping.
Result<base::Json> config_from_gguf(const checkpoint::Checkpoint& checkpoint);

// "blk.{}.attn_q" and so on (the names of gguf's constants.py, tensor_mapping for LLM_ARCH llama).
layers::PartNames gguf_part_names();

// The GGUF name of a module that is called by its Hugging Face name, or the name itself.
std::string gguf_module_name(std::string_view module);

}  // namespace nibble::load
