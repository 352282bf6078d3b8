// SHA-256 (FIPS 180-4), for the checksums that hubs keep of large files.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace nibble::base {

class Sha256 {
 public:
  void update(std::span<const std::byte> bytes);
  // The digest of all that came so far as 64 lower-case hexadecimal digits. Ends the object's use.
  std::string hex();

 private:
  void block(const uint8_t* bytes);

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> held_;  // the begin of a block that is not full yet
  size_t held_bytes_ = 0;
  uint64_t total_ = 0;
};

}  // namespace nibble::base
