// model.safetensors.index.json, pytorch_model.bin.index.json: which shard holds which tensor.
//
//   {"metadata": {"total_size": 269060552},
//    "weight_map": {"lm_head.weight": "model-00002-of-00002.safetensors", ...}}
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nibble/result.h"

namespace nibble::checkpoint {

struct ShardIndex {
  std::vector<std::string> shards;  // sorted, each once; paths relative to the folder
  std::vector<std::pair<std::string, uint32_t>> tensors;  // name -> shards[...], in file order
  std::optional<double> total_size;  // bytes of all tensors, as the index claims
};

// Checks the document: its types, that every shard's path has this ending and stays in the folder
// by its text (what a link in the folder points to is the folder owner's business: hub caches are
// made of links).
Result<ShardIndex> parse_shard_index(std::string_view text, std::string_view where,
                                     std::string_view ending = ".safetensors");

}  // namespace nibble::checkpoint
