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
  int64_t l2_bytes = 0;
  bool present = true;  // false: only asked about

  bool at_least(int wanted_major, int wanted_minor) const {
    return major != wanted_major ? major > wanted_major : minor >= wanted_minor;
  }
};

// What `inspect --device cuda` answers for where there is no card.
Gpu gpu_h200();

// An error for cards older than Turing (compute capability 7.5), by name.
Result<void> check_supported(const Gpu& gpu);

}  // namespace nibble::device
