#include "kernels/matmul/prepare.h"

#include <algorithm>
#include <vector>

#include "kernels/hadamard/hadamard.h"
#include "kernels/matmul/avx2.h"
#include "kernels/quantize/quantize.h"
#include "kernels/quantize/round.h"

namespace nibble::kernels {
namespace {

// Tokens a block when none may have more than `most`: blocks of equal size, not 14 + 2.
int64_t even_rows(int64_t m, int64_t most) {
  const int64_t blocks = (m + most - 1) / most;
  return (m + blocks - 1) / blocks;
}

// The grid of a call: the checkpoint's, or what was found over all of its tokens.
struct CallGrid {
  tensor::ActivationFormat format;
  float scale, zero;
  std::vector<uint8_t> kept;  // columns of outliers; empty: a token's own
};

// One token multiplied by the input factor and rotated, in `to`; x itself where neither is asked.
const float* turned(const PackedWeight& w, const float* x, int64_t k, float* to) {
  if (w.input_factor.empty() && w.input_hadamard == 0) return x;
  if (w.input_factor.empty()) {
    std::copy(x, x + k, to);
  } else {
    for (int64_t i = 0; i < k; ++i) to[i] = x[i] * w.input_factor[static_cast<size_t>(i)];
  }
  if (w.input_hadamard != 0) hadamard(to, k, w.input_hadamard);
  return to;
}

// One token as the checkpoint wants it, in the order of the stored codes, padded with zeros: x
// itself when it is that already, else `out`. `spare` has k elements. With `integers` the token is
// not quantized yet.
const float* transform_row(const PackedWeight& w, const CallGrid& grid, bool integers,
                           const float* x, int64_t k, int64_t k_pad, float* spare, float* out) {
  const bool is_float = w.problem.activation.type == tensor::ActivationFormat::Type::kFloat;
  const bool as_is =
      w.order.empty() && w.input_factor.empty() && w.input_hadamard == 0 && (is_float || integers);
  if (as_is && k == k_pad) return x;
  float* to = w.order.empty() ? out : spare;
  const float* from = turned(w, x, k, to);
  if (!is_float && !integers) {
    quantize_activation(grid.format, grid.scale, grid.zero, from, k, to,
                        grid.kept.empty() ? nullptr : grid.kept.data());
  } else if (from != to) {
    std::copy(from, from + k, to);
  }
  for (size_t i = 0; i < w.order.size(); ++i) out[i] = spare[w.order[i]];
  std::fill(out + k, out + k_pad, 0.0f);
  return out;
}

// Whether activations that the checkpoint holds in s8 can be given to an integer kernel as they
// are, their scale the unit's. Groups must be made of whole units, in the order of the inputs.
bool keeps_s8(const Request& r) {
  const tensor::ActivationFormat& f = r.weight->problem.activation;
  if (!holds_integers(r.kernel->form) || f.type != tensor::ActivationFormat::Type::kS8 ||
      f.outlier > 0) {
    return false;
  }
  if (f.granularity != tensor::ActivationFormat::Granularity::kGroup) return true;
  return f.group % r.layout->unit == 0 && r.weight->order.empty();
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

// Writes blocks of tokens in the form of x.
struct Writer {
  const Request& request;
  const CallGrid& grid;
  const Activations& x;
  const float* from;
  int64_t ldx;
  std::byte* data;
  float* scale;
  int32_t* sum;
  float* scaled_sum;

  // What a worker needs for a block of `rows`: two tokens of f32, the block as f32 or s16.
  int64_t worker_floats() const { return round_up((2 + x.rows) * x.k_pad, 16); }

  // One token as the integers of its own s8 grid. `spare` has a place for every group's scale.
  void write_s8(const float* row, int16_t* q, float* spare, int64_t at, int64_t stride) const {
    const tensor::ActivationFormat& f = grid.format;
    const int64_t k = request.layout->k;
    const int64_t unit = request.layout->unit;
    quantize_activation_s8(f, grid.scale, grid.zero, row, k, q, spare);
    std::fill(q + k, q + x.k_pad, int16_t{0});
    const bool grouped = f.granularity == tensor::ActivationFormat::Granularity::kGroup;
    for (int64_t u = 0; u < x.units; ++u, at += stride) {
      int32_t total = 0;
      for (int64_t i = u * unit; i < std::min((u + 1) * unit, x.k_pad); ++i) total += q[i];
      scale[at] = spare[grouped ? std::min(u * unit, k - 1) / f.group : 0];
      sum[at] = total;
      scaled_sum[at] = scale[at] * static_cast<float>(total);
    }
  }

  void write(int64_t m, float* spare) const {
    const int64_t k = request.layout->k;
    const int64_t rows = std::min(x.rows, x.m - m);
    float* unordered = spare + x.k_pad;
    float* block = unordered + x.k_pad;
    std::byte* to = data + m * x.token_bytes;
    const bool s8 = keeps_s8(request);
    for (int64_t r = 0; r < rows; ++r) {
      const float* row = transform_row(*request.weight, grid, s8, from + (m + r) * ldx, k, x.k_pad,
                                       unordered, spare);
      if (x.form == Form::kRows) {
        std::copy(row, row + x.k_pad, reinterpret_cast<float*>(to + r * x.token_bytes));
      } else if (x.form == Form::kEvenOdd) {
        auto* y = reinterpret_cast<float*>(to + r * x.token_bytes);
        for (int64_t i = 0; i < x.k_pad; i += 4) {
          y[i] = row[i];
          y[i + 1] = row[i + 2];
          y[i + 2] = row[i + 1];
          y[i + 3] = row[i + 3];
        }
      } else if (x.form == Form::kF32Panel) {
        std::copy(row, row + x.k_pad, block + r * x.k_pad);
      } else {
        int16_t* q = reinterpret_cast<int16_t*>(block) + r * x.k_pad;
        const int64_t at = m * x.units + r;
        if (s8) {
          write_s8(row, q, unordered, at, rows);
        } else {
          avx2::quantize_s16(row, x.k_pad, request.layout->unit, q, scale + at, sum + at,
                             scaled_sum + at, rows);
        }
        if (x.form != Form::kS8Digits) continue;
        avx2::split_digits(q, x.k_pad, reinterpret_cast<int8_t*>(to + r * x.token_bytes));
      }
    }
    if (x.form == Form::kF32Panel) {
      avx2::spread_floats(block, x.k_pad, rows, reinterpret_cast<float*>(to));
    } else if (x.form == Form::kS16Panel) {
      avx2::spread_pairs(reinterpret_cast<const int16_t*>(block), x.k_pad, rows,
                         reinterpret_cast<int32_t*>(to));
    }
  }
};

// `spare`: k floats for each worker, `stride` apart.
CallGrid grid_of_call(device::Stream& stream, const PackedWeight& w, const float* x, int64_t ldx,
                      int64_t m, int64_t k, float* spare, int64_t stride) {
  CallGrid out = {w.problem.activation, w.input_scale, w.input_zero, {}};
  const bool alone = m == 1 && out.format.outlier > 0;  // a token's outliers are its columns
  if (!spans_call(out.format) || alone) return out;
  std::vector<CallRange> seen(static_cast<size_t>(stream.threads()), CallRange(out.format, k));
  stream.pool().parallel_for(m, 1, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t i = begin; i < end; ++i) {
      seen[static_cast<size_t>(worker)].add(turned(w, x + i * ldx, k, spare + worker * stride));
    }
  });
  for (size_t i = 1; i < seen.size(); ++i) seen[0].join(seen[i]);
  out.format = seen[0].found(out.scale, out.zero);
  out.kept = seen[0].kept();
  return out;
}

}  // namespace

bool same_preparation(const Request& a, const Request& b) {
  const PackedWeight& v = *a.weight;
  const PackedWeight& w = *b.weight;
  return a.kernel->form == b.kernel->form && a.kernel->rows == b.kernel->rows &&
         a.layout->unit == b.layout->unit && a.layout->k_pad == b.layout->k_pad &&
         a.layout->k == b.layout->k && v.problem.activation == w.problem.activation &&
         v.input_scale == w.input_scale && v.input_zero == w.input_zero && v.order == w.order &&
         v.input_factor == w.input_factor && v.input_hadamard == w.input_hadamard;
}

Activations prepare(device::Stream& stream, int slot, const Request& request, const float* x,
                    int64_t ldx, int64_t m) {
  const Layout& l = *request.layout;
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
  CallGrid grid;
  const Writer writer{request,
                      grid,
                      out,
                      x,
                      ldx,
                      data,
                      reinterpret_cast<float*>(units),
                      reinterpret_cast<int32_t*>(units + storage.unit_bytes),
                      reinterpret_cast<float*>(units + 2 * storage.unit_bytes)};
  out.data = data;
  out.scale = writer.scale;
  out.sum = writer.sum;
  out.scaled_sum = writer.scaled_sum;

  const int64_t floats = writer.worker_floats();
  float* spare = stream.scratch_of<float>(slot + 1, stream.threads() * floats);
  grid = grid_of_call(stream, *request.weight, x, ldx, m, l.k, spare, floats);
  stream.pool().parallel_for(m, out.rows, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t i = begin; i < end; i += out.rows) writer.write(i, spare + worker * floats);
  });
  return out;
}

}  // namespace nibble::kernels
