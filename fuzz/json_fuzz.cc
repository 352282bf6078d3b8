#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  auto json = nibble::base::parse_json(text, "fuzz.json");
  if (json) {
    // What was read must be writable and readable again.
    if (!nibble::base::parse_json(json->dump(), "again.json")) __builtin_trap();
  }
  return 0;
}
