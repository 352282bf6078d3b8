// Which files of a folder are the model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/index.h"
#include "nibble/result.h"

namespace nibble::checkpoint {

// kTorch: what torch.save writes, *.bin and *.pt.
enum class CheckpointKind : uint8_t { kSafetensors, kGguf, kTorch };

// What to open. Paths are relative to `folder`.
struct WeightFiles {
  std::string folder;  // "" for the current one, else ends in '/'
  CheckpointKind kind = CheckpointKind::kSafetensors;
  std::vector<std::string> files;   // in the order of their numbers, or sorted
  std::string index_name;           // "" when there is no index
  std::optional<ShardIndex> index;  // then `files` are its shards
  std::vector<std::string> notes;   // what was passed over, and why
  std::vector<std::string> warnings;
};

// `path` is a folder, or a GGUF file (any shard of a split one). docs/checkpoint.md has the rules.
Result<WeightFiles> find_weight_files(const std::string& path);

// A name that ends in -00002-of-00003 (before its extension).
struct ShardName {
  std::string stem;       // what stands before
  std::string extension;  // ".gguf", ".safetensors"
  int number = 0;         // 2
  int count = 0;          // 3
  std::string sibling(int n) const;
};
std::optional<ShardName> parse_shard_name(std::string_view name);

// A whole file as text, at most `limit` bytes; Git LFS pointers and web pages are refused.
Result<std::string> read_text(const std::string& path, const std::string& name, uint64_t limit);

}  // namespace nibble::checkpoint
