// A hash map from names that someone else owns.
#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <string_view>
#include <unordered_map>

namespace nibble::checkpoint {

// Names come from files: with a fixed hash, a file could choose names that all collide and make
// loading quadratic. So the hash is keyed with a number drawn once per process.
struct NameHash {
  size_t operator()(std::string_view name) const noexcept {
    static const uint64_t key = (uint64_t{std::random_device{}()} << 32) | std::random_device{}();
    uint64_t h = key ^ name.size();
    const char* at = name.data();
    size_t left = name.size();
    for (; left >= 8; at += 8, left -= 8) h = mix(h, word(at, 8), key);
    return static_cast<size_t>(mix(h, word(at, left), key));
  }

 private:
  static uint64_t word(const char* at, size_t bytes) noexcept {
    uint64_t out = 0;
    if (bytes != 0) std::memcpy(&out, at, bytes);
    return out;
  }
  // The two halves of a 128-bit product, folded: every bit of the input reaches every bit of it.
  static uint64_t mix(uint64_t h, uint64_t v, uint64_t key) noexcept {
    __extension__ using Wide = unsigned __int128;
    const Wide product = static_cast<Wide>(h ^ v ^ 0x9e3779b97f4a7c15u) * ((key ^ (h << 1)) | 1);
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  }
};

template <class Value>
using NameMap = std::unordered_map<std::string_view, Value, NameHash>;

}  // namespace nibble::checkpoint
