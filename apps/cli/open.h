// Opening a model with everything a user should see of it: progress, warnings, notes.
#pragma once

#include <string>

#include "cli/interrupt.h"
#include "nibble/nibble.h"

namespace nibble::cli {

// Loads MODEL (a path or a packaged model's name).
Result<Model> open_model(const std::string& model, const Options& options,
                         const CatchInterrupt& interrupt);

// The same for one of two models: errors that an option did not make name it.
Result<Model> open_one_of_two(const std::string& model, const Options& options,
                              const CatchInterrupt& interrupt);

// The model's tokenizer, or the reason why there is none.
Result<const Tokenizer*> tokenizer_of(const Model& model);

}  // namespace nibble::cli
