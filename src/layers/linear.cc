#include "layers/linear.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "kernels/activation/activation.h"

namespace nibble::layers {

namespace {

constexpr size_t kMost = std::tuple_size_v<Together>;

// Of the layers that there are.
struct Weights {
  explicit Weights(const Together& linears) {
    for (const Linear* linear : linears) {
      if (linear != nullptr && linear->n() != 0) weight[count++] = &linear->weight;
    }
  }
  std::span<const kernels::PackedWeight* const> all() const { return {weight, count}; }

  const kernels::PackedWeight* weight[kMost];
  size_t count = 0;
};

}  // namespace

kernels::Held held_for(const device::Stream& stream, const Together& readers, int64_t m) {
  return kernels::held_for(stream, Weights(readers).all(), m);
}

kernels::Held held_by(const device::Stream& stream, const Together& writers, int64_t m) {
  const bool biased = std::any_of(writers.begin(), writers.end(), [](const Linear* linear) {
    return linear != nullptr && !linear->bias.empty();
  });
  if (biased) return kernels::Held::kF32;  // biases are added to floats
  return kernels::held_by(stream, Weights(writers).all(), m);
}

bool can_add(const device::Stream& stream, const Linear& linear, int64_t m) {
  return kernels::can_add(stream, linear.weight, m);
}

bool can_split_norm(const device::Stream& stream, const Linear& adds, const Together& readers,
                    int64_t m) {
  return adds.bias.empty() &&
         kernels::can_split_norm(stream, adds.weight, Weights(readers).all(), m);
}

bool can_gate(const device::Stream& stream, const Linear& gate, const Linear& up, int64_t m) {
  if (gate.n() == 0 || !gate.bias.empty() || !up.bias.empty()) return false;
  return kernels::can_gate(stream, gate.weight, up.weight, m);
}

void apply(device::Stream& stream, std::span<const LinearOutput> outputs, kernels::ConstRows x,
           int64_t ldx, int64_t m) {
  NIBBLE_CHECK(outputs.size() <= kMost);
  std::vector<kernels::RowsTarget> targets;
  for (const LinearOutput& out : outputs) {
    NIBBLE_CHECK(out.next.weight == nullptr || out.linear->bias.empty());
    targets.push_back({&out.linear->weight, out.y, out.ldy, out.add, out.next});
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

void apply_gated(device::Stream& stream, const GatedOutput& output, kernels::ConstRows x,
                 int64_t ldx, int64_t m) {
  const GatedOutput& o = output;
  NIBBLE_CHECK(o.gate_layer->bias.empty() && o.up_layer->bias.empty());
  const kernels::GatedTarget target = {.gate_weight = &o.gate_layer->weight,
                                       .up_weight = &o.up_layer->weight,
                                       .function = o.function,
                                       .gate = o.gate,
                                       .up = o.up,
                                       .ld = o.ld,
                                       .y = o.y,
                                       .ldy = o.ldy};
  kernels::matmul_gated(stream, target, x, ldx, m);
}

}  // namespace nibble::layers
