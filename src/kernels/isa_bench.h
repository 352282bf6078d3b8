// A benchmark's first argument is the ISA, as a number of device::Isa; absent ones say so.
#pragma once

#include <benchmark/benchmark.h>

#include <random>
#include <vector>

#include "device/hardware.h"
#include "kernels/ops.h"

namespace nibble::kernels {

inline bool has_isa(benchmark::State& state) {
  const auto isa = static_cast<device::Isa>(state.range(0));
  state.SetLabel(device::name(isa));
  if (device::detect_hardware().has(isa)) return true;
  state.SkipWithError("this machine has not this ISA");
  return false;
}

inline std::vector<float> bench_floats(int64_t n) {
  std::mt19937 engine(1);
  std::normal_distribution<float> distribution;
  std::vector<float> v(static_cast<size_t>(n));
  for (float& x : v) x = distribution(engine);
  return v;
}

}  // namespace nibble::kernels
