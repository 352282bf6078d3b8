// A test that runs once for each ISA with files of its own, and is skipped where the machine has it
// not.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "device/hardware.h"
#include "kernels/ops.h"

namespace nibble::kernels {

constexpr float kUnit = 0x1p-24f;  // half the distance from 1 to the next float32

class IsaTest : public testing::TestWithParam<device::Isa> {
 protected:
  void SetUp() override {
    if (!device::detect_hardware().has(GetParam())) {
      GTEST_SKIP() << "this machine has no " << device::name(GetParam());
    }
    ops_ = ops_for(GetParam());
  }
  Ops ops_;
};

inline std::string isa_name(const testing::TestParamInfo<device::Isa>& info) {
  return device::name(info.param);
}

#define NIBBLE_FOR_ISAS(suite)                                                                    \
  INSTANTIATE_TEST_SUITE_P(isa, suite, testing::Values(device::Isa::kAvx2, device::Isa::kAvx512), \
                           isa_name)

// Normal numbers from a fixed seed.
inline std::vector<float> normal_floats(size_t n, uint32_t seed, float scale = 1.0f) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> distribution(0.0f, scale);
  std::vector<float> v(n);
  for (float& x : v) x = distribution(engine);
  return v;
}

}  // namespace nibble::kernels
