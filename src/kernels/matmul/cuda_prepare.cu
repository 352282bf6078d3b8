// x as a weight wants it (prepare.cc's transform_row on a card): a block for each token, unless
// numbers stay what they are. What a format needs of all tokens of a call is measured before.
#include <cuda_fp8.h>

#include <type_traits>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/functions.h"
#include "kernels/quantize/round.h"

namespace nibble::kernels::cuda {
namespace {

using tensor::ActivationFormat;

constexpr int kWideRow = 512;  // threads for a row that is read four numbers at a time

// What is found over all tokens of a call: of each token the least and the largest number and the
// largest magnitude that is no outlier; of each column whether it holds an outlier. Null: nothing.
struct CallStats {
  int64_t m;
  float* low;           // (m)
  float* high;          // (m)
  int* most;            // (m), as bits
  unsigned char* kept;  // (k)
};

// Threads that work on one group together: a block, or a warp.
struct Team {
  int index;
  int size;
  bool is_block;

  template <class Op, class T>
  __device__ T join(T v) const {
    return is_block ? over_block<Op>(v) : over_warp<Op>(v);
  }
};

// Magnitudes compare like the integers of their bits; what is not finite is the largest.
__device__ int magnitude_bits(const ActivationFormat& f, float x) {
  const float magnitude = fabsf(x);
  return f.outlier > 0 && magnitude >= f.outlier ? 0 : static_cast<int>(bits_of(magnitude));
}

__device__ bool has_zero(const ActivationFormat& f) {
  return f.type == ActivationFormat::Type::kS8 && f.asymmetric;
}

// From what each thread of the team has seen.
__device__ Grid joined_grid(const CudaInput& input, float low, float high, int most,
                            const Team& team) {
  if (has_zero(input.activation)) {
    low = team.join<Min>(low);
    high = team.join<Max>(high);
    return asymmetric_grid(input.activation, low, high);
  }
  most = team.join<Max>(most);
  return symmetric_grid(input.activation, input.input_scale, float_of(static_cast<uint32_t>(most)));
}

__device__ Grid grid_of(const CudaInput& input, const CallStats& call, const float* x, int64_t k,
                        const Team& team) {
  const ActivationFormat& f = input.activation;
  if (f.is_static) return {input.input_scale, input.input_zero};
  float low = 0;
  float high = 0;
  int most = 0;
  if (is_scaled_as_one(f)) {
    for (int64_t i = team.index; i < call.m; i += team.size) {
      low = smaller(low, call.low[i]);
      high = larger(high, call.high[i]);
      most = Max::join(most, call.most[i]);
    }
  } else {
    for (int64_t i = team.index; i < k; i += team.size) {
      low = smaller(low, x[i]);
      high = larger(high, x[i]);
      most = Max::join(most, magnitude_bits(f, x[i]));
    }
  }
  return joined_grid(input, low, high, most, team);
}

// Rounds x to numbers of the grid, or to its codes without their scale. Returns the scale.
template <bool kCodes>
__device__ float round_group(const CudaInput& input, const CallStats& call, float* x, int64_t k,
                             const Team& team) {
  const ActivationFormat& f = input.activation;
  const Grid grid = grid_of(input, call, x, k, team);
  const float inverse = 1.0f / grid.scale;
  const float back = kCodes ? 1.0f : grid.scale;
  const float least = lowest(f);
  for (int64_t i = team.index; i < k; i += team.size) {
    const float v = x[i];
    if (call.kept != nullptr && call.kept[i] != 0) continue;
    if (f.type == ActivationFormat::Type::kE2M1) {
      x[i] = e2m1_rounded(v, inverse, back);
    } else if (f.type == ActivationFormat::Type::kE2M3) {
      x[i] = e2m3_rounded(v, inverse, back);
    } else if (f.type == ActivationFormat::Type::kE3M2) {
      x[i] = e3m2_rounded(v, inverse, back);
    } else if (f.type == ActivationFormat::Type::kE4M3) {
      x[i] = e4m3_rounded(v, inverse, back);
    } else if (!(f.outlier > 0 && fabsf(v) >= f.outlier)) {
      x[i] = s8_of(f, v, grid, least) * back;
    }
  }
  return grid.scale;
}

__device__ Team whole_block() {
  return {static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x), true};
}

// (A format with outliers has no groups: columns are those of x.)
__device__ void quantize(const CudaInput& input, const CallStats& call, float* x, int64_t k) {
  const ActivationFormat& f = input.activation;
  if (f.type == ActivationFormat::Type::kFloat) return;
  const bool grouped = f.granularity == ActivationFormat::Granularity::kGroup && f.group > 0;
  if (!grouped) {
    round_group<false>(input, call, x, k, whole_block());
    return;
  }
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  for (int64_t g = threadIdx.x / kWarp; g * f.group < k; g += warps) {
    const int64_t count = k - g * f.group < f.group ? k - g * f.group : f.group;
    round_group<false>(input, call, x + g * f.group, count,
                       {static_cast<int>(threadIdx.x) % kWarp, kWarp, false});
  }
}

// As hadamard.cc has it: sums and differences of halves.
__device__ void rotate_blocks(float* x, int64_t k, int64_t size) {
  for (int64_t half = 1; half < size; half *= 2) {
    __syncthreads();
    for (int64_t i = threadIdx.x; i < k / 2; i += blockDim.x) {
      float* a = x + i / half * 2 * half + i % half;
      const float sum = a[0] + a[half];
      a[half] = a[0] - a[half];
      a[0] = sum;
    }
  }
  __syncthreads();
  const auto factor = static_cast<float>(1.0 / sqrt(static_cast<double>(size)));
  for (int64_t i = threadIdx.x; i < k; i += blockDim.x) x[i] *= factor;
}

// x multiplied by the input factor and rotated.
__device__ void turn(const CudaInput& input, const float* x, int64_t k, float* row) {
  for (int64_t i = threadIdx.x; i < k; i += blockDim.x) {
    row[i] = input.factor != nullptr ? x[i] * input.factor[i] : x[i];
  }
  if (input.hadamard != 0) rotate_blocks(row, k, input.hadamard);
  __syncthreads();
}

// Before this, no column is kept.
__global__ void measure_rows(CudaInput input, CallStats call, const float* x, int64_t ldx,
                             int64_t k, float* work) {
  float* row = work + blockIdx.x * k;
  turn(input, x + blockIdx.x * ldx, k, row);
  const ActivationFormat& f = input.activation;
  float low = 0;
  float high = 0;
  int most = 0;
  for (int64_t i = threadIdx.x; i < k; i += blockDim.x) {
    low = smaller(low, row[i]);
    high = larger(high, row[i]);
    most = Max::join(most, magnitude_bits(f, row[i]));
    if (call.kept != nullptr && fabsf(row[i]) >= f.outlier) call.kept[i] = 1;
  }
  low = over_block<Min>(low);
  high = over_block<Max>(high);
  most = over_block<Max>(most);
  if (threadIdx.x != 0) return;
  call.low[blockIdx.x] = low;
  call.high[blockIdx.x] = high;
  call.most[blockIdx.x] = most;
}

// Where nothing is measured or rotated, each number goes straight to its place: four a thread, read
// together if kTogether.
template <class Out, bool kTogether>
__global__ void __launch_bounds__(kThreads)
    move_rows(const float* factor, const int32_t* order, const float* x, int64_t ldx, int64_t m,
              int64_t k, Out* out, int64_t ldo) {
  let_next_start();
  wait_for_previous();
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * 4;
  if (i >= ldo) return;
  for (int64_t row = blockIdx.y; row < m; row += gridDim.y) {
    const float* from = x + row * ldx;
    float4 v = {0, 0, 0, 0};
    if constexpr (kTogether) {
      if (i < k) v = *reinterpret_cast<const float4*>(from + i);
    } else {
      const auto number = [&](int64_t at) {
        if (at >= k) return 0.0f;
        if (order != nullptr) at = order[at];
        return factor != nullptr ? from[at] * factor[at] : from[at];
      };
      v = {number(i), number(i + 1), number(i + 2), number(i + 3)};
    }
    put_4(v, out + row * ldo + i);
  }
}

template <class Out>
void run_move(NibbleCudaContext* context, const CudaInput& input, const float* x, int64_t ldx,
              int64_t m, int64_t k, Out* out, int64_t ldo) {
  const bool together = input.factor == nullptr && input.order == nullptr && k % 4 == 0 &&
                        ldx % 4 == 0 && reinterpret_cast<uintptr_t>(x) % 16 == 0;
  const dim3 grid(static_cast<unsigned>((ldo / 4 + kThreads - 1) / kThreads),
                  static_cast<unsigned>(m < kMostRows ? m : kMostRows));
  start(context, "prepare", together ? move_rows<Out, true> : move_rows<Out, false>, grid, kThreads,
        0, input.factor, input.order, x, ldx, m, k, out, ldo);
}

template <class Out>
__global__ void prepare_rows(CudaInput input, CallStats call, const float* x, int64_t ldx,
                             int64_t k, float* work, Out* out, int64_t ldo) {
  float* row = work + blockIdx.x * k;
  Out* to = out + blockIdx.x * ldo;
  turn(input, x + blockIdx.x * ldx, k, row);
  quantize(input, call, row, k);
  __syncthreads();
  for (int64_t i = threadIdx.x; i < ldo; i += blockDim.x) {
    const float v = i >= k ? 0.0f : row[input.order != nullptr ? input.order[i] : i];
    to[i] = static_cast<Out>(v);
  }
}

__device__ void put_code(float v, __nv_fp8_storage_t& to) {  // nan has a code
  to = __nv_cvt_float_to_fp8(v, __NV_SATFINITE, __NV_E4M3);
}
__device__ void put_code(float v, int8_t& to) { to = static_cast<int8_t>(v); }

// The same with one scale for each token. A row with nan, for which s8 has no code, gets a scale of
// nan, so that it shows in the product.
template <class Code>
__global__ void prepare_code_rows(CudaInput input, const float* x, int64_t ldx, int64_t k,
                                  float* work, Code* out, int64_t ldo, float* scale) {
  float* row = work + blockIdx.x * k;
  Code* to = out + blockIdx.x * ldo;
  turn(input, x + blockIdx.x * ldx, k, row);
  const float of_row = round_group<true>(input, CallStats{}, row, k, whole_block());
  __syncthreads();
  bool is_nan = false;
  for (int64_t i = threadIdx.x; i < ldo; i += blockDim.x) {
    const float v = i >= k ? 0.0f : row[input.order != nullptr ? input.order[i] : i];
    is_nan = is_nan || v != v;
    put_code(v, to[i]);
  }
  const bool any = __syncthreads_or(is_nan) != 0;
  if (threadIdx.x == 0) scale[blockIdx.x] = any ? NAN : of_row;
}

__device__ uint32_t four_codes(float4 v, __nv_fp8_storage_t) {
  const uint32_t low = __nv_cvt_float2_to_fp8x2({v.x, v.y}, __NV_SATFINITE, __NV_E4M3);
  const uint32_t high = __nv_cvt_float2_to_fp8x2({v.z, v.w}, __NV_SATFINITE, __NV_E4M3);
  return low | high << 16;
}
__device__ uint32_t four_codes(float4 v, int8_t) {
  const auto code = [](float x) {
    return static_cast<uint32_t>(static_cast<uint8_t>(static_cast<int8_t>(x)));
  };
  return code(v.x) | code(v.y) << 8 | code(v.z) << 16 | code(v.w) << 24;
}

// prepare_code_rows where x goes straight to its codes, four at a time: the rows are read twice,
// the second time from a cache.
template <class Code>
__global__ void __launch_bounds__(kWideRow)
    prepare_plain_rows(CudaInput input, const float* x, int64_t ldx, int64_t k, Code* out,
                       int64_t ldo, float* scale) {
  let_next_start();
  wait_for_previous();
  const ActivationFormat& f = input.activation;
  const auto* from = reinterpret_cast<const float4*>(x + blockIdx.x * ldx);
  auto* to = reinterpret_cast<uint32_t*>(out + blockIdx.x * ldo);
  const auto quads = static_cast<int>(k / 4);
  Grid grid{input.input_scale, 0};
  if (!f.is_static) {
    uint32_t most = 0;
    for (int i = static_cast<int>(threadIdx.x); i < quads; i += kWideRow) {
      const float4 v = from[i];
      for (const float one : {v.x, v.y, v.z, v.w}) most = Max::join(most, bits_of(fabsf(one)));
    }
    grid = symmetric_grid(f, input.input_scale, float_of(over_block<Max>(most)));
  }
  const float inverse = 1.0f / grid.scale;
  const float least = lowest(f);
  bool is_nan = false;
  const auto coded = [&](float v) {
    is_nan = is_nan || v != v;
    if constexpr (std::is_same_v<Code, __nv_fp8_storage_t>) {
      return clamped(v * inverse, -448.0f, 448.0f);
    } else {
      return s8_of(f, v, grid, least);
    }
  };
  for (int i = static_cast<int>(threadIdx.x); i < static_cast<int>(ldo / 4); i += kWideRow) {
    const float4 v = i < quads ? from[i] : float4{0, 0, 0, 0};
    to[i] = four_codes({coded(v.x), coded(v.y), coded(v.z), coded(v.w)}, Code());
  }
  const bool any = __syncthreads_or(is_nan) != 0;
  if (threadIdx.x == 0) scale[blockIdx.x] = any ? NAN : grid.scale;
}

template <class Code>
void run_prepare_codes(NibbleCudaContext* context, const CudaInput& input, const float* x,
                       int64_t ldx, int64_t m, int64_t k, float* work, Code* out, int64_t ldo,
                       float* scale) {
  const auto rows = static_cast<unsigned>(m);
  const bool plain = input.factor == nullptr && input.hadamard == 0 && input.order == nullptr &&
                     k % 4 == 0 && ldx % 4 == 0 && reinterpret_cast<uintptr_t>(x) % 16 == 0;
  if (plain) {
    start(context, "prepare_codes", prepare_plain_rows<Code>, dim3(rows), kWideRow, 0, input, x,
          ldx, k, out, ldo, scale);
  } else {
    prepare_code_rows<<<rows, kThreads, 0, context->enter()>>>(input, x, ldx, k, work, out, ldo,
                                                               scale);
  }
}

}  // namespace

void prepare_codes(NibbleCudaContext* context, const CudaInput* input, const float* x, int64_t ldx,
                   int64_t m, int64_t k, float* work, void* out, int64_t ldo, float* scale) {
  if (input->activation.type == ActivationFormat::Type::kS8) {
    run_prepare_codes(context, *input, x, ldx, m, k, work, static_cast<int8_t*>(out), ldo, scale);
  } else {
    run_prepare_codes(context, *input, x, ldx, m, k, work, static_cast<__nv_fp8_storage_t*>(out),
                      ldo, scale);
  }
  context->launched("prepare_codes");
}

void prepare(NibbleCudaContext* context, const CudaInput* input, const float* x, int64_t ldx,
             int64_t m, int64_t k, float* work, void* out, int64_t ldo, int to_bf16) {
  const bool moves = input->activation.type == ActivationFormat::Type::kFloat &&
                     input->hadamard == 0 && ldo % 4 == 0;
  if (moves) {
    return with_held(out, to_bf16,
                     [&]<class Out>(Out* to) { run_move(context, *input, x, ldx, m, k, to, ldo); });
  }
  const auto rows = static_cast<unsigned>(m);
  cudaStream_t stream = context->enter();
  CallStats call = {};
  if (spans_call(input->activation)) {
    float* behind = work + m * k;
    call = {m, behind, behind + m, reinterpret_cast<int*>(behind + 2 * m), nullptr};
    if (input->activation.outlier > 0) {
      call.kept = reinterpret_cast<unsigned char*>(behind + 3 * m);
      cudaMemsetAsync(call.kept, 0, static_cast<size_t>(k), stream);
    }
    measure_rows<<<rows, kThreads, 0, stream>>>(*input, call, x, ldx, k, work);
  }
  if (to_bf16 != 0) {
    prepare_rows<<<rows, kThreads, 0, stream>>>(*input, call, x, ldx, k, work,
                                                static_cast<__nv_bfloat16*>(out), ldo);
  } else {
    prepare_rows<<<rows, kThreads, 0, stream>>>(*input, call, x, ldx, k, work,
                                                static_cast<float*>(out), ldo);
  }
  context->launched("prepare");
}

}  // namespace nibble::kernels::cuda
