// cuda_wgmma.cuh: flash attention with three warpgroups a block. The rows of a KV head are all
// heads of all tokens that read it, token by token; a block has 128 of them and goes over the keys
// in tiles of 128.
//
//   1 producer warpgroup    copies keys and values of a tile into stages of shared memory (codes
//                           become bf16 on the way), two stages of each
//   2 consumer warpgroups   64 rows each: scores of the next tile and sums of the last are with the
//                           tensor cores while the softmax of a tile is computed
//
// A row's shares are relative to a top that is moved only when a score is more than 2^8 times as
// large: they stay below 2^8, and sums are seldom scaled. Blocks with the longest context start
// first.
#include "kernels/attention/cuda_flash.cuh"
#include "kernels/attention/cuda_wgmma.cuh"
#include "kernels/attention/cuda_wgmma_device.cuh"

namespace nibble::kernels::cuda {
namespace {

constexpr int kGroupThreads = 128;
constexpr int kConsumers = 2;  // warpgroups
constexpr int kThreadsOfBlock = (1 + kConsumers) * kGroupThreads;
constexpr int kGroupRows = 64;
constexpr int kRows = kConsumers * kGroupRows;
constexpr int kKeys = 128;  // of a tile, which lies in one page
constexpr int kStages = 2;

// Shared memory, from a multiple of 1024 on.
template <int D>
struct Plan {
  static constexpr int kTile = kKeys * D * 2;
  static constexpr int kQuery = 0;  // (kRows, D) as cuda_wgmma_device.cuh draws tiles
  static constexpr int kKey = kQuery + kRows * D * 2;
  static constexpr int kValue = kKey + kStages * kTile;
  static constexpr int kOwn = kValue + kStages * kTile;  // tokens' scales: (key or value, stage)
  static constexpr int kBarriers = kOwn + 2 * kStages * kKeys * 4;
  static constexpr int kBytes = kBarriers + 4 * kStages * 8;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// For each of the keys' and the values' stages: a tile is there; it was read.
struct Barriers {
  uint32_t first;
  __device__ uint32_t full(bool of_value, int stage) const {
    return first + 8 * ((of_value ? kStages : 0) + stage);
  }
  __device__ uint32_t empty(bool of_value, int stage) const {
    return full(of_value, stage) + 16 * kStages;
  }
};

// What a block does.
struct Place {
  int kv_head;
  int group;         // query heads of a KV head
  int first_row;     // of the KV head's
  int rows;          // there are
  int64_t position;  // of the step's first token
  int64_t begin;     // keys [begin, end), from a tile's first on
  int64_t end;
  int tiles;

  __device__ explicit Place(const CudaStep& step) {
    kv_head = static_cast<int>(blockIdx.x);
    group = static_cast<int>(step.heads) / static_cast<int>(step.kv.heads);
    rows = static_cast<int>(step.m) * group;
    position = step.placed != nullptr ? *step.placed : step.position;
    first_row = static_cast<int>(gridDim.y - 1 - blockIdx.y) * kRows;
    const int last = (first_row + kRows < rows ? first_row + kRows : rows) - 1;
    end = position + last / group + 1;
    const int64_t lowest = position + first_row / group + 1 - step.window;
    begin = step.window > 0 && lowest > 0 ? lowest / kKeys * kKeys : 0;
    tiles = static_cast<int>((end - begin + kKeys - 1) / kKeys);
  }
};

// Copies that are under way are told of in order. Nobody may wait for anything else before all are,
// as others may wait for them.
template <class S, int D>
class Producer {
 public:
  __device__ Producer(const CudaStep& step, const Place& place, char* shared, Barriers barriers)
      : step_(step), place_(place), shared_(shared), barriers_(barriers) {}

  __device__ void run() {
    for (int tile = 0; tile <= place_.tiles; ++tile) {
      if (tile < place_.tiles) bring(false, tile);
      if (tile > 0) bring(true, tile - 1);
    }
    tell_all();
  }

 private:
  __device__ void bring(bool of_value, int tile) {
    const int stage = tile % kStages;
    const uint32_t empty = barriers_.empty(of_value, stage);
    const uint32_t parity = tile / kStages % 2 ^ 1;
    if (!sm90::barrier_is_done(empty, parity)) {
      tell_all();
      sm90::barrier_wait(empty, parity);
    }
    const CudaKv& kv = step_.kv;
    const int64_t key = place_.begin + int64_t{tile} * kKeys;
    const char* head = head_of(kv, place_.kv_head, key);
    const int64_t at = key % kv.page_tokens;
    const int64_t left = place_.end - key;
    const int there = static_cast<int>(left < kKeys ? left : kKeys);
    const char* from =
        head + (of_value ? kv.key_bytes : 0) + at * D * static_cast<int64_t>(sizeof(S));
    char* to = shared_ + (of_value ? Plan<D>::kValue : Plan<D>::kKey) + stage * Plan<D>::kTile;
    if constexpr (sizeof(S) == 1) {
      widen_tile(head_zero(kv, place_.kv_head, of_value), from, there, to);
      if (kv.scale_offset >= 0) {
        const auto* own = reinterpret_cast<const float*>(head + kv.scale_offset) +
                          (of_value ? kv.page_tokens : 0) + at;
        auto* scales = reinterpret_cast<float*>(shared_ + Plan<D>::kOwn);
        scales[((of_value ? kStages : 0) + stage) * kKeys + thread_] =
            thread_ < there ? own[thread_] : 0.0f;
      }
      let_tensor_cores_read();
      sm90::barrier_arrive(barriers_.full(of_value, stage));
    } else {
      copy_tile(from, there, to);
      end_of_copies();
      if (pending_ == kAhead) tell_oldest();
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {  // registers have no index
        if (i == pending_) waiting_[i] = barriers_.full(of_value, stage);
      }
      ++pending_;
    }
  }

  // A thread's chunks are kRowsAtOnce rows apart, so that all are swizzled alike.
  __device__ void copy_tile(const char* from, int there, char* to) const {
    constexpr int kChunks = D / 8;  // of a row
    constexpr int kRowsAtOnce = kGroupThreads / kChunks;
    const int row = thread_ / kChunks;
    to += tile_offset(kKeys, row, thread_ % kChunks * 8);
    from += thread_ * 16;
#pragma unroll
    for (int i = 0; i < kKeys / kRowsAtOnce; ++i) {
      copy_16(to + i * kRowsAtOnce * 128, from + i * kGroupThreads * 16,
              row + i * kRowsAtOnce < there);
    }
  }
  __device__ void widen_tile(float zero, const char* from, int there, char* to) const {
    constexpr int kChunks = D / 16;
    constexpr int kRowsAtOnce = kGroupThreads / kChunks;
    constexpr int kRounds = kKeys / kRowsAtOnce;
    constexpr int kTogether = 4;
    const int row = thread_ / kChunks;
    const int column = thread_ % kChunks * 16;
#pragma unroll 1
    for (int first = 0; first < kRounds; first += kTogether) {
      uint4 codes[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        codes[i] = make_uint4(0, 0, 0, 0);
        if (row + (first + i) * kRowsAtOnce >= there) continue;
        codes[i] =
            *reinterpret_cast<const uint4*>(from + ((first + i) * kGroupThreads + thread_) * 16);
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        uint4 wide[2];
        widen(step_.kv.type, zero, codes[i], wide);
        char* piece = to + (first + i) * kRowsAtOnce * 128;
        *reinterpret_cast<uint4*>(piece + tile_offset(kKeys, row, column)) = wide[0];
        *reinterpret_cast<uint4*>(piece + tile_offset(kKeys, row, column + 8)) = wide[1];
      }
    }
  }

  __device__ void tell_oldest() {
    wait_for_copies<kAhead - 1>();
    let_tensor_cores_read();
    sm90::barrier_arrive(waiting_[0]);
#pragma unroll
    for (int i = 1; i < kAhead; ++i) waiting_[i - 1] = waiting_[i];
    --pending_;
  }
  __device__ void tell_all() {
    wait_for_copies<0>();
    let_tensor_cores_read();
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (i < pending_) sm90::barrier_arrive(waiting_[i]);
    }
    pending_ = 0;
  }

  static constexpr int kAhead = 3;  // of the four stages
  const CudaStep& step_;
  const Place& place_;
  char* shared_;
  Barriers barriers_;
  int thread_ = static_cast<int>(threadIdx.x) % kGroupThreads;
  uint32_t waiting_[kAhead] = {};
  int pending_ = 0;
};

// A warpgroup's 64 rows.
template <class S, int D>
class Consumer {
 public:
  using M = Factor<S>;

  __device__ Consumer(const CudaStep& step, const Place& place, char* shared, Barriers barriers,
                      int group)
      : step_(step), place_(place), shared_(shared), barriers_(barriers), group_(group) {
    own_row_ = place.first_row + group * kGroupRows + warp_ * 16;
    first_token_ = own_row_ / place.group;
    last_token_ = (own_row_ + 15) / place.group;
    for (int r = 0; r < 2; ++r) token_[r] = (own_row_ + lane_ / 4 + 8 * r) / place.group;
  }

  __device__ void run() {
    const bool own = sizeof(S) == 1 && step_.kv.scale_offset >= 0;
    const bool scaled = sizeof(S) == 1 && !own;
    const float key_scale = scaled ? head_scale(step_.kv, place_.kv_head, false) : 1.0f;
    place_queries(step_.scale * key_scale);
    float s[kKeys / 2];
    float o[D / 2] = {};
    uint32_t p[kKeys / 16][4];
    sm90::barrier_wait(barriers_.full(false, 0), 0);
    sm90::wgmma_fence();
    start_scores(s, 0);
    sm90::wgmma_wait<0>();
    sm90::keep(s);
    if (own) scale_columns_of(s, scales_of(false, 0));
    read(false, 0);
    float kept[2];
    softmax(s, 0, kept);
    for (int tile = 1; tile < place_.tiles; ++tile) {
      if (own) scale_shares(s, tile - 1);
      to_factors(s, p);
      const int stage = tile % kStages;
      sm90::barrier_wait(barriers_.full(false, stage), tile / kStages % 2);
      sm90::wgmma_fence();
      start_scores(s, stage);
      start_sums(o, p, tile - 1);
      sm90::wgmma_wait<1>();
      sm90::keep(s);
      if (own) scale_columns_of(s, scales_of(false, tile));
      read(false, stage);
      const bool moved = softmax(s, tile, kept);
      sm90::wgmma_wait<0>();
      sm90::keep(o);
      read(true, (tile - 1) % kStages);
      if (__any_sync(0xffffffffu, moved)) {
#pragma unroll
        for (int i = 0; i < D / 2; ++i) o[i] *= kept[i / 2 % 2];
      }
    }
    const int last = place_.tiles - 1;
    if (own) scale_shares(s, last);
    to_factors(s, p);
    start_sums(o, p, last);
    sm90::wgmma_wait<0>();
    sm90::keep(o);
    const bool bad = sizeof(S) == 1 && *step_.kv.first_bad < place_.position + step_.m;
    const float value_scale = scaled ? head_scale(step_.kv, place_.kv_head, true) : 1.0f;
    store(o, bad ? NAN : value_scale);
  }

 private:
  // A row of the KV head's.
  struct Row {
    int token;
    int head;
    bool there;
  };
  __device__ Row row_of(int index) const {
    return {index / place_.group, place_.kv_head * place_.group + index % place_.group,
            index < place_.rows};
  }

  // A warp turns, scales and rounds its 16 queries. What a lane needs of many of them is asked for
  // together, as all wait for it; partners come from other lanes.
  __device__ void place_queries(float scale) {
    constexpr int kLanes = D / 4;  // for a row
    constexpr int kAtOnce = kWarp / kLanes;
    constexpr int kTogether = 8;
    const int d = lane_ % kLanes * 4;
    const bool turns = d < step_.rotary_dim;
    const int partner = turns ? lane_ / kLanes * kLanes + partner_4(step_, d) / 4 : lane_;
    const float* const q = step_.q + int64_t{place_.kv_head} * place_.group * D + d;
    const int own_first = own_row_ + lane_ / kLanes;
    int token = own_first / place_.group;
    int head = own_first - token * place_.group;  // of the KV head's
#pragma unroll 1
    for (int first = 0; first < 16; first += kTogether * kAtOnce) {
      float4 own[kTogether];
      Angles4 angles[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const bool there = own_first + first + i * kAtOnce < place_.rows;
        own[i] = {0, 0, 0, 0};
        angles[i] = {own[i], own[i]};
        if (there) own[i] = *reinterpret_cast<const float4*>(q + token * step_.ldq + head * D);
        if (there && turns) angles[i] = angles_4(step_, token, d);
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {  // no divisions: they would keep the loads apart
          const bool next_token = ++head == place_.group;
          token += next_token ? 1 : 0;
          head = next_token ? 0 : head;
        }
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        float4 v = own[i];
        const float4 other = {
            __shfl_sync(0xffffffffu, v.x, partner), __shfl_sync(0xffffffffu, v.y, partner),
            __shfl_sync(0xffffffffu, v.z, partner), __shfl_sync(0xffffffffu, v.w, partner)};
        if (turns) v = turned_4(step_, d, v, other, angles[i]);
        put_query(first + lane_ / kLanes + i * kAtOnce, d,
                  {pair_of<M>(v.x * scale, v.y * scale), pair_of<M>(v.z * scale, v.w * scale)});
      }
    }
    let_tensor_cores_read();
    sm90::sync_some(1 + group_, kGroupThreads);
  }
  // Numbers d to d + 3 of a query, as pairs of 16 bits; `row` counts from the warp's first.
  __device__ void put_query(int row, int d, uint2 four) const {
    const uint32_t at = tile_offset(kRows, group_ * kGroupRows + warp_ * 16 + row, d / 8 * 8);
    *reinterpret_cast<uint2*>(shared_ + Plan<D>::kQuery + at + d % 8 * 2) = four;
  }

  __device__ void start_scores(float (&s)[kKeys / 2], int stage) const {
    const uint32_t queries = uniform(shared_address(shared_) + Plan<D>::kQuery +
                                     static_cast<uint32_t>(group_ * kGroupRows * 128));
    const uint32_t keys = shared_address(shared_) + Plan<D>::kKey + stage * Plan<D>::kTile;
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      const uint64_t a = describe_rows(queries + k / 4 * kRows * 128) + k % 4 * kRowsStep;
      const uint64_t b = describe_rows(keys + k / 4 * kKeys * 128) + k % 4 * kRowsStep;
      multiply_rows<M>(s, a, b, k > 0 ? 1 : 0);
    }
    sm90::wgmma_commit();
  }

  __device__ void start_sums(float (&o)[D / 2], const uint32_t (&p)[kKeys / 16][4],
                             int tile) const {
    const int stage = tile % kStages;
    sm90::barrier_wait(barriers_.full(true, stage), tile / kStages % 2);
    sm90::wgmma_fence();
    const uint64_t values =
        describe_columns(shared_address(shared_) + Plan<D>::kValue + stage * Plan<D>::kTile, kKeys);
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) add_product<M>(o, p[k], values + k * kColumnsStep);
    sm90::wgmma_commit();
  }

  __device__ static uint32_t uniform(uint32_t v) { return __shfl_sync(0xffffffffu, v, 0); }

  __device__ void read(bool of_value, int stage) const {
    __syncwarp();
    if (lane_ == 0) sm90::barrier_arrive(barriers_.empty(of_value, stage));
  }

  // Scores to shares of 2^(score - top), with score in units of log 2. Whether a top was moved, and
  // what shares of the old one become.
  __device__ bool softmax(float (&s)[kKeys / 2], int tile, float (&kept)[2]) {
    constexpr float kSlack = 8;
    const int64_t key = place_.begin + int64_t{tile} * kKeys;
    if (step_.soft_cap > 0) {
#pragma unroll
      for (float& v : s) v = step_.soft_cap * tanhf(v / step_.soft_cap);
    }
    // What the warp's first and last row see.
    const int64_t least_end = place_.position + first_token_ + 1;
    const int64_t most_end = place_.position + last_token_ + 1;
    const bool all_seen =
        key + kKeys <= least_end && (step_.window == 0 || key + step_.window >= most_end);
    if (!all_seen) hide(s, key);
    bool moved = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = -INFINITY;
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j)
        top = fmaxf(top, fmaxf(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2)) * kLog2E;
      kept[r] = 1;
      if (top - top_[r] > kSlack) {  // -inf - -inf is not
        kept[r] = exp2_fast(top_[r] - top);
        top_[r] = top;
        moved = true;
      }
      const float base = top_[r] == -INFINITY ? 0.0f : top_[r];  // no key yet: all shares are 0
      float sum = 0;
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& v = s[4 * j + 2 * r + i];
          v = exp2_fast(fmaf(v, kLog2E, -base));
          sum += v;
        }
      }
      sum_[r] = fmaf(sum_[r], kept[r], sum);
    }
    return moved;
  }

  __device__ void hide(float (&s)[kKeys / 2], int64_t key) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int64_t row_end = place_.position + token_[r] + 1 - key;
      const int64_t row_first = step_.window > 0 ? row_end - step_.window : 0;
      const int end = static_cast<int>(row_end < kKeys ? row_end : kKeys);
      const int first = static_cast<int>(row_first < 0 ? 0 : row_first < kKeys ? row_first : kKeys);
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int column = j * 8 + lane_ % 4 * 2 + i;
          if (column < first || column >= end) s[4 * j + 2 * r + i] = -INFINITY;
        }
      }
    }
  }

  __device__ const float* scales_of(bool of_value, int tile) const {
    return reinterpret_cast<const float*>(shared_ + Plan<D>::kOwn) +
           ((of_value ? kStages : 0) + tile % kStages) * kKeys;
  }
  __device__ void scale_columns_of(float (&s)[kKeys / 2], const float* scales) const {
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j) {
      const float2 scale = *reinterpret_cast<const float2*>(scales + j * 8 + lane_ % 4 * 2);
#pragma unroll
      for (int i = 0; i < 4; ++i) s[4 * j + i] *= i % 2 == 0 ? scale.x : scale.y;
    }
  }
  // The tokens' own scales of values, which come with these.
  __device__ void scale_shares(float (&s)[kKeys / 2], int tile) const {
    sm90::barrier_wait(barriers_.full(true, tile % kStages), tile / kStages % 2);
    scale_columns_of(s, scales_of(true, tile));
  }

  __device__ void to_factors(const float (&s)[kKeys / 2], uint32_t (&p)[kKeys / 16][4]) const {
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) p[k][i] = pair_of<M>(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
    }
  }

  __device__ void store(const float (&o)[D / 2], float factor) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const Row row = row_of(own_row_ + lane_ / 4 + 8 * r);
      float sum = sum_[r];
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      if (!row.there) continue;
      float kept = 1;
      if (step_.sinks != nullptr) {
        const float sink = step_.sinks[row.head] * kLog2E;
        const float top = fmaxf(top_[r], sink);
        kept = exp2f(top_[r] - top);
        sum = fmaf(sum, kept, exp2f(sink - top));
      }
      const float scale = kept * factor / sum;
      const int64_t at = row.token * step_.ldo + row.head * D + lane_ % 4 * 2;
#pragma unroll
      for (int j = 0; j < D / 8; ++j) {
        put_out_2(step_, at + j * 8, {o[4 * j + 2 * r] * scale, o[4 * j + 2 * r + 1] * scale});
      }
    }
  }

  const CudaStep& step_;
  const Place& place_;
  char* shared_;
  Barriers barriers_;
  int group_;
  int warp_ = static_cast<int>(threadIdx.x) % kGroupThreads / kWarp;
  int lane_ = static_cast<int>(threadIdx.x) % kWarp;
  int own_row_;  // the warp's first
  int first_token_;
  int last_token_;
  int token_[2];  // of the thread's rows
  float top_[2] = {-INFINITY, -INFINITY};
  float sum_[2] = {0, 0};
};

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

// A warp for each key and value of each token.
template <class S, int D>
__global__ void __launch_bounds__(kThreads) keep_rows(const __grid_constant__ CudaStep step) {
  wait_for_previous();
  let_next_start();
  const int64_t warp = int64_t{blockIdx.x} * (kThreads / kWarp) + threadIdx.x / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t heads = 2 * step.kv.heads;
  if (warp >= step.m * heads) return;
  const int64_t token = warp / heads;
  const int64_t head = warp % heads % step.kv.heads;
  const int64_t position = step.placed != nullptr ? *step.placed : step.position;
  keep_row<S, D>(step, head, token, position + token, warp % heads >= step.kv.heads, nullptr,
                 nullptr, lane);
}

// Grid: (KV heads, 128s of rows).
template <class S, int D>
__global__ void __launch_bounds__(kThreadsOfBlock, 1)
    attend_rows(const __grid_constant__ CudaStep step) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) char shared[];
  const Barriers barriers{shared_address(shared) + Plan<D>::kBarriers};
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      for (const bool of_value : {false, true}) {
        sm90::barrier_init(barriers.full(of_value, stage), kGroupThreads);
        sm90::barrier_init(barriers.empty(of_value, stage), kConsumers * kGroupThreads / kWarp);
      }
    }
    sm90::barrier_inits_done();
  }
  __syncthreads();
  wait_for_previous();
  let_next_start();
  const Place place(step);
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads;
  if (group == kConsumers) {
    sm90::give_registers<40>();
    Producer<S, D>(step, place, shared, barriers).run();
  } else {
    sm90::take_registers<232>();
    Consumer<S, D>(step, place, shared, barriers, group).run();
  }
#endif
}

template <class S, int D>
cudaError_t launch_both(const CudaStep& step, cudaStream_t stream) {
  const int64_t warps = step.m * 2 * step.kv.heads;
  constexpr int64_t kWarpsOfBlock = kThreads / kWarp;
  const dim3 keepers(static_cast<unsigned>((warps + kWarpsOfBlock - 1) / kWarpsOfBlock));
  cudaError_t code = launch(stream, true, keep_rows<S, D>, keepers, kThreads, 0, step);
  if (code != cudaSuccess) return code;
  constexpr int kBytes = Plan<D>::kBytes;
  code =
      cudaFuncSetAttribute(attend_rows<S, D>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (code != cudaSuccess) return code;
  const int64_t rows = step.m * (step.heads / step.kv.heads);
  const dim3 grid(static_cast<unsigned>(step.kv.heads),
                  static_cast<unsigned>((rows + kRows - 1) / kRows));
  return launch(stream, true, attend_rows<S, D>, grid, kThreadsOfBlock, kBytes, step);
}

}  // namespace

bool fits_warpgroups(const CudaStep& step) {
  const int64_t dim = step.kv.key_dim;
  const int64_t rows = step.m * (step.heads / step.kv.heads);
  return (dim == 64 || dim == 128) && step.rotary_dim % 8 == 0 &&
         step.kv.page_tokens % kKeys == 0 && rows <= kMostRows * kRows;
}

cudaError_t launch_warpgroups(const CudaStep& step, cudaStream_t stream) {
  cudaError_t code = cudaSuccess;
  const auto both = [&]<class S, int D>() { code = launch_both<S, D>(step, stream); };
  if (step.kv.key_dim == 64) {
    with_stored<64>(step.kv.type, both);
  } else {
    with_stored<128>(step.kv.type, both);
  }
  return code;
}

}  // namespace nibble::kernels::cuda
