// Gemma 3 from 4B on: a text model (config.json: text_config) behind an image encoder. nibble runs
// the text model.
#include <fmt/format.h>

#include "models/architecture.h"
#include "models/config.h"
#include "models/gemma.h"

namespace nibble::models {

Result<layers::DecoderSpec> gemma3_with_images(const base::Json& config) {
  NIBBLE_ASSIGN(base::Json text, object_or_empty(config, "text_config"));
  // The wrapper's own key outranks what text_config repeats.
  if (const base::Json* tied = config.find_set("tie_word_embeddings"); tied != nullptr) {
    text.set("tie_word_embeddings", *tied);
  }
  text.set_where(config.where() + ": text_config");
  NIBBLE_ASSIGN(layers::DecoderSpec spec, gemma3(text));
  for (const char* part : {"vision_tower", "multi_modal_projector"}) {
    spec.unused.emplace_back(part, "for images; nibble runs the text model");
  }
  return spec;
}

}  // namespace nibble::models
