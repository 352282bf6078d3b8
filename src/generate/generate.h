// Tokens out of a sequence: sampling, where to stop, text as it becomes final.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "generate/sequence.h"
#include "kernels/sample/sample.h"
#include "nibble/result.h"
#include "text/tokenizer.h"

namespace nibble::generate {

struct GenerateSettings {
  int64_t max_tokens = -1;  // -1: until the model stops or the context is full
  kernels::SampleSettings sample;
  std::vector<int32_t> eos;       // any of them ends
  std::vector<std::string> stop;  // text that ends, and is not part of the output
};

enum class Finish { kEos, kStopString, kLength, kContext, kCancelled };

struct Generation {
  std::string text;
  std::vector<int32_t> tokens;  // without the EOS that ended them
  Finish finish = Finish::kLength;
  double prompt_seconds = 0;    // until the first logits
  double generate_seconds = 0;  // from there
};

// Return false to stop.
using TextSink = std::function<bool(std::string_view)>;

// Appends `prompt` (not empty, unless the sequence already has logits) and generates. Without a
// tokenizer no text is made and stop strings are an error.
Result<Generation> generate(Sequence& sequence, const text::Tokenizer* tokenizer,
                            std::span<const int32_t> prompt, const GenerateSettings& settings,
                            const TextSink& on_text, const PromptProgress& progress);

}  // namespace nibble::generate
