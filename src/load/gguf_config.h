// What a GGUF file says in its own words, as the keys of config.json.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "kernels/rope/rope.h"
#include "nibble/result.h"

namespace nibble::load {

struct GgufConfig {
  base::Json config;
  // llama.cpp stores the rows of q and k of some architectures so that neighbours turn together.
  kernels::PairOrder order = kernels::PairOrder::kHalves;
  std::vector<std::string> warnings;  // keys that are not known and were not used
};

// `general.architecture` and its hyper-parameters as a config.json would spell them, so that a
// model is declared once for both kinds of file. Errors: an architecture without such a mapping;
// a key that is missing; a key that asks for something nibble does not compute.
Result<GgufConfig> config_from_gguf(const checkpoint::Checkpoint& checkpoint);

// A message about the keys of such a config in the words of the file it came from:
// "hidden_size" becomes "llama.embedding_length".
std::string in_gguf_words(const checkpoint::Checkpoint& checkpoint, std::string message);

}  // namespace nibble::load
