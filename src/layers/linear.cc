#include "layers/linear.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "kernels/activation/activation.h"

namespace nibble::layers {

namespace {

constexpr size_t kMost = 4;  // q, k, v and one to spare

// Of the layers that there are.
struct Weights {
  explicit Weights(std::initializer_list<const Linear*> linears) {
    for (const Linear* linear : linears) {
      if (linear->n() == 0) continue;
      NIBBLE_CHECK(count < kMost);
      weight[count++] = &linear->weight;
    }
  }
  std::span<const kernels::PackedWeight* const> all() const { return {weight, count}; }

  const kernels::PackedWeight* weight[kMost];
  size_t count = 0;
};

}  // namespace

kernels::Held held_for(const device::Stream& stream, std::initializer_list<const Linear*> readers,
                       int64_t m) {
  return kernels::held_for(stream, Weights(readers).all(), m);
}

kernels::Held held_by(const device::Stream& stream, std::initializer_list<const Linear*> writers,
                      int64_t m) {
  const bool biased = std::any_of(writers.begin(), writers.end(),
                                  [](const Linear* linear) { return !linear->bias.empty(); });
  if (biased) return kernels::Held::kF32;  // biases are added to floats
  return kernels::held_by(stream, Weights(writers).all(), m);
}

bool can_add(const device::Stream& stream, const Linear& linear, int64_t m) {
  return kernels::can_add(stream, linear.weight, m);
}

void apply(device::Stream& stream, std::span<const LinearOutput> outputs, kernels::ConstRows x,
           int64_t ldx, int64_t m) {
  NIBBLE_CHECK(outputs.size() <= kMost);
  std::vector<kernels::RowsTarget> targets;
  for (const LinearOutput& out : outputs) {
    targets.push_back({&out.linear->weight, out.y, out.ldy, out.add});
  }
  kernels::matmul(stream, targets, x, ldx, m);
  kernels::Bias biases[kMost];
  size_t count = 0;
  for (const LinearOutput& out : outputs) {
    const device::Floats& bias = out.linear->bias;
    if (!bias.empty()) biases[count++] = {bias.data(), out.y.f32(), out.ldy, out.linear->n()};
  }
  kernels::add_biases(stream, {biases, count}, m);
}

}  // namespace nibble::layers
