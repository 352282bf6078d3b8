// For this room's tests: files of torch.save, good and bad, written opcode by opcode.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/test_files.h"
#include "checkpoint/torch_file.h"

namespace nibble::checkpoint {

using Entries = std::vector<std::pair<std::string, std::string>>;

// A zip archive; `zip64` writes sizes and offsets as torch does for large files.
inline std::string zip_bytes(const Entries& entries, bool zip64 = false, uint16_t method = 0) {
  std::string out, directory;
  for (const auto& [name, data] : entries) {
    const auto size = static_cast<uint32_t>(data.size()), at = static_cast<uint32_t>(out.size());
    const std::string wide = raw<uint16_t>(1) + raw<uint16_t>(24) + raw<uint64_t>(size) +
                             raw<uint64_t>(size) + raw<uint64_t>(at);
    const std::string extra = zip64 ? wide : "";
    const uint32_t shown = zip64 ? ~uint32_t{0} : size;
    const std::string common = raw<uint16_t>(20) + raw<uint16_t>(0) + raw(method) +
                               raw<uint32_t>(0) + raw<uint32_t>(0) + raw(shown) + raw(shown) +
                               raw(static_cast<uint16_t>(name.size()));
    directory += std::string("PK\1\2", 4) + raw<uint16_t>(20) + common +
                 raw(static_cast<uint16_t>(extra.size())) + std::string(10, '\0') +
                 raw(zip64 ? ~uint32_t{0} : at) + name + extra;
    out += std::string("PK\3\4", 4) + common + raw<uint16_t>(3) + name + "pad" + data;
  }
  const uint64_t at = out.size(), bytes = directory.size();
  out += directory;
  if (zip64) {
    const uint64_t end = out.size();
    out += std::string("PK\6\6", 4) + raw<uint64_t>(44) + raw<uint32_t>(0) + raw<uint32_t>(0) +
           raw<uint32_t>(0) + raw<uint64_t>(entries.size()) + raw<uint64_t>(entries.size()) +
           raw(bytes) + raw(at) + std::string("PK\6\7", 4) + raw<uint32_t>(0) + raw(end) +
           raw<uint32_t>(1);
  }
  const auto count = static_cast<uint16_t>(zip64 ? 0xffff : entries.size());
  return out + std::string("PK\5\6", 4) + raw<uint32_t>(0) + raw(count) + raw(count) +
         raw(static_cast<uint32_t>(zip64 ? ~uint64_t{0} : bytes)) +
         raw(static_cast<uint32_t>(zip64 ? ~uint64_t{0} : at)) + raw<uint16_t>(0);
}

// --- pieces of a pickle of protocol 2

inline std::string pickled(std::string_view body) { return "\x80\x02" + std::string(body) + "."; }
inline std::string text(std::string_view s) {
  return "X" + raw(static_cast<uint32_t>(s.size())) + std::string(s);
}
inline std::string integer(int32_t v) { return "J" + raw(v); }
inline std::string name_of(std::string_view module, std::string_view name) {
  return "c" + std::string(module) + "\n" + std::string(name) + "\n";
}
inline std::string tuple(const std::vector<int32_t>& values) {
  std::string out = "(";
  for (const int32_t v : values) out += integer(v);
  return out + "t";
}
// {key: value, ...}, each given as its opcodes.
inline std::string dict(const std::vector<std::pair<std::string, std::string>>& items) {
  std::string out = "}(";
  for (const auto& [key, value] : items) out += text(key) + value;
  return out + "u";
}
inline std::string storage(std::string_view type, std::string_view key, int32_t count) {
  return "(" + text("storage") + name_of("torch", type) + text(key) + text("cpu") + integer(count) +
         "tQ";
}
// A tensor over a whole storage of type HalfStorage and its like.
inline std::string pickled_tensor(std::string_view type, std::string_view key, int32_t count,
                                  const std::vector<int32_t>& shape,
                                  const std::vector<int32_t>& strides, int32_t first = 0) {
  return name_of("torch._utils", "_rebuild_tensor_v2") + "(" + storage(type, key, count) +
         integer(first) + tuple(shape) + tuple(strides) + "\x89" +
         name_of("collections", "OrderedDict") + ")RtR";
}

inline std::string torch_bytes(std::string_view pickle, const Entries& storages) {
  Entries entries = {{"archive/data.pkl", pickled(pickle)}, {"archive/byteorder", "little"}};
  for (const auto& [key, data] : storages) entries.emplace_back("archive/data/" + key, data);
  return zip_bytes(entries);
}

// --- reading them

inline Result<TorchHeader> read_torch(const std::string& bytes) {
  return read_torch_file(
      [&](uint64_t offset, std::byte* out, uint64_t count) -> Result<void> {
        EXPECT_LE(offset + count, bytes.size());
        std::memcpy(out, bytes.data() + offset, count);
        return {};
      },
      bytes.size(), "m.bin");
}
inline std::string error_of(const std::string& bytes) {
  const auto header = read_torch(bytes);
  return header ? "no error" : header.error().message;
}
inline std::string error_of_pickle(const std::string& pickle) {
  return error_of(torch_bytes(pickle, {{"0", "abcdefgh"}}));
}

}  // namespace nibble::checkpoint
