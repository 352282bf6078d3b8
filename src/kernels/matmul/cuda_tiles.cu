// The table's functions for weights in tiles: products of few and of many tokens, panels, rows.
#include <algorithm>

#include "kernels/cuda/functions.h"
#include "kernels/matmul/cuda_tiles.cuh"
#include "kernels/matmul/cuda_w4_few.cuh"
#include "kernels/matmul/cuda_w4_wgmma.cuh"

namespace nibble::kernels::cuda {
namespace {

static_assert(kFewTokensFused == CudaFew::kMostFused);

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
  out.scales_fold = t.scales_fold != 0;
  return out;
}

// What does not depend on the tokens.
W4Few few_of(const CudaFew& call, W4Args* of_each) {
  for (int i = 0; i < call.count; ++i) of_each[i] = args_of(*call.weight[i]);
  W4Few out;
  out.weights = of_each;
  out.count = call.count;
  out.x_is_f32 = call.x_is_f32 != 0;
  out.ldx = call.ldx;
  out.k = static_cast<int>(call.weight[0]->k);
  out.norm_eps = call.norm_eps;
  out.add = call.add != 0;
  out.function = static_cast<Activation>(call.function);
  return out;
}

void* gated_at(const CudaFew& call, int64_t token) {
  return static_cast<char*>(call.gated) + token * call.ldg * (call.gated_is_bf16 != 0 ? 2 : 4);
}

// Where the tokens from `first` on lie.
void place_tokens(const CudaFew& call, int64_t first, W4Few& few, W4Args* of_each) {
  few.x = static_cast<const char*>(call.x) + first * call.ldx * (few.x_is_f32 ? 4 : 2);
  if (call.squares != nullptr) few.squares = call.squares + first * (few.k / 8);
  if (call.next_norm != nullptr) {
    const int64_t at = first * call.weight[0]->n;
    few.next = {call.next_norm, static_cast<__nv_bfloat16*>(call.next_rows) + at,
                call.next_squares + at / 8};
  }
  for (int i = 0; i < call.count; ++i) {
    of_each[i].y = call.y[i] + first * call.ldy[i];
    of_each[i].ldy = call.ldy[i];
    of_each[i].y_is_bf16 = false;
  }
  if (!few.gated) return;
  of_each[0].y = gated_at(call, first);
  of_each[0].ldy = call.ldg;
  of_each[0].y_is_bf16 = call.gated_is_bf16 != 0;
}

// For few.m tokens, or for fewer: they lie in shared memory, which holds fewer of very long rows.
// And whether an activation that there is to be is in the product, too: strips in pairs are not
// always as many for every block, so only where that costs no more than a kernel of its own.
W4FewPlan plan_and_choose(int multiprocessors, bool to_be_gated, W4Few& few) {
  constexpr double kActivation = 1.5;  // microseconds of that kernel, in a step
  few.gated = false;
  W4FewPlan best = plan_w4_few(few, multiprocessors);
  while (best.ranks == 0 && few.m > 1) {
    few.m = (few.m + 1) / 2;
    best = plan_w4_few(few, multiprocessors);
  }
  if (!to_be_gated || few.m > kFewTokensFused) return best;
  few.gated = true;
  const W4FewPlan gated = plan_w4_few(few, multiprocessors);
  few.gated = gated.ranks != 0 && gated.time < best.time + kActivation;
  return few.gated ? gated : best;
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

void multiply_few(NibbleCudaContext* context, const CudaFew* call) {
  W4Args of_each[CudaFew::kMost];
  W4Few few = few_of(*call, of_each);
  few.stream = context->enter();
  const int64_t most = few.x_is_f32 ? kFewTokensF32 : kFewTokens;
  for (int64_t done = 0; done < call->m; done += few.m) {
    few.m = static_cast<int>(std::min(call->m - done, most));
    const W4FewPlan plan = plan_and_choose(context->multiprocessors, call->gated != nullptr, few);
    if (plan.ranks == 0) return context->note("multiply_few", cudaErrorInvalidConfiguration);
    place_tokens(*call, done, few, of_each);
    context->note("multiply_few", launch_w4_few(few, plan, context->multiprocessors));
    if (call->gated == nullptr || few.gated) continue;
    activate(context, call->function, of_each[0].y, of_each[0].ldy, of_each[1].y, of_each[1].ldy, 0,
             gated_at(*call, done), call->ldg, call->gated_is_bf16, few.m, of_each[0].n);
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
  args.others = NibbleCudaContext::live > 1;
  args.stream = context->enter();
  context->note("multiply_many", launch_w4_wgmma(args, choose_w4(args, context->multiprocessors)));
}

}  // namespace nibble::kernels::cuda
