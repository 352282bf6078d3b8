// What this machine can do at most, measured: the yardstick of matmul_bench, in the same run.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/stream.h"

namespace nibble::kernels {

// Bytes a second that all threads of the stream read from `bytes` of memory.
double read_bandwidth(device::Stream& stream, const std::byte* data, int64_t bytes);

// Multiply-adds a second of all threads of the stream in registers.
enum class Unit { kFma256, kMadd256, kFma512, kDpwssd512, kDpbusd512, kBf16Dot512 };
double peak(device::Stream& stream, Unit unit);

}  // namespace nibble::kernels
