// What becomes of a tile's sums: slices' and sharers' parts of it are added, and stored as y.
#pragma once

#include <utility>

#include "kernels/matmul/cuda_sm90.cuh"
#include "kernels/matmul/cuda_w4_work.cuh"

namespace nibble::kernels::cuda::w4 {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ inline void put(float* to, float v) { *to = v; }
__device__ inline void put(__nv_bfloat16* to, float v) { *to = __float2bfloat16_rn(v); }

// Some of a thread's sums of a strip, as they lie in wgmma's registers: those of its first row and
// token, and so on. These are loops of few instructions: whatever is run once a product is fetched
// for it.
template <class T, int kCount>
__device__ void store_each(const Work& w, int row, int token, int end, const float (&d)[kCount]) {
  T* to = static_cast<T*>(w.y) + token * w.ldy + row;
  const bool first = row < w.n;
  const bool second = row + 8 < w.n;
#pragma unroll
  for (int j = 0; j < kCount; j += 4) {
    const int t = token + j * 2;
    if (t < end && first) put(to, d[j]);
    if (t < end && second) put(to + 8, d[j + 2]);
    if (t + 1 < end && first) put(to + w.ldy, d[j + 1]);
    if (t + 1 < end && second) put(to + w.ldy + 8, d[j + 3]);
    to += 8 * w.ldy;
  }
}

// As bf16, eight rows of a token at a time, so that a warp writes 32 bytes in a row: 16 tokens go
// through memory of this warp's own (kTurnBytes at `turn`), there as
// [token][half of 16 rows, the other way round in every second four tokens].
template <int kCount>
__device__ void store_octets(const Work& w, uint32_t turn, int row, int token, int end,
                             const float (&d)[kCount]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto place = [](int token, int half) {
    return static_cast<uint32_t>(token * 32 + (half ^ (token >> 2 & 1)) * 16);
  };
  const uint32_t put_at = turn + place(lane / 16 * 8 + lane % 8, lane / 8 % 2);
  const uint32_t take_at = turn + place(lane / 2, lane % 2);
  const bool is_row = row + lane % 2 * 8 < w.n;
  token += lane / 2;
  auto* to = static_cast<__nv_bfloat16*>(w.y) + token * w.ldy + row + lane % 2 * 8;
#pragma unroll
  for (int j = 0; j < kCount; j += 8) {
    const uint32_t buffer = j / 8 % 2 * 512;
    uint32_t pairs[4] = {};
    const int octets = min((kCount - j) / 4, 2);  // of tokens
#pragma unroll
    for (int i = 0; i < 2 * octets; ++i) {
      const __nv_bfloat162 two = __floats2bfloat162_rn(d[j + 2 * i], d[j + 2 * i + 1]);
      pairs[i] = *reinterpret_cast<const uint32_t*>(&two);
    }
    sm90::store_matrices_turned(put_at + buffer, pairs);
    __syncwarp();  // nor does anybody read what the next but one overwrites
    const uint4 v = sm90::load_shared(take_at + buffer);
    const bool is_token = token + j * 2 < end && (octets == 2 || lane < 16);
    if (is_row && is_token) *reinterpret_cast<uint4*>(to) = v;
    to += 16 * w.ldy;
  }
  __syncwarp();
}

// A warp's sums of 16 rows from `row` on, and of tokens before `end`.
template <int kCount>
__device__ void store_sums(const Work& w, uint32_t turn, int row, int token, int end,
                           const float (&d)[kCount]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (!w.y_is_bf16) {
    store_each<float>(w, row + lane / 4, token + lane % 4 * 2, end, d);
  } else if (w.y_in_octets) {
    store_octets(w, turn, row, token, end, d);
  } else {
    store_each<__nv_bfloat16>(w, row + lane / 4, token + lane % 4 * 2, end, d);
  }
}

template <class S>
struct Sums {
  static constexpr int kCount = S::kCount;

  // A tile's sums are finished in pieces: a warp's, of one strip and 32, 16 or 24 tokens. Slices
  // have every second one, sharers of a tile some of them each; the others' sums of these are left
  // for them in the workspace.
  static constexpr int kPieceQuads = kCount % 16 == 0 && kCount * S::kWide >= 32 ? 4
                                     : kCount % 8 == 0                           ? 2
                                                                                 : 3;
  static_assert(kCount % (4 * kPieceQuads) == 0);
  static constexpr int kPiece = 4 * kPieceQuads;
  static constexpr int kPieces = kCount / kPiece;     // of a strip
  static constexpr int kOfWarp = S::kWide * kPieces;  // of a warp
  static constexpr int kWarps = S::kOwners / 32;
  using Piece = float[kPiece];
  using Quads = float4[kPieceQuads];

  using Accumulators = float[S::kWide][kCount];
  template <int kIndex>
  static __device__ float& number(Accumulators& sums, int i) {
    return sums[kIndex / kPieces][kIndex % kPieces * kPiece + i];
  }
  // With the power of two undone that folded scales have.
  template <int kIndex>
  static __device__ void take(Accumulators& sums, Piece& piece) {
    constexpr float kUndo = S::kWeights == Weights::kFolded ? kUnfold : 1;
#pragma unroll
    for (int i = 0; i < kPiece; ++i) piece[i] = number<kIndex>(sums, i) * kUndo;
  }
  // what<0>(), what<1>(), ...: registers have no addresses.
  template <class What>
  static __device__ void each_piece(const What& what) {
    const auto each = [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) {
      (what.template operator()<kIndex>(), ...);
    };
    each(std::make_integer_sequence<int, kOfWarp>());
  }

  // Two slices add their sums, each in its own pieces, through memory: `at` is this thread's, of
  // all that have the same rows. Barriers of these are 2 + 2 strip and the next.
  static __device__ void trade(bool again, int strip, int slice, uint32_t at, Accumulators& sums) {
    static_assert(S::kSlices == 2);
    constexpr int kQuadBytes = 128 * 16;
    if (again) sm90::sync_some(3 + 2 * strip, 256);  // what was there has been read
    each_piece([&]<int kIndex>() {
      if (kIndex % 2 == slice) return;
#pragma unroll
      for (int q = 0; q < kPieceQuads; ++q) {
        sm90::store_shared(
            at + (kIndex * kPieceQuads + q) * kQuadBytes,
            make_float4(number<kIndex>(sums, 4 * q), number<kIndex>(sums, 4 * q + 1),
                        number<kIndex>(sums, 4 * q + 2), number<kIndex>(sums, 4 * q + 3)));
      }
    });
    sm90::sync_some(2 + 2 * strip, 256);
    each_piece([&]<int kIndex>() {
      if (kIndex % 2 != slice) return;
#pragma unroll
      for (int q = 0; q < kPieceQuads; ++q) {
        const uint4 v = sm90::load_shared(at + (kIndex * kPieceQuads + q) * kQuadBytes);
        number<kIndex>(sums, 4 * q) += __uint_as_float(v.x);
        number<kIndex>(sums, 4 * q + 1) += __uint_as_float(v.y);
        number<kIndex>(sums, 4 * q + 2) += __uint_as_float(v.z);
        number<kIndex>(sums, 4 * q + 3) += __uint_as_float(v.w);
      }
    });
  }

  // What a segment made, from row `row` of this warp's first strip on. All that others wait for
  // goes before this waits for anybody.
  static __device__ void finish(const Work& w, const Segments& all, const Segment& g, int slice,
                                uint32_t turn, int row, Accumulators& sums) {
    const int token = g.token_tile * w.tile_tokens;
    const int end = min(token + w.tile_tokens, w.m);
    const bool shared = g.begin != 0 || g.end != w.runs.steps;
    const Sharers sharers = shared ? all.sharers(g.tile) : Sharers{};
    const int place = all.me() - sharers.first;
    const auto is_mine = [&](int index) {
      const int unit = index * kWarps + static_cast<int>(threadIdx.x) % S::kOwners / 32;
      return !shared || sharers.owner(unit, kOfWarp * kWarps) == place;
    };
    const auto is_of_slice = [&](int index) {
      return S::kSlices == 1 || index % S::kSlices == slice;
    };
    if (shared) {
      each_piece([&]<int kIndex>() {
        if (!is_of_slice(kIndex) || is_mine(kIndex)) return;
        Piece piece;
        take<kIndex>(sums, piece);
        leave(part_of(w, all.slot(all.me(), g.begin == 0), kIndex), piece);
      });
    }
    each_piece([&]<int kIndex>() {
      if (!is_of_slice(kIndex) || !is_mine(kIndex)) return;
      Piece piece;
      take<kIndex>(sums, piece);
      if (shared) gather(w, all, sharers, kIndex, piece);
      const int of = row + kIndex / kPieces * kStrip;
      if (w.scale_at_end) scale(w, of / kStrip, piece);
      store_sums(w, turn, of, token + kIndex % kPieces * kPiece * 2, end, piece);
    });
  }

  static __device__ float4* part_of(const Work& w, int slot, int piece) {
    return w.partial +
           ((static_cast<int64_t>(slot) * S::kWide * kPieces + piece) * kPieceQuads) * S::kOwners +
           threadIdx.x % S::kOwners;
  }

  // A piece tells itself that it is there: no number of it is 0, which is +0.0; those are -0.0
  // instead, which adds as much.
  static __device__ void leave(float4* to, const Piece& d) {
    const auto there = [](float v) { return __float_as_uint(v) == 0 ? -0.0f : v; };
#pragma unroll
    for (int q = 0; q < kPieceQuads; ++q) {
      sm90::store_relaxed(to + q * S::kOwners,
                          make_float4(there(d[4 * q]), there(d[4 * q + 1]), there(d[4 * q + 2]),
                                      there(d[4 * q + 3])));
    }
  }

  // Adds what the other sharers leave to this one's, in their order, some asked for at once; their
  // memory is zeros again then.
  static __device__ void gather(const Work& w, const Segments& all, const Sharers& sharers,
                                int index, Piece& d) {
    constexpr int kAtOnce = S::kMany && kCount > 32 ? 1 : S::kMany ? 2 : 4;
    const int count = sharers.last - sharers.first;
#pragma unroll 1
    for (int first = 0; first < count; first += kAtOnce) {
      Quads part[kAtOnce];
      float4* at[kAtOnce];
      const auto ask = [&](int i) {
#pragma unroll
        for (int q = 0; q < kPieceQuads; ++q) {
          part[i][q] = sm90::load_relaxed(at[i] + q * S::kOwners);
        }
      };
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        int block = sharers.first + min(first + i, count - 1);
        if (block >= all.me()) ++block;
        at[i] = part_of(w, all.slot(block, block == sharers.first), index);
        ask(i);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i >= count) break;
        while (!is_there(part[i])) ask(i);
#pragma unroll
        for (int q = 0; q < kPieceQuads; ++q) {
          sm90::store_relaxed(at[i] + q * S::kOwners, make_float4(0, 0, 0, 0));
          const float4 v = part[i][q];
          d[4 * q] += v.x, d[4 * q + 1] += v.y, d[4 * q + 2] += v.z, d[4 * q + 3] += v.w;
        }
      }
    }
    __syncwarp();  // lanes may have found their parts at different times
  }
  static __device__ bool is_there(const Quads& part) {
    uint32_t least = ~0u;
#pragma unroll
    for (const float4& v : part) {
      least = min(least, min(min(__float_as_uint(v.x), __float_as_uint(v.y)),
                             min(__float_as_uint(v.z), __float_as_uint(v.w))));
    }
    return least != 0;
  }

  // d *= the scales of rows that are strip's and of row + 8.
  template <int kSome>
  static __device__ void scale(const Work& w, int strip, float (&d)[kSome]) {
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32 % 4;
    const auto* from = reinterpret_cast<const uint32_t*>(
        w.scales + static_cast<int64_t>(min(strip, w.strips - 1)) * w.groups * 2 * kStrip);
    const float2 s = w4_scales(from[lane / 4 * 4 + warp], w.scales_are_bf16);
#pragma unroll
    for (int j = 0; j < kSome; ++j) d[j] *= j / 2 % 2 == 0 ? s.x : s.y;
  }
};

#endif

}  // namespace nibble::kernels::cuda::w4
