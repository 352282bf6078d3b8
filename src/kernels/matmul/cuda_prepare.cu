// x as a weight wants it (prepare.cc's transform_row on a card): a block for each token.
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/functions.h"
#include "kernels/quantize/round.h"

namespace nibble::kernels::cuda {
namespace {

using tensor::ActivationFormat;

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

__device__ Grid grid_of(const CudaInput& input, const float* x, int64_t k, const Team& team) {
  const ActivationFormat& f = input.activation;
  if (f.is_static) return {input.input_scale, input.input_zero};
  if (f.type == ActivationFormat::Type::kS8 && f.asymmetric) {
    float low = 0;
    float high = 0;
    for (int64_t i = team.index; i < k; i += team.size) {
      low = smaller(low, x[i]);
      high = larger(high, x[i]);
    }
    low = team.join<Min>(low);
    high = team.join<Max>(high);
    return asymmetric_grid(f, low, high);
  }
  // Magnitudes compare like the integers of their bits; what is not finite is the largest.
  int most = 0;
  for (int64_t i = team.index; i < k; i += team.size) {
    const float magnitude = fabsf(x[i]);
    if (f.outlier > 0 && magnitude >= f.outlier) continue;
    most = Max::join(most, static_cast<int>(bits_of(magnitude)));
  }
  most = team.join<Max>(most);
  return symmetric_grid(f, input.input_scale, float_of(static_cast<uint32_t>(most)));
}

__device__ void round_group(const CudaInput& input, float* x, int64_t k, const Team& team) {
  const ActivationFormat& f = input.activation;
  const Grid grid = grid_of(input, x, k, team);
  const float inverse = 1.0f / grid.scale;
  const float least = lowest(f);
  for (int64_t i = team.index; i < k; i += team.size) {
    const float v = x[i];
    if (f.type == ActivationFormat::Type::kE2M1) {
      x[i] = e2m1_rounded(v, inverse, grid.scale);
    } else if (f.type == ActivationFormat::Type::kE2M3) {
      x[i] = e2m3_rounded(v, inverse, grid.scale);
    } else if (f.type == ActivationFormat::Type::kE3M2) {
      x[i] = e3m2_rounded(v, inverse, grid.scale);
    } else if (f.type == ActivationFormat::Type::kE4M3) {
      x[i] = e4m3_rounded(v, inverse, grid.scale);
    } else if (!(f.outlier > 0 && fabsf(v) >= f.outlier)) {
      x[i] = s8_of(v, grid, least) * grid.scale;
    }
  }
}

__device__ void quantize(const CudaInput& input, float* x, int64_t k) {
  const ActivationFormat& f = input.activation;
  if (f.type == ActivationFormat::Type::kFloat) return;
  const bool grouped = f.granularity == ActivationFormat::Granularity::kGroup && f.group > 0;
  if (!grouped) {
    round_group(input, x, k, {static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x), true});
    return;
  }
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  for (int64_t g = threadIdx.x / kWarp; g * f.group < k; g += warps) {
    const int64_t count = k - g * f.group < f.group ? k - g * f.group : f.group;
    round_group(input, x + g * f.group, count,
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

template <class Out>
__global__ void prepare_rows(CudaInput input, const float* x, int64_t ldx, int64_t k, float* work,
                             Out* out, int64_t ldo) {
  const float* from = x + blockIdx.x * ldx;
  float* row = work + blockIdx.x * k;
  Out* to = out + blockIdx.x * ldo;
  for (int64_t i = threadIdx.x; i < k; i += blockDim.x) {
    row[i] = input.factor != nullptr ? from[i] * input.factor[i] : from[i];
  }
  if (input.hadamard != 0) rotate_blocks(row, k, input.hadamard);
  __syncthreads();
  quantize(input, row, k);
  __syncthreads();
  for (int64_t i = threadIdx.x; i < ldo; i += blockDim.x) {
    const float v = i >= k ? 0.0f : row[input.order != nullptr ? input.order[i] : i];
    to[i] = static_cast<Out>(v);
  }
}

}  // namespace

void prepare(NibbleCudaContext* context, const CudaInput* input, const float* x, int64_t ldx,
             int64_t m, int64_t k, float* work, void* out, int64_t ldo, int to_bf16) {
  const auto rows = static_cast<unsigned>(m);
  if (to_bf16 != 0) {
    prepare_rows<<<rows, kThreads, 0, context->enter()>>>(*input, x, ldx, k, work,
                                                          static_cast<__nv_bfloat16*>(out), ldo);
  } else {
    prepare_rows<<<rows, kThreads, 0, context->enter()>>>(*input, x, ldx, k, work,
                                                          static_cast<float*>(out), ldo);
  }
  context->launched("prepare");
}

}  // namespace nibble::kernels::cuda
