// For this room's tests: bytes of files, good and bad, and a folder to put them in.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>

namespace nibble::checkpoint {

inline std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

// The little-endian bytes of a number.
template <class T>
std::string raw(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}

// A safetensors file: the header's length, the header, the data.
inline std::string safetensors_bytes(std::string_view header, std::string_view data = {}) {
  return raw<uint64_t>(header.size()) + std::string(header) + std::string(data);
}

// A safetensors file of u8 tensors of 4 bytes each with these names, in this order.
template <class... Names>
std::string small_safetensors(const Names&... names) {
  std::string header = "{";
  std::string data;
  for (std::string_view name : {std::string_view(names)...}) {
    if (!data.empty()) header += ',';
    header.append("\"").append(name).append(R"(":{"dtype":"U8","shape":[4],"data_offsets":[)");
    header.append(std::to_string(data.size())).append(",");
    header.append(std::to_string(data.size() + 4)).append("]}");
    data += "abcd";
  }
  return safetensors_bytes(header + "}", data);
}

// A folder that is gone when the test ends.
class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "nibble-test-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) std::abort();
    path_ = name;
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::string& path() const { return path_; }
  std::string at(std::string_view name) const { return path_ + "/" + std::string(name); }
  TempFolder& write(std::string_view name, std::string_view bytes) {
    std::filesystem::create_directories(std::filesystem::path(at(name)).parent_path());
    std::ofstream(at(name), std::ios::binary) << bytes;
    return *this;
  }

 private:
  std::string path_;
};

}  // namespace nibble::checkpoint
