#include "checkpoint/index.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/json.h"
#include "checkpoint/file.h"
#include "checkpoint/name_map.h"

namespace nibble::checkpoint {
namespace {

using base::Json;

// Some 130 bytes and one value a tensor: room for five times the largest models.
constexpr base::JsonLimits kLimits = {
    .max_depth = 8, .max_bytes = size_t{128} << 20, .max_values = size_t{1} << 20};

// Why `path` is no shard inside the folder; "" when it is one.
std::string bad_path(std::string_view path, std::string_view ending) {
  if (path.empty()) return "is empty";
  if (path.front() == '/') return "is absolute";
  if (path.find('\\') != path.npos) return "has a backslash";
  if (path.find('\0') != path.npos) return "has a zero byte";
  for (size_t at = 0; at <= path.size();) {
    const size_t end = std::min(path.find('/', at), path.size());
    if (path.substr(at, end - at) == "..") return "leaves the folder";
    at = end + 1;
  }
  if (!path.ends_with(ending)) return fmt::format("is no {} file", ending);
  return {};
}

}  // namespace

Result<ShardIndex> parse_shard_index(std::string_view text, std::string_view where,
                                     std::string_view ending) {
  NIBBLE_ASSIGN(const Json document, base::parse_json(text, where, kLimits));
  if (!document.is_object()) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: expected a JSON object, found {}", where, document.describe()));
  }
  const Json* map = document.find("weight_map");
  if (map == nullptr || !map->is_object()) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: weight_map: expected an object of tensor names, found {}", where,
                            map == nullptr ? "nothing" : map->describe()));
  }
  ShardIndex index;
  const Json* metadata = document.find("metadata");
  const Json* total = metadata == nullptr ? nullptr : metadata->find("total_size");
  if (total != nullptr && total->is_number()) index.total_size = total->as_double();

  NameMap<uint32_t> numbers;  // views into the document
  for (const auto& [name, shard] : map->as_object()) {
    if (!shard.is_string()) {
      return fail(ErrorCode::kCorrupt, fmt::format("{}: {}: expected the name of a file, found {}",
                                                   where, shown(name), shard.describe()));
    }
    if (numbers.emplace(shard.as_string(), 0).second) {
      const std::string problem = bad_path(shard.as_string(), ending);
      if (!problem.empty()) {
        return fail(
            ErrorCode::kCorrupt,
            fmt::format("{}: {}: the shard's path \"{}\" {}; shards are {} files inside the "
                        "folder",
                        where, shown(name), shown(shard.as_string()), problem, ending));
      }
      index.shards.push_back(shard.as_string());
    }
  }
  if (index.shards.empty()) {
    return fail(ErrorCode::kCorrupt, fmt::format("{}: weight_map is empty", where));
  }
  std::sort(index.shards.begin(), index.shards.end());
  for (size_t i = 0; i < index.shards.size(); ++i) {
    numbers[index.shards[i]] = static_cast<uint32_t>(i);
  }
  index.tensors.reserve(map->as_object().size());
  for (const auto& [name, shard] : map->as_object()) {
    index.tensors.emplace_back(name, numbers[shard.as_string()]);
  }
  return index;
}

}  // namespace nibble::checkpoint
