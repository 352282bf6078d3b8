// What the modules of a decoder are called in a GGUF file.
#pragma once

#include <string>
#include <string_view>

#include "checkpoint/checkpoint.h"
#include "layers/decoder.h"

namespace nibble::load {

// Renames the parts of `spec`: "blk.{}.attn_q" and so on (gguf's constants.py). Whether q, k and v
// are one tensor is the file's choice, so the stored names decide. Norm weights hold w itself.
void use_gguf_names(const checkpoint::Checkpoint& checkpoint, layers::DecoderSpec& spec);

// The GGUF name of a module that is called by its Hugging Face name, or the name itself.
std::string gguf_module_name(std::string_view module);

}  // namespace nibble::load
