#include "kernels/matmul/prepare.h"

#include <algorithm>

#include "kernels/matmul/avx2.h"
#include "kernels/quantize/quantize.h"

namespace nibble::kernels {
namespace {

int64_t round_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

// Tokens a block when none may have more than `most`: blocks of equal size, not 14 + 2.
int64_t even_rows(int64_t m, int64_t most) {
  const int64_t blocks = (m + most - 1) / most;
  return (m + blocks - 1) / blocks;
}

// One token as the checkpoint wants it, in the order of the stored codes, padded with zeros.
// `spare` has k elements.
void transform_row(const PackedWeight& w, const float* x, int64_t k, int64_t k_pad, float* spare,
                   float* out) {
  float* to = w.order.empty() ? out : spare;
  if (w.input_factor.empty()) {
    std::copy(x, x + k, to);
  } else {
    for (int64_t i = 0; i < k; ++i) to[i] = x[i] * w.input_factor[static_cast<size_t>(i)];
  }
  quantize_activation(w.problem.activation, w.input_scale, w.input_zero, to, k, to);
  for (size_t i = 0; i < w.order.size(); ++i) out[i] = spare[w.order[i]];
  std::fill(out + k, out + k_pad, 0.0f);
}

// The parts of a preparation, one after another in a scratch slot, each on its own cache lines.
struct Storage {
  Storage(const Activations& x, int64_t m, bool integers) {
    data_bytes = round_up(m * x.token_bytes, 64);
    unit_bytes = integers ? round_up(m * x.units * 4, 64) : 0;
  }
  int64_t data_bytes;
  int64_t unit_bytes;
  int64_t bytes() const { return data_bytes + 3 * unit_bytes; }
};

int64_t token_bytes_of(Form form, int64_t k_pad) {
  return holds_integers(form) ? 2 * k_pad : 4 * k_pad;
}

// Writes token r of a block of `rows`, given as padded f32.
struct Writer {
  const Activations& x;
  int64_t unit;
  std::byte* data;
  float* scale;
  int32_t* sum;
  float* scaled_sum;

  void write(int64_t m, const float* row, int16_t* q) const {
    const int64_t r = m % x.rows;
    const int64_t first = m - r;
    const int64_t rows = std::min(x.rows, x.m - first);
    std::byte* block = data + first * x.token_bytes;
    if (x.form == Form::kRows) {
      std::copy(row, row + x.k_pad, reinterpret_cast<float*>(data + m * x.token_bytes));
    } else if (x.form == Form::kF32Panel) {
      auto* to = reinterpret_cast<float*>(block) + r;
      for (int64_t k = 0; k < x.k_pad; ++k) to[k * rows] = row[k];
    } else {
      const int64_t at = first * x.units + r;
      avx2::quantize_s16(row, x.k_pad, unit, q, scale + at, sum + at, scaled_sum + at, rows);
      if (x.form == Form::kS8Digits) {
        avx2::split_digits(q, x.k_pad, reinterpret_cast<int8_t*>(data + m * x.token_bytes));
      } else {
        avx2::spread_pairs(q, x.k_pad, rows, r, reinterpret_cast<int32_t*>(block));
      }
    }
  }
};

}  // namespace

bool same_preparation(const Request& a, const Request& b) {
  const PackedWeight& v = *a.weight;
  const PackedWeight& w = *b.weight;
  return a.kernel->form == b.kernel->form && a.kernel->rows == b.kernel->rows &&
         a.layout->unit == b.layout->unit && a.layout->k_pad == b.layout->k_pad &&
         a.layout->k == b.layout->k && v.problem.activation == w.problem.activation &&
         v.input_scale == w.input_scale && v.input_zero == w.input_zero && v.order == w.order &&
         v.input_factor == w.input_factor;
}

Activations prepare(device::Stream& stream, int slot, const Request& request, const float* x,
                    int64_t ldx, int64_t m) {
  const Layout& l = *request.layout;
  const PackedWeight& w = *request.weight;
  Activations out;
  out.form = request.kernel->form;
  out.m = m;
  out.rows = even_rows(m, request.kernel->rows);
  out.k_pad = std::max(l.k, l.k_pad);
  out.token_bytes = token_bytes_of(out.form, out.k_pad);
  const bool integers = holds_integers(out.form);
  if (integers) out.units = (out.k_pad + l.unit - 1) / l.unit;

  const Storage storage(out, m, integers);
  std::byte* data = stream.scratch(slot, static_cast<size_t>(storage.bytes()));
  std::byte* units = data + storage.data_bytes;
  const Writer writer{out,
                      l.unit,
                      data,
                      reinterpret_cast<float*>(units),
                      reinterpret_cast<int32_t*>(units + storage.unit_bytes),
                      reinterpret_cast<float*>(units + 2 * storage.unit_bytes)};
  out.data = data;
  out.scale = writer.scale;
  out.sum = writer.sum;
  out.scaled_sum = writer.scaled_sum;

  // A worker's rows: two of f32 (before and after the gather), one of s16.
  const int64_t worker_floats = round_up(2 * out.k_pad + out.k_pad / 2 + 1, 16);
  float* spare = stream.scratch_of<float>(slot + 1, stream.threads() * worker_floats);
  stream.pool().parallel_for(m, out.rows, [&](int64_t begin, int64_t end, int worker) {
    float* row = spare + worker * worker_floats;
    float* unordered = row + out.k_pad;
    auto* q = reinterpret_cast<int16_t*>(unordered + out.k_pad);
    for (int64_t i = begin; i < end; ++i) {
      transform_row(w, x + i * ldx, l.k, out.k_pad, unordered, row);
      writer.write(i, row, q);
    }
  });
  return out;
}

}  // namespace nibble::kernels
