#include "kernels/activation/activation.h"

#include <algorithm>

#include "base/check.h"
#include "device/cuda.h"
#include "kernels/cuda/abi.h"

namespace nibble::kernels {
namespace {

// About 20 us of one core: less than that is not worth waking another.
constexpr int64_t kChunkElements = 16384;

// Runs row(i, begin, end) over (m, n) cut into pieces of about kChunkElements, borders by shape.
template <class Row>
void for_pieces(device::Stream& stream, int64_t m, int64_t n, const Row& row) {
  if (m <= 0 || n <= 0) return;
  // Wide rows are cut into columns, narrow rows are taken together.
  const int64_t columns = std::min(n, kChunkElements);
  const int64_t pieces = (n + columns - 1) / columns;
  const int64_t together = pieces > 1 ? 1 : std::max<int64_t>(1, kChunkElements / n);
  stream.pool().parallel_for(m * pieces, together, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i % pieces * columns;
      row(i / pieces, first, std::min(first + columns, n));
    }
  });
}

}  // namespace

const char* name(Activation f) {
  switch (f) {
    case Activation::kSilu:
      return "silu";
    case Activation::kGelu:
      return "gelu";
    case Activation::kGeluTanh:
      return "gelu_tanh";
    case Activation::kQuickGelu:
      return "quick_gelu";
    case Activation::kRelu:
      return "relu";
    case Activation::kRelu2:
      return "relu2";
  }
  return "?";
}

void activate(device::Stream& stream, const Ops& ops, Activation f, ConstRows x, int64_t ldx,
              Rows y, int64_t ldy, int64_t m, int64_t n) {
  if (device::Cuda* cuda = stream.cuda(); cuda != nullptr) {
    return cuda->kernels().activate(cuda->context(), static_cast<int>(f), x.data, ldx, nullptr, 0,
                                    x.held == Held::kBf16, y.data, ldy, y.held == Held::kBf16, m,
                                    n);
  }
  const float* from = x.f32();
  float* to = y.f32();
  for_pieces(stream, m, n, [&](int64_t i, int64_t begin, int64_t end) {
    ops.activation->activate(f, from + i * ldx + begin, end - begin, to + i * ldy + begin);
  });
}

void activate_gated(device::Stream& stream, const Ops& ops, Activation f, ConstRows gate,
                    int64_t ldg, ConstRows up, int64_t ldu, Rows y, int64_t ldy, int64_t m,
                    int64_t n) {
  NIBBLE_CHECK(gate.held == up.held);
  if (device::Cuda* cuda = stream.cuda(); cuda != nullptr) {
    return cuda->kernels().activate(cuda->context(), static_cast<int>(f), gate.data, ldg, up.data,
                                    ldu, gate.held == Held::kBf16, y.data, ldy,
                                    y.held == Held::kBf16, m, n);
  }
  const float* a = gate.f32();
  const float* b = up.f32();
  float* to = y.f32();
  for_pieces(stream, m, n, [&](int64_t i, int64_t begin, int64_t end) {
    ops.activation->activate_gated(f, a + i * ldg + begin, b + i * ldu + begin, end - begin,
                                   to + i * ldy + begin);
  });
}

void add_to(device::Stream& stream, const Ops& ops, const float* x, int64_t ldx, float* y,
            int64_t ldy, int64_t m, int64_t n) {
  if (device::Cuda* cuda = stream.cuda(); cuda != nullptr) {
    return cuda->kernels().add_to(cuda->context(), x, ldx, y, ldy, m, n);
  }
  for_pieces(stream, m, n, [&](int64_t i, int64_t begin, int64_t end) {
    ops.activation->add_to(x + i * ldx + begin, end - begin, y + i * ldy + begin);
  });
}

void add_biases(device::Stream& stream, std::span<const Bias> biases, int64_t m) {
  NIBBLE_CHECK(biases.size() <= kMostBiases);
  if (biases.empty()) return;
  if (device::Cuda* cuda = stream.cuda(); cuda != nullptr) {
    static_assert(kMostBiases == CudaRows::kMost);
    CudaRows rows{};
    for (const Bias& bias : biases) {
      rows.row[rows.count++] = {bias.row, bias.y, bias.ldy, bias.n};
    }
    return cuda->kernels().add_rows(cuda->context(), &rows, m);
  }
  for (const Bias& bias : biases) {
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < bias.n; ++j) bias.y[i * bias.ldy + j] += bias.row[j];
    }
  }
}

void copy_to(device::Stream& stream, const float* x, int64_t ldx, float* y, int64_t ldy, int64_t m,
             int64_t n) {
  if (device::Cuda* cuda = stream.cuda(); cuda != nullptr) {
    return cuda->kernels().copy(cuda->context(), x, ldx, y, ldy, m, n);
  }
  for_pieces(stream, m, n, [&](int64_t i, int64_t begin, int64_t end) {
    std::copy(x + i * ldx + begin, x + i * ldx + end, y + i * ldy + begin);
  });
}

void scale_by(device::Stream& stream, const Ops& ops, float factor, float* y, int64_t n) {
  if (device::Cuda* cuda = stream.cuda(); cuda != nullptr) {
    return cuda->kernels().scale_by(cuda->context(), factor, y, n);
  }
  ops.activation->scale_by(factor, n, y);
}

void soft_cap(device::Stream& stream, const Ops& ops, float cap, float* y, int64_t n) {
  if (device::Cuda* cuda = stream.cuda(); cuda != nullptr) {
    return cuda->kernels().soft_cap(cuda->context(), cap, y, n);
  }
  ops.activation->soft_cap(cap, n, y);
}

}  // namespace nibble::kernels
