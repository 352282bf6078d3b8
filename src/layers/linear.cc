#include "layers/linear.h"

#include "base/check.h"

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
  for (const LinearOutput& out : outputs) {
    const std::vector<float>& bias = out.linear->bias;
    if (bias.empty()) continue;
    for (int64_t row = 0; row < m; ++row) {
      float* y = out.y + row * out.ldy;
      for (size_t n = 0; n < bias.size(); ++n) y[n] += bias[n];
    }
  }
}

void embed(const kernels::PackedWeight& table, std::span<const int32_t> tokens, float* out) {
  for (int32_t token : tokens) {
    kernels::unpack_row(table, token, out);
    out += table.problem.k;
  }
}

}  // namespace nibble::layers
