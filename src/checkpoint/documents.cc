#include "checkpoint/documents.h"

#include <fmt/format.h>

#include <span>

#include "checkpoint/file.h"

namespace nibble::checkpoint {

Result<base::Json> parse_document(std::string_view text, std::string_view name) {
  constexpr base::JsonLimits kLimits = {
      .max_depth = 64, .max_bytes = kMaxDocumentBytes, .max_values = size_t{1} << 20};
  NIBBLE_TRY(refuse_placeholder(std::as_bytes(std::span(text)), text.size(), name));
  NIBBLE_ASSIGN(base::Json document, base::parse_json(text, name, kLimits));
  if (!document.is_object()) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: expected a JSON object, found {}", name, document.describe()));
  }
  return document;
}

}  // namespace nibble::checkpoint
