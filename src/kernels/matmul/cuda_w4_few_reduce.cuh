// What reducer warps do in products of 1 to 16 tokens (cuda_w4_few_device.cuh): they add the sums
// of a strip, its ranks' too, and finish its rows.
#pragma once

#include "kernels/activation/cuda_functions.cuh"
#include "kernels/matmul/cuda_w4_few_operands.cuh"

namespace nibble::kernels::cuda {
namespace {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Four floats to another rank's shared memory, which its barrier is told of.
__device__ inline void send(uint32_t to, uint32_t barrier, const float (&v)[4]) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%2, %3, %4, %5}, "
      "[%1];" ::"r"(to),
      "r"(barrier), "r"(__float_as_uint(v[0])), "r"(__float_as_uint(v[1])),
      "r"(__float_as_uint(v[2])), "r"(__float_as_uint(v[3]))
      : "memory");
}

struct Barriers {
  uint32_t full, empty, sums_read, received;  // addresses of the first of each
  __device__ Barriers(uint32_t at, int stages)
      : full(at),
        empty(full + 8 * stages),
        sums_read(empty + 8 * stages),
        received(sums_read + 8) {}
};

// Four rows of a token's y.
__device__ inline void write(const Weight& to, bool is_bf16, int row, int token,
                             const float (&v)[4]) {
  const int64_t at = token * to.ldy + row;
  if (is_bf16) {
    auto* y = static_cast<__nv_bfloat16*>(to.y) + at;
    if (row + 4 <= to.n && reinterpret_cast<uintptr_t>(y) % sizeof(uint2) == 0) {
      return put_4({v[0], v[1], v[2], v[3]}, y);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (row + j < to.n) put(v[j], y + j);
    }
  } else {
    auto* y = static_cast<float*>(to.y) + at;
    if (row + 4 <= to.n && reinterpret_cast<uintptr_t>(y) % sizeof(float4) == 0) {
      return put_4({v[0], v[1], v[2], v[3]}, y);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (row + j < to.n) put(v[j], y + j);
    }
  }
}

// What four rows of a token are finished with: what there is of y where it is added to, and the
// next norm's weights.
struct Beside {
  float4 y, norm;
};
__device__ inline Beside beside_of(const Work& w, const Weight& to, int row, int token) {
  Beside out = {};
  if (!w.add) return out;
  const auto* y = static_cast<const float*>(to.y) + token * to.ldy + row;
  if (row + 4 <= to.n && reinterpret_cast<uintptr_t>(y) % sizeof(float4) == 0) {
    out.y = __ldcg(reinterpret_cast<const float4*>(y));
  } else {
    if (row < to.n) out.y.x = __ldcg(y);
    if (row + 1 < to.n) out.y.y = __ldcg(y + 1);
    if (row + 2 < to.n) out.y.z = __ldcg(y + 2);
    if (row + 3 < to.n) out.y.w = __ldcg(y + 3);
  }
  if (w.next.weight != nullptr) {
    out.norm = *reinterpret_cast<const float4*>(w.next.weight + row);
  }
  return out;
}

// What x's norm leaves to be done to sums: 1 / sqrt(mean(x^2) + eps) for each token, or 1.
template <class S>
__device__ void find_factors(const Work& w, float* factors, int thread) {
  const int lane = thread % 32;
  const int eighths = w.k / 8;
  for (int token = thread / 32; token < w.m; token += S::kReducers / 32) {
    float factor = 1;
    if (w.squares != nullptr) {
      const float* from = w.squares + static_cast<int64_t>(token) * eighths;
      float sum = 0;
#pragma unroll 4
      for (int i = lane * 4; i < eighths; i += 128) {
        const float4 v = __ldcg(reinterpret_cast<const float4*>(from + i));
        sum += v.x + v.y + (v.z + v.w);
      }
      factor = 1.0f / sqrtf(over_warp<Sum>(sum) / static_cast<float>(w.k) + w.norm_eps);
    }
    if (lane == 0) factors[token] = factor;
  }
  sync_some(kReducersSync, S::kReducers);
}

// The reducers' part in a strip. Each rank finishes 64 / ranks rows: it gets the others' sums of
// these by asynchronous stores. No rank overwrites what another has not read: to send strip n + 2
// it has finished n + 1, for which the other had sent n + 1, after all its threads had read n. So
// two exchanges are enough.
template <class S>
struct Reduction {
  const Work& w;
  const Place& place;
  const Barriers& bars;
  const float* sums;
  float* exchange;
  int thread;
  int rows_mine;

  __device__ int token_of(int item) const { return (item << w.log_ranks) / (kStrip / 4); }
  __device__ int row_of(int item) const { return item * 4 & (rows_mine - 1); }
  __device__ uint32_t received(int n) const { return bars.received + 8 * (n % kExchanges); }
  __device__ float* part_of(int n, int source, int token) const {
    return exchange + ((n % kExchanges * w.ranks + source) * w.m + token) * rows_mine;
  }
  __device__ void sums_are_read() const { barrier_arrive(bars.sums_read); }

  __device__ int items() const { return rows_mine / 4 * w.m; }
  // Before the sums of strip n are there: what this rank will get of them.
  __device__ void expect(int n) const {
    if (w.ranks > 1 && thread == 0) {
      barrier_expect(received(n), (w.ranks - 1) * w.m * rows_mine * 4);
    }
  }
  // To all ranks their rows of strip n, and from them this rank's.
  __device__ void share(int n) const {
    for (int i = thread; i < kStrip / 4 * w.m; i += S::kReducers) {
      const int token = i / (kStrip / 4);
      const int row = i % (kStrip / 4) * 4;
      float v[4];
      sum_of_consumers(token, row, v);
      const int owner = row * w.ranks / kStrip;
      float* to = part_of(n, place.rank, token) + (row & (rows_mine - 1));
      if (owner == place.rank) {
        *reinterpret_cast<float4*>(to) = make_float4(v[0], v[1], v[2], v[3]);
      } else {
        send(address_in(shared_address(to), owner), address_in(received(n), owner), v);
      }
    }
    sums_are_read();
    sync_some(kReducersSync, S::kReducers);
    barrier_wait(received(n), n / kExchanges % 2);
  }

  // What consumers have left of four rows of a token.
  __device__ void sum_of_consumers(int token, int row, float (&v)[4]) const {
#pragma unroll
    for (float& one : v) one = 0;
#pragma unroll
    for (int s = 0; s < S::kSplit; ++s) {
      const float4 part =
          *reinterpret_cast<const float4*>(sums + (s * w.m + token) * S::kSumRow + row);
      v[0] += part.x, v[1] += part.y, v[2] += part.z, v[3] += part.w;
    }
  }
  // The whole: that, or what all ranks have of the rows.
  __device__ void sum(int n, int token, int row, float (&v)[4]) const {
    if (w.ranks == 1) return sum_of_consumers(token, row, v);
#pragma unroll
    for (float& one : v) one = 0;
#pragma unroll 2
    for (int source = 0; source < w.ranks; ++source) {
      const float4 part = *reinterpret_cast<const float4*>(part_of(n, source, token) + row);
      v[0] += part.x, v[1] += part.y, v[2] += part.z, v[3] += part.w;
    }
  }
};

// Four rows of a token, and their part of the next norm.
__device__ inline void finish(const Work& w, const Weight& to, int row, int token,
                              const Beside& to_add, float (&v)[4]) {
  if (w.add) v[0] += to_add.y.x, v[1] += to_add.y.y, v[2] += to_add.y.z, v[3] += to_add.y.w;
  write(to, w.y_is_bf16, row, token, v);
  if (w.next.weight == nullptr) return;
  const float4& by = to_add.norm;
  const int64_t at = static_cast<int64_t>(token) * to.n + row;
  put_4({v[0] * by.x, v[1] * by.y, v[2] * by.z, v[3] * by.w},
        static_cast<__nv_bfloat16*>(w.next.rows) + at);
  float squares = fmaf(v[0], v[0], v[1] * v[1]) + fmaf(v[2], v[2], v[3] * v[3]);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  squares += __shfl_xor_sync(3u << (lane & ~1), squares, 1);  // of the eight rows of two threads
  if (lane % 2 == 0) w.next.squares[at / 8] = squares;
}

// Of products that only write y: nothing else is in the way. Reducers meet once before they meet
// the consumers, as in reduce(): without it compute-sanitizer's racecheck does not see that the
// latter orders anything.
template <class S>
__device__ void reduce_plain(const Work& w, const Reduction<S>& strips) {
  const Place& place = strips.place;
  wait_for_previous();
  sync_some(kReducersSync, S::kReducers);
  for (int n = 0; n < place.last - place.first; ++n) {
    strips.expect(n);
    sync_some(kSummedSync, S::kConsumers + S::kReducers);
    if (w.ranks > 1) strips.share(n);
    const Strip strip = strip_of(w, place.first + n);
    const Weight& to = w.weight[strip.weight];
    const int first_row = strip.at * kStrip + place.rank * strips.rows_mine;
    for (int i = strips.thread; i < strips.items(); i += S::kReducers) {
      float v[4];
      strips.sum(n, strips.token_of(i), strips.row_of(i), v);
      write(to, w.y_is_bf16, first_row + strips.row_of(i), strips.token_of(i), v);
    }
    if (w.ranks == 1) strips.sums_are_read();
  }
}

// In this order: the sums; the factor of x's norm; the activation, where the weights are gate and
// up: their strips take turns, and gate's waits in registers for up's; what there is of y, which is
// asked for before the sums are there. A thread has four rows of one token at most.
template <class S>
__device__ void reduce(const Work& w, const Reduction<S>& strips, float* factors) {
  static_assert(kStrip / 4 * kFewTokensFused <= S::kReducers);
  const Place& place = strips.place;
  const bool mine = strips.thread < strips.items();
  const int token = strips.token_of(strips.thread);
  const int row = strips.row_of(strips.thread);
  const bool gated = w.gated != 0;
  float kept[4] = {1, 1, 1, 1};
  wait_for_previous();
  find_factors<S>(w, factors, strips.thread);
  const float factor = mine ? factors[token] : 1;
  for (int n = 0; n < place.last - place.first; ++n) {
    const Strip strip = strip_of(w, place.first + n);
    const Weight& to = w.weight[gated ? 0 : strip.weight];
    const int first_row = strip.at * kStrip + place.rank * strips.rows_mine;
    Beside beside = {};
    if (mine) beside = beside_of(w, to, first_row + row, token);
    strips.expect(n);
    sync_some(kSummedSync, S::kConsumers + S::kReducers);
    if (w.ranks > 1) strips.share(n);
    if (mine) {
      float v[4];
      strips.sum(n, token, row, v);
#pragma unroll
      for (float& one : v) one *= factor;
      if (gated && strip.weight == 0) {
        apply(w.function, v);
#pragma unroll
        for (int j = 0; j < 4; ++j) kept[j] = v[j];
      } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) v[j] *= kept[j];
        finish(w, to, first_row + row, token, beside, v);
      }
    }
    if (w.ranks == 1) strips.sums_are_read();
  }
}

#endif

}  // namespace
}  // namespace nibble::kernels::cuda
