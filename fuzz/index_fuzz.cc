#include <cstddef>
#include <cstdint>
#include <string_view>

#include "checkpoint/index.h"

// What is accepted names files inside the folder, and every tensor one of them.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto index = nibble::checkpoint::parse_shard_index(text, "i.json");
  if (!index) return 0;
  for (const std::string& shard : index->shards) {
    if (shard.empty() || shard[0] == '/' || shard.find("../") == 0) __builtin_trap();
    if (shard.find("/../") != shard.npos || shard.find('\0') != shard.npos) __builtin_trap();
  }
  for (const auto& [name, shard] : index->tensors) {
    if (shard >= index->shards.size()) __builtin_trap();
  }
  return 0;
}
