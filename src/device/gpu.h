// A graphics card as a value: like Hardware, it can describe one that nobody here owns.
#pragma once

#include <cstdint>
#include <string>

#include "nibble/result.h"

namespace nibble::device {

struct Gpu {
  std::string name;  // "NVIDIA H200"
  int major = 0;     // compute capability
  int minor = 0;
  int multiprocessors = 0;
  int64_t memory_bytes = 0;
  int64_t free_bytes = 0;  // of it; what others hold was asked for when the card was chosen
  int64_t l2_bytes = 0;
  bool present = true;  // false: only asked about

  bool at_least(int wanted_major, int wanted_minor) const {
    return major != wanted_major ? major > wanted_major : minor >= wanted_minor;
  }
};

// What `inspect --device cuda` answers for where there is no card.
Gpu gpu_h200();

// What an allocation takes of a card's memory: above 1 MiB whole pieces of 2 MiB.
int64_t card_bytes(int64_t bytes);

// An error for cards older than Turing (compute capability 7.5), by name.
Result<void> check_supported(const Gpu& gpu);

}  // namespace nibble::device
