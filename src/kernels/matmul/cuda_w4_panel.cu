// Rows of 4- or 8-bit codes in tiles as a panel of bf16, for a library's product of very many
// tokens.
#include <algorithm>

#include "kernels/matmul/cuda_w4_fragment.cuh"
#include "kernels/matmul/cuda_w4_wgmma.cuh"

namespace nibble::kernels::cuda {
namespace {

using w4::kBlock;
using w4::kStrip;

struct Tiles {
  const uint8_t* codes;
  const uint8_t* scales;
  const uint8_t* zeros;
  int scales_are_bf16;
  int blocks;  // of 64 inputs
  int group;
  int groups;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
// A square of 4 x 4 over the four lanes of a row, transposed.
__device__ inline void trade(uint32_t (&v)[4], int t) {
#pragma unroll
  for (int step = 1; step < 4; step *= 2) {
    const bool high = (t & step) != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((i & step) != 0) continue;
      const uint32_t got = __shfl_xor_sync(0xffffffffu, high ? v[i] : v[i + step], step);
      if (high) {
        v[i] = got;
      } else {
        v[i + step] = got;
      }
    }
  }
}
#endif

// A warp makes 16 rows x 64 inputs. A lane has pairs of inputs of two rows; the four lanes of a row
// trade so that each has eight neighbours.
template <int kBits>
__global__ void __launch_bounds__(256)
    make_panel(Tiles w, int first_strip, int strips, int rows, __nv_bfloat16* panel, int64_t ldp) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const int64_t count = int64_t{strips} * w.blocks * 4;
  const int64_t warps = int64_t{gridDim.x} * (blockDim.x / 32);
  for (int64_t i = int64_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32; i < count;
       i += warps) {
    const int tile = static_cast<int>(i % 4);
    const int block = static_cast<int>(i / 4 % w.blocks);
    const int strip = static_cast<int>(i / 4 / w.blocks);
    const int64_t of_strip = first_strip + strip;
    const auto* from = reinterpret_cast<const uint4*>(
        w.codes + ((of_strip * w.blocks + block) * 4 + tile) * (kStrip * kBlock * kBits / 32) +
        lane * (kBits * 4));
    uint32_t codes[kBits];
#pragma unroll
    for (int q = 0; q < kBits / 4; ++q) {
      const uint4 v = __ldcs(from + q);
      codes[4 * q] = v.x, codes[4 * q + 1] = v.y, codes[4 * q + 2] = v.z, codes[4 * q + 3] = v.w;
    }
    uint32_t pair[2][8];  // [row g or g + 8][eight inputs 8 h]: inputs 8 h + 2 t, 8 h + 2 t + 1
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      w4::Grid grid;
      const int group = min((block * kBlock + j / 2 * (kBlock / 2)) / w.group, w.groups - 1);
      const int64_t at = (of_strip * w.groups + group) * kStrip + g * 8 + tile * 2;
      w4::bf16_scales_of(*reinterpret_cast<const uint32_t*>(w.scales + 2 * at), w.scales_are_bf16,
                         w4::Powers<kBits>::kUndo, grid.scale);
      w4::default_zeros<kBits>(grid.zero);
      if (w.zeros != nullptr)
        w4::zeros_of<kBits>(*reinterpret_cast<const uint16_t*>(w.zeros + at), grid.zero);
      uint32_t a[4];
      w4::fragment<kBits, w4::Weights::kScaled>(codes, j, grid, a);
      pair[0][2 * j] = a[0], pair[1][2 * j] = a[1];
      pair[0][2 * j + 1] = a[2], pair[1][2 * j + 1] = a[3];
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = strip * kStrip + tile * 16 + r * 8 + g;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        // Lane t ends with what the four lanes have of inputs 8 (4 half + t).
        uint32_t v[4];
#pragma unroll
        for (int h = 0; h < 4; ++h) v[h] = pair[r][4 * half + h];
        trade(v, t);
        if (row < rows) {
          *reinterpret_cast<uint4*>(panel + row * ldp + block * kBlock + (4 * half + t) * 8) =
              make_uint4(v[0], v[1], v[2], v[3]);
        }
      }
    }
  }
#endif
}

}  // namespace

cudaError_t launch_w4_panel(const W4Args& args, int first, int rows, __nv_bfloat16* panel,
                            int64_t ldp) {
  const Tiles w = {
      static_cast<const uint8_t*>(args.codes), static_cast<const uint8_t*>(args.scales),
      static_cast<const uint8_t*>(args.zeros), args.scales_are_bf16,
      (args.k + kBlock - 1) / kBlock,          args.group,
      (args.k + args.group - 1) / args.group};
  const int strips = (rows + kStrip - 1) / kStrip;
  const int64_t warps = int64_t{strips} * w.blocks * 4;
  const auto blocks = static_cast<unsigned>(std::min((warps + 7) / 8, int64_t{132 * 32}));
  const auto make = args.bits == 4 ? make_panel<4> : make_panel<8>;
  make<<<blocks, 256, 0, args.stream>>>(w, first / kStrip, strips, rows, panel, ldp);
  return cudaGetLastError();
}

}  // namespace nibble::kernels::cuda
