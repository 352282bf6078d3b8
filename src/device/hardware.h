// What a machine can do, as a value: the chooser takes one, so that it can be asked about machines
// nobody here owns.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "device/gpu.h"

namespace nibble::device {

// The CPU paths a user may force with --isa, weakest first.
enum class Isa : uint8_t {
  kReference,  // plain C++
  kAvx2,       // AVX2, FMA, F16C
  kAvx512,     // AVX-512 F, BW, VL, DQ, VNNI (BF16 is used where present)
  kAmx,        // kAvx512 and AMX tiles, int8 and bf16
};
const char* name(Isa isa);  // "avx512"

struct Hardware {
  std::string cpu_model;
  bool avx2 = false;      // with FMA and F16C, enabled by the operating system
  bool avx_vnni = false;  // the 256-bit VEX form
  bool avx512 = false;    // F, BW, VL, DQ and VNNI
  bool avx512_bf16 = false;
  bool avx512_vbmi = false;
  bool amx = false;      // tile, int8, bf16, and the permission to use them
  int cores = 1;         // physical cores this process may use
  int64_t l2_bytes = 0;  // per core
  int64_t l3_bytes = 0;
  int64_t memory_bytes = 0;
  std::optional<Gpu> gpu;  // the card that a model is to run on; detect_hardware() looks for none

  bool has(Isa isa) const;
  Isa best_isa() const;
};

// This machine: CPUID, XGETBV, the AMX permission (asked for once), affinity mask and cgroup quota.
Hardware detect_hardware();

// The machines that tests and `inspect --isa` ask about.
Hardware hardware_with(Isa isa);

}  // namespace nibble::device
