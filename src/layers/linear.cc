#include "layers/linear.h"

#include "base/check.h"
#include "kernels/activation/activation.h"

namespace nibble::layers {

void apply(device::Stream& stream, std::span<const LinearOutput> outputs, const float* x,
           int64_t ldx, int64_t m) {
  constexpr size_t kMost = 4;  // q, k, v and one to spare
  NIBBLE_CHECK(outputs.size() <= kMost);
  kernels::MatmulTarget targets[kMost];
  for (size_t i = 0; i < outputs.size(); ++i) {
    targets[i] = {&outputs[i].linear->weight, outputs[i].y, outputs[i].ldy};
  }
  kernels::matmul(stream, {targets, outputs.size()}, x, ldx, m);
  kernels::Bias biases[kMost];
  size_t count = 0;
  for (const LinearOutput& out : outputs) {
    const device::Floats& bias = out.linear->bias;
    if (!bias.empty()) biases[count++] = {bias.data(), out.y, out.ldy, out.linear->n()};
  }
  kernels::add_biases(stream, {biases, count}, m);
}

}  // namespace nibble::layers
