#include "layers/linear.h"

#include "base/check.h"
#include "kernels/activation/activation.h"

namespace nibble::layers {

namespace {

constexpr size_t kMost = 4;  // q, k, v and one to spare

}  // namespace

kernels::Held held_for(const device::Stream& stream, std::initializer_list<const Linear*> readers,
                       int64_t m) {
  const kernels::PackedWeight* weights[kMost];
  size_t count = 0;
  for (const Linear* linear : readers) {
    if (linear->n() == 0) continue;
    NIBBLE_CHECK(count < kMost);
    weights[count++] = &linear->weight;
  }
  return kernels::held_for(stream, {weights, count}, m);
}

void apply(device::Stream& stream, std::span<const LinearOutput> outputs, kernels::ConstRows x,
           int64_t ldx, int64_t m) {
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
