#include "kernels/norm/norm.h"

#include <algorithm>

#include "device/cuda.h"
#include "kernels/cuda/abi.h"

namespace nibble::kernels {
namespace {

constexpr int64_t kChunkElements = 16384;

template <class Row>
void for_rows(device::Stream& stream, int64_t m, int64_t n, const Row& row) {
  if (m <= 0) return;
  const int64_t together = std::max<int64_t>(1, kChunkElements / std::max<int64_t>(1, n));
  stream.pool().parallel_for(m, together, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) row(i);
  });
}

}  // namespace

void rms_norm(device::Stream& stream, const Ops& ops, const RmsNorm& norm, const float* x,
              int64_t ldx, Rows y, int64_t ldy, int64_t m) {
  if (device::Cuda* cuda = stream.cuda(); cuda != nullptr) {
    return cuda->kernels().rms_norm(cuda->context(), norm.weight, norm.n, norm.eps, norm.add_one,
                                    nullptr, 0, nullptr, x, ldx, y.data, ldy, y.held == Held::kBf16,
                                    m);
  }
  float* to = y.f32();
  for_rows(stream, m, norm.n,
           [&](int64_t i) { ops.norm->rms_norm(norm, x + i * ldx, to + i * ldy); });
}

void add_rms_norm(device::Stream& stream, const Ops& ops, const RmsNorm& norm, const float* delta,
                  int64_t ldd, float* residual, int64_t ldr, Rows y, int64_t ldy, int64_t m) {
  if (device::Cuda* cuda = stream.cuda(); cuda != nullptr) {
    return cuda->kernels().rms_norm(cuda->context(), norm.weight, norm.n, norm.eps, norm.add_one,
                                    delta, ldd, residual, residual, ldr, y.data, ldy,
                                    y.held == Held::kBf16, m);
  }
  float* to = y.f32();
  for_rows(stream, m, norm.n, [&](int64_t i) {
    ops.norm->add_rms_norm(norm, delta + i * ldd, residual + i * ldr, to + i * ldy);
  });
}

void layer_norm(device::Stream& stream, const Ops& ops, const LayerNorm& norm, const float* x,
                int64_t ldx, Rows y, int64_t ldy, int64_t m) {
  if (device::Cuda* cuda = stream.cuda(); cuda != nullptr) {
    return cuda->kernels().layer_norm(cuda->context(), norm.weight, norm.bias, norm.n, norm.eps, x,
                                      ldx, y.data, ldy, y.held == Held::kBf16, m);
  }
  float* to = y.f32();
  for_rows(stream, m, norm.n,
           [&](int64_t i) { ops.norm->layer_norm(norm, x + i * ldx, to + i * ldy); });
}

}  // namespace nibble::kernels
