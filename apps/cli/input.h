// What a command reads besides the model: texts, token lists, files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/result.h"

namespace nibble::cli {

Result<std::string> read_stdin();
// "-" is stdin.
Result<std::string> read_text_file(const std::string& path);

// Text for a model is UTF-8; the error begins with `what`.
Result<void> check_utf8(std::string_view text, std::string_view what);

// --out and --json cannot both have stdout.
Result<void> check_out(std::string_view out, bool json);

// "1,2,3": whole numbers from 0, parted by a comma or blanks. `option` stands in the error.
Result<std::vector<int32_t>> parse_tokens(std::string_view text, std::string_view option);

// Every id below `vocab_size`.
Result<void> check_tokens(const std::vector<int32_t>& tokens, int64_t vocab_size);

}  // namespace nibble::cli
