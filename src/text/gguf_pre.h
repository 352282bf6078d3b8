// The names that GGUF files give to ways of cutting words (tokenizer.ggml.pre).
#pragma once

#include <string_view>
#include <vector>

namespace nibble::text {

struct GgufPre {
  std::vector<std::string_view> patterns;  // each isolates its matches, one after the other
  bool ignore_merges = false;
  bool add_bos = false;            // where the file does not say
  bool byte_level = true;          // GPT-2's byte alphabet; else UTF-8 with <0xNN> tokens
  bool escape_whitespace = false;  // spaces become U+2581 first
};

// nullptr for an unknown name.
const GgufPre* find_gguf_pre(std::string_view name);

}  // namespace nibble::text
