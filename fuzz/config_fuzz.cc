#include <cstddef>
#include <cstdint>
#include <string_view>

#include "checkpoint/documents.h"

// The JSON documents of a model folder, and the getters that read them.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto config = nibble::checkpoint::parse_document(text, "config.json");
  if (!config) return 0;
  if (!config->is_object()) __builtin_trap();
  for (const auto& [key, value] : config->as_object()) {
    if (config->find(key) == nullptr) __builtin_trap();
    (void)config->get_int(key);
    (void)config->get_double(key);
    (void)config->get_bool_or(key, false);
    (void)config->get_string(key);
    (void)config->get_strings_or_empty(key);
    (void)value.describe();
  }
  return 0;
}
