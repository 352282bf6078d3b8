// The small JSON documents of a model folder.
#pragma once

#include <string_view>

#include "base/json.h"
#include "nibble/result.h"

namespace nibble::checkpoint {

constexpr uint64_t kMaxDocumentBytes = uint64_t{32} << 20;

// Parses one document: a JSON object, not a Git LFS pointer or web page in its place.
Result<base::Json> parse_document(std::string_view text, std::string_view name);

}  // namespace nibble::checkpoint
