// rope.h on a card: a thread turns one pair of one head.
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/functions.h"

namespace nibble::kernels::cuda {
namespace {

__global__ void rotate_pairs(int neighbours, const float* cos, const float* sin, int64_t pairs,
                             float* x, int64_t ldx, int64_t m, int64_t heads, int64_t head_dim) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  const int64_t count = m * heads * pairs;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const int64_t pair = i % pairs;
    const int64_t head = i / pairs % heads;
    const int64_t token = i / pairs / heads;
    float* first = x + token * ldx + head * head_dim;
    // Neighbours have each cos twice and sin as -s, +s.
    const int64_t at = neighbours != 0 ? 2 * (token * pairs + pair) + 1 : token * pairs + pair;
    float* a = first + (neighbours != 0 ? 2 * pair : pair);
    float* b = a + (neighbours != 0 ? 1 : pairs);
    const float c = cos[at];
    const float s = sin[at];
    const float u = *a;
    const float v = *b;
    *a = fmaf(-v, s, u * c);
    *b = fmaf(u, s, v * c);
  }
}

}  // namespace

void rotate(NibbleCudaContext* context, int neighbours, const float* cos, const float* sin,
            int64_t rotary_dim, float* x, int64_t ldx, int64_t m, int64_t heads,
            int64_t head_dim) {
  const int64_t pairs = rotary_dim / 2;
  rotate_pairs<<<blocks_for(m * heads * pairs), kThreads, 0, context->enter()>>>(
      neighbours, cos, sin, pairs, x, ldx, m, heads, head_dim);
  context->launched("rotate");
}

}  // namespace nibble::kernels::cuda
