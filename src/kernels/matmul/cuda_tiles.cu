// The table's functions for weights in tiles: products of few and of many tokens, panels, rows.
#include "kernels/cuda/functions.h"
#include "kernels/matmul/cuda_tiles.cuh"
#include "kernels/matmul/cuda_w4_few.cuh"
#include "kernels/matmul/cuda_w4_wgmma.cuh"

namespace nibble::kernels::cuda {
namespace {

W4Args args_of(const CudaWeight& w) {
  const CudaTiles& t = w.tiles;
  W4Args out;
  out.codes = t.codes;
  out.scales = t.scales;
  out.zeros = t.zeros;
  out.bits = t.bits;
  out.n = static_cast<int>(w.n);
  out.k = static_cast<int>(t.k_pad);
  out.group = t.group;
  out.scales_are_bf16 = t.scales_are_bf16 != 0;
  return out;
}

// The number of row n and input k, in the order of the codes; see cuda_w4.cuh for where it lies.
__device__ float number_at(const CudaTiles& t, int64_t n, int64_t k) {
  const int64_t strip = n / 64;
  const int row = static_cast<int>(n % 64);
  const int in = static_cast<int>(k % 64);
  const int lane = row % 8 * 4 + in % 8 / 2;
  const int reg = row / 8 % 2 + in / 8 % 2 * 2;
  const int half = in % 2;
  const int64_t lane_at =
      (strip * (t.k_pad / 64) + k / 64) * 128 + row / 16 * 32 + lane;  // of all lanes
  const auto* words = static_cast<const uint32_t*>(t.codes);
  const int64_t scale =
      (strip * t.groups + k / t.group) * 64 + row % 8 * 8 + row / 16 * 2 + row / 8 % 2;
  float v;
  if (t.bits == 4) {
    const uint32_t word = words[lane_at * 4 + in / 16];
    const float zero = t.zeros != nullptr ? static_cast<const uint8_t*>(t.zeros)[scale] : 8;
    v = static_cast<float>(word >> (4 * reg + 16 * half) & 15u) - zero;
  } else {
    const uint32_t word = words[lane_at * 8 + in / 16 * 2 + reg / 2];
    v = static_cast<int8_t>(word >> (8 * (reg % 2) + 16 * half));
  }
  const auto bits = static_cast<const uint16_t*>(t.scales)[scale];
  return v * (t.scales_are_bf16 != 0 ? __uint_as_float(uint32_t{bits} << 16)
                                     : __half2float(__ushort_as_half(bits)));
}

// One thread an input.
__global__ void look_up_tile_rows(CudaWeight w, const int32_t* ids, float* out) {
  float* to = out + blockIdx.x * w.k;
  for (int64_t k = threadIdx.x; k < w.k; k += blockDim.x) {
    to[w.order != nullptr ? w.order[k] : k] = number_at(w.tiles, ids[blockIdx.x], k);
  }
}

}  // namespace

cudaError_t make_tile_work(NibbleCudaContext* context) {
  if (context->major != 9 || context->tile_work != nullptr) return cudaSuccess;
  const size_t bytes = w4_workspace(context->multiprocessors);
  cudaError_t error = cudaMalloc(&context->tile_work, bytes);
  if (error == cudaSuccess) error = cudaMemsetAsync(context->tile_work, 0, bytes, context->enter());
  return error;
}

void look_up_tiles(NibbleCudaContext* context, const CudaWeight& weight, const int32_t* ids,
                   int64_t m, float* out) {
  look_up_tile_rows<<<static_cast<unsigned>(m), kThreads, 0, context->enter()>>>(weight, ids, out);
  context->launched("look_up");
}

void panel_of_tiles(NibbleCudaContext* context, const CudaWeight& weight, int64_t first,
                    int64_t rows, __nv_bfloat16* panel, int64_t ldp) {
  W4Args args = args_of(weight);
  args.stream = context->enter();
  context->note("panel",
                launch_w4_panel(args, static_cast<int>(first), static_cast<int>(rows), panel, ldp));
}

void multiply_few(NibbleCudaContext* context, const CudaWeight* const* weights, float* const* y,
                  const int64_t* ldy, int count, const void* x, int x_is_f32, int64_t ldx,
                  int64_t m) {
  W4Args of_each[4];
  const int most = x_is_f32 != 0 ? kFewTokensF32 : kFewTokens;
  for (int i = 0; i < count; ++i) of_each[i] = args_of(*weights[i]);
  for (int64_t done = 0; done < m;) {
    for (int i = 0; i < count; ++i) {
      of_each[i].y = y[i] + done * ldy[i];
      of_each[i].ldy = ldy[i];
    }
    W4Few few;
    few.weights = of_each;
    few.count = count;
    few.x = static_cast<const char*>(x) + done * ldx * (x_is_f32 != 0 ? 4 : 2);
    few.x_is_f32 = x_is_f32 != 0;
    few.ldx = ldx;
    few.k = static_cast<int>(weights[0]->k);
    few.m = static_cast<int>(m - done < most ? m - done : most);
    few.stream = context->enter();
    // The tokens lie in shared memory: of very long rows it holds fewer.
    W4FewPlan plan = plan_w4_few(few, context->multiprocessors);
    while (plan.ranks == 0 && few.m > 1) {
      few.m = (few.m + 1) / 2;
      plan = plan_w4_few(few, context->multiprocessors);
    }
    if (plan.ranks == 0) return context->note("multiply_few", cudaErrorInvalidConfiguration);
    context->note("multiply_few", launch_w4_few(few, plan, context->multiprocessors));
    done += few.m;
  }
}

void multiply_many(NibbleCudaContext* context, const CudaWeight* weight, const void* x, int64_t ldx,
                   void* y, int64_t ldy, int y_is_bf16, int64_t m) {
  W4Args args = args_of(*weight);
  args.x = static_cast<const __nv_bfloat16*>(x);
  args.ldx = ldx;
  args.m = static_cast<int>(m);
  args.y = y;
  args.ldy = ldy;
  args.y_is_bf16 = y_is_bf16 != 0;
  args.workspace = context->tile_work;
  args.stream = context->enter();
  context->note("multiply_many", launch_w4_wgmma(args, choose_w4(args, context->multiprocessors)));
}

}  // namespace nibble::kernels::cuda
