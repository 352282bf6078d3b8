#include "kernels/matmul/prepare.h"

#include <algorithm>
#include <cstring>

#include "kernels/quantize/quantize.h"

namespace nibble::kernels {
namespace {

// One token as the checkpoint wants it, padded with zeros.
void transform_row(const PackedWeight& w, const float* x, int64_t k, int64_t k_pad, float* out) {
  std::fill(out + k, out + k_pad, 0.0f);
  if (w.input_factor.empty()) {
    std::copy(x, x + k, out);
  } else {
    for (int64_t i = 0; i < k; ++i) out[i] = x[i] * w.input_factor[static_cast<size_t>(i)];
  }
  quantize_activation(w.problem.activation, w.input_scale, w.input_zero, out, k, out);
}

void gather(const std::vector<int32_t>& order, const float* x, float* out) {
  for (size_t i = 0; i < order.size(); ++i) out[i] = x[order[i]];
}

}  // namespace

bool same_preparation(const Request& a, const Request& b) {
  return a.kernel->form == b.kernel->form && a.kernel->rows == b.kernel->rows &&
         a.layout->unit == b.layout->unit && a.layout->k_pad == b.layout->k_pad &&
         a.layout->k == b.layout->k &&
         a.weight->problem.activation == b.weight->problem.activation &&
         a.weight->input_scale == b.weight->input_scale &&
         a.weight->input_zero == b.weight->input_zero && a.weight->order == b.weight->order &&
         a.weight->input_factor == b.weight->input_factor;
}

Activations prepare(device::Stream& stream, int slot, const Request& request, const float* x,
                    int64_t ldx, int64_t m) {
  const Layout& l = *request.layout;
  const PackedWeight& w = *request.weight;
  Activations out;
  out.form = request.kernel->form;
  out.m = m;
  out.rows = request.kernel->rows;
  out.k_pad = std::max(l.k, l.k_pad);
  out.token_bytes = out.k_pad * 4;
  float* rows = stream.scratch_of<float>(slot, m * out.k_pad);
  float* spare = stream.scratch_of<float>(slot + 1, stream.threads() * out.k_pad);
  stream.pool().parallel_for(m, 8, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t i = begin; i < end; ++i) {
      float* row = rows + i * out.k_pad;
      if (w.order.empty()) {
        transform_row(w, x + i * ldx, l.k, out.k_pad, row);
      } else {
        float* unordered = spare + worker * out.k_pad;
        transform_row(w, x + i * ldx, l.k, out.k_pad, unordered);
        std::fill(row + l.k, row + out.k_pad, 0.0f);
        gather(w.order, unordered, row);
      }
    }
  });
  out.data = reinterpret_cast<const std::byte*>(rows);
  return out;
}

}  // namespace nibble::kernels
