// What this machine gives: bytes read per second and arithmetic per second, measured. A benchmark
// takes these in the same run as its kernels, and reports a fraction of them.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "device/hardware.h"
#include "device/stream.h"
#include "nibble/result.h"

namespace nibble::kernels {

// Bytes of main memory (or of the last cache, where it is larger than the test) read per second by
// all threads of the stream, each over its own part of one large buffer: the best of several
// passes.
Result<double> measure_read(device::Stream& stream, const device::Hardware& hardware);

// Operations (a multiply and an add count as two) per second of all threads together.
struct Peak {
  std::string_view unit;  // "f32", "s8", "bf16"
  double per_second;
};
std::vector<Peak> measure_peaks(device::Stream& stream, const device::Hardware& hardware);

// One loop of one ISA. `read` returns a value that depends on every byte, so that nothing is
// removed; each `ops_...` runs `rounds` rounds and returns the operations done, its result in
// *sink.
struct ProbeOps {
  uint64_t (*read)(const std::byte* data, int64_t bytes) noexcept;
  int64_t (*f32)(int64_t rounds, float* sink) noexcept;
  int64_t (*s8)(int64_t rounds, float* sink) noexcept;    // null: no such unit
  int64_t (*bf16)(int64_t rounds, float* sink) noexcept;  // null: no such unit
};
extern const ProbeOps kProbeReference;
extern const ProbeOps kProbeAvx2;
extern const ProbeOps kProbeAvx512;
extern const ProbeOps kProbeAvx512Bf16;

}  // namespace nibble::kernels
