// sample.h on a card. All multiprocessors look for the largest logit; the block that is done last
// does the rest: a vocabulary of logits is read in a few microseconds.
// What is ranked comes out of a histogram of the logits' leading bits, refined until few enough are
// left to be sorted; sums that decide are those of sample.cc, in its order and in double.
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/functions.h"

namespace nibble::kernels::cuda {
namespace {

constexpr int kBlock = 1024;  // threads
constexpr int kMostRanked = 1024;
constexpr int kMostSorted = 2048;
constexpr int kBins = 2048;  // of 11 bits
constexpr unsigned kNobody = 0xffffffffu;

// Larger logits have larger keys; so have, of equal ones, lower ids. -0 is 0.
__device__ unsigned key_of(float logit) {
  const unsigned bits = __float_as_uint(logit + 0.0f);
  return bits ^ ((bits >> 31) != 0 ? 0xffffffffu : 0x80000000u);
}
__device__ float logit_of(unsigned key) {
  return __uint_as_float(key ^ ((key >> 31) != 0 ? 0x80000000u : 0xffffffffu));
}
__device__ unsigned long long rank_of(float logit, int64_t id) {
  return static_cast<unsigned long long>(key_of(logit)) << 32 |
         (kNobody - static_cast<unsigned>(id));
}
__device__ int id_of(unsigned long long rank) {
  return static_cast<int>(kNobody - static_cast<unsigned>(rank));
}

__device__ float penalised(const CudaSample& call, int64_t i) {
  const float l = call.logits[i];
  if (call.seen == nullptr || call.seen[i] == 0) return l;
  return l > 0 ? l / call.repeat_penalty : l * call.repeat_penalty;
}

struct Shared {
  unsigned long long best[kMostSorted];  // ranks
  double weight[kMostRanked];
  double part[kBlock];
  int bins[kBins];
  int stretches[kBlock / kWarp];
  int counter;
  int chosen;
  bool is_last;
};

__device__ double weight_of(const CudaSample& call, float logit, float largest) {
  return exp((static_cast<double>(logit) - largest) / call.temperature);
}

__device__ void answer(const CudaSample& call, int id, CudaSampled::Status status) {
  call.answer->id = id;
  call.answer->status = status;
}

// The bin with the count-th largest key among those that begin as `prefix` does, and how many lie
// in bins above it. A key's bits from `shift` on, 11 of them, are its bin.
__device__ int bin_of(const CudaSample& call, Shared& shared, unsigned prefix, int shift, int bits,
                      int count, int* above) {
  for (int i = static_cast<int>(threadIdx.x); i < kBins; i += kBlock) shared.bins[i] = 0;
  __syncthreads();
  for (int64_t i = threadIdx.x; i < call.n; i += kBlock) {
    const unsigned key = key_of(penalised(call, i));
    const unsigned head = shift + bits < 32 ? key >> (shift + bits) : 0;
    if (head == prefix) atomicAdd(&shared.bins[key >> shift & ((1u << bits) - 1)], 1);
  }
  __syncthreads();
  // Each warp adds the bins of a stretch, so that one thread has few numbers to go over.
  constexpr int kStretch = kBins / (kBlock / kWarp);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  int in_stretch = 0;
  for (int i = static_cast<int>(threadIdx.x) % kWarp; i < kStretch; i += kWarp) {
    in_stretch += shared.bins[warp * kStretch + i];
  }
  in_stretch = over_warp<Sum>(in_stretch);
  if (threadIdx.x % kWarp == 0) shared.stretches[warp] = in_stretch;
  __syncthreads();
  if (threadIdx.x == 0) {
    int sum = 0;
    int stretch = kBlock / kWarp - 1;
    while (stretch > 0 && sum + shared.stretches[stretch] < count) {
      sum += shared.stretches[stretch--];
    }
    int bin = (stretch + 1) * kStretch - 1;
    while (bin > 0 && sum + shared.bins[bin] < count) sum += shared.bins[bin--];
    shared.counter = sum;
    shared.chosen = bin;
  }
  __syncthreads();
  *above = shared.counter;
  const int bin = shared.chosen;
  __syncthreads();
  return bin;
}

// The lowest key such that at least `count` are not below it and that few enough are; 0 if there is
// none.
__device__ unsigned border(const CudaSample& call, Shared& shared, int count) {
  unsigned prefix = 0;
  int above = 0;
  int shift = 32;
  for (const int bits : {11, 11, 10}) {
    shift -= bits;
    int in_bins_above = 0;
    const int bin = bin_of(call, shared, prefix, shift, bits, count - above, &in_bins_above);
    above += in_bins_above;
    prefix = prefix << bits | static_cast<unsigned>(bin);
    if (above + shared.bins[bin] <= kMostSorted) return prefix << shift;
    __syncthreads();
  }
  return 0;
}

// shared.best: all from `lowest` on, best first; returns how many.
__device__ int rank_from(const CudaSample& call, Shared& shared, unsigned lowest) {
  __syncthreads();
  if (threadIdx.x == 0) shared.counter = 0;
  __syncthreads();
  for (int64_t i = threadIdx.x; i < call.n; i += kBlock) {
    const float l = penalised(call, i);
    if (key_of(l) >= lowest) shared.best[atomicAdd(&shared.counter, 1)] = rank_of(l, i);
  }
  __syncthreads();
  const int count = shared.counter;
  int size = 2;
  while (size < count) size *= 2;
  for (int i = count + static_cast<int>(threadIdx.x); i < size; i += kBlock) shared.best[i] = 0;
  __syncthreads();
  for (int run = 2; run <= size; run *= 2) {
    for (int step = run / 2; step > 0; step /= 2) {
      for (int i = static_cast<int>(threadIdx.x); i < size / 2; i += kBlock) {
        const int a = i / step * 2 * step + i % step;
        const int b = a + step;
        const bool falling = (a & run) == 0;
        const unsigned long long x = shared.best[a];
        const unsigned long long y = shared.best[b];
        if ((x < y) == falling) {
          shared.best[a] = y;
          shared.best[b] = x;
        }
      }
      __syncthreads();
    }
  }
  return count;
}

// Sampler::draw of `count` ranked ones, by one thread.
__device__ int draw(const CudaSample& call, const Shared& shared, int count) {
  double total = 0;
  for (int i = 0; i < count; ++i) {
    if (shared.weight[i] >= call.min_p) total += shared.weight[i];
  }
  const double mark = call.uniform * total;
  double sum = 0;
  int id = id_of(shared.best[0]);
  for (int i = 0; i < count; ++i) {
    if (shared.weight[i] < call.min_p || shared.weight[i] == 0) continue;
    id = id_of(shared.best[i]);
    sum += shared.weight[i];
    if (mark < sum) break;
  }
  return id;
}

// The sum over all logits, parts of the vocabulary one after the other, and shared.part: that of
// each thread's part. With min-p or without.
__device__ double total_weight(const CudaSample& call, Shared& shared, float largest, float min_p) {
  const int64_t each = (call.n + kBlock - 1) / kBlock;
  const int64_t begin = threadIdx.x * each;
  double sum = 0;
  for (int64_t i = begin; i < begin + each && i < call.n; ++i) {
    const double w = weight_of(call, penalised(call, i), largest);
    if (w >= min_p) sum += w;
  }
  __syncthreads();
  shared.part[threadIdx.x] = sum;
  __syncthreads();
  double all = 0;
  for (int i = 0; i < kBlock; ++i) all += shared.part[i];
  return all;
}

// Neither top-k nor top-p: everything stays, in the order of the ids.
__device__ void draw_of_all(const CudaSample& call, Shared& shared, float largest) {
  const double total = total_weight(call, shared, largest, call.min_p);
  if (threadIdx.x != 0) return;
  const double mark = call.uniform * total;
  double sum = 0;
  int part = 0;
  int last = 0;  // part with a weight
  for (; part < kBlock; ++part) {
    if (shared.part[part] > 0) last = part;
    if (mark < sum + shared.part[part]) break;
    sum += shared.part[part];
  }
  if (part == kBlock) {  // roundings differ: the last that has a weight
    part = last;
    sum -= shared.part[last];
  }
  const int64_t each = (call.n + kBlock - 1) / kBlock;
  int64_t id = 0;
  for (int64_t i = part * each; i < (part + 1) * each && i < call.n; ++i) {
    const double w = weight_of(call, penalised(call, i), largest);
    if (w < call.min_p || w == 0) continue;
    id = i;
    sum += w;
    if (mark < sum) break;
  }
  answer(call, static_cast<int>(id), CudaSampled::kDone);
}

// top-k, top-p, both; k is n without the first.
__device__ void draw_of_largest(const CudaSample& call, Shared& shared, float largest, int64_t k) {
  const int wanted = static_cast<int>(k < kMostRanked ? k : kMostRanked);
  const bool too_many = k > kMostRanked && k != call.n;  // their sum would have to be known
  const unsigned lowest = too_many ? 0 : border(call, shared, wanted);
  if (lowest == 0) {  // or more equal ones than can be sorted
    if (threadIdx.x == 0) answer(call, 0, CudaSampled::kForTheHost);
    return;
  }
  const int found = rank_from(call, shared, lowest);
  const int count = found < wanted ? found : wanted;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kBlock) {
    const auto key = static_cast<unsigned>(shared.best[i] >> 32);
    shared.weight[i] = weight_of(call, logit_of(key), largest);
  }
  double total = 0;
  if (k == call.n) total = total_weight(call, shared, largest, -1.0f);
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (k != call.n) {
    for (int i = 0; i < count; ++i) total += shared.weight[i];
  }
  int staying = 0;
  double sum = 0;
  for (int i = 0; i < count && call.top_p < 1 && staying == 0; ++i) {
    sum += shared.weight[i];
    if (!(sum < call.top_p * total)) staying = i + 1;
  }
  if (staying == 0 && count < k) return answer(call, 0, CudaSampled::kForTheHost);
  answer(call, draw(call, shared, staying == 0 ? count : staying), CudaSampled::kDone);
}

constexpr unsigned long long kBad = ~0ull;  // in the place of a rank: a logit is not finite
constexpr int kPerBlock = 4 * kBlock;       // logits

// What the blocks find together.
struct Best {
  unsigned long long rank;
  unsigned blocks;
};
static_assert(sizeof(Best) <= NibbleCudaContext::kBestBytes);

// The best of a block's part, or kBad.
__device__ unsigned long long best_of_block(const CudaSample& call) {
  unsigned long long best = 0;
  bool bad = false;
  const int64_t begin = int64_t{blockIdx.x} * kPerBlock;
  const int64_t end = begin + kPerBlock < call.n ? begin + kPerBlock : call.n;
#pragma unroll 4
  for (int64_t i = begin + threadIdx.x; i < end; i += kBlock) {
    bad = bad || !isfinite(call.logits[i]);
    best = Max::join(best, rank_of(penalised(call, i), i));
  }
  return over_block<Max>(bad ? kBad : best);
}

__global__ void __launch_bounds__(kBlock) sample_one(CudaSample call, Best* of_all) {
  extern __shared__ __align__(16) char memory[];
  auto& shared = *reinterpret_cast<Shared*>(memory);
  let_next_start();
  wait_for_previous();
  for (int64_t i = threadIdx.x; i < call.accepted_count; i += kBlock) {  // in each block the same
    if (call.accepted[i] < call.n) call.seen[call.accepted[i]] = 1;
  }
  __syncthreads();
  unsigned long long best = best_of_block(call);
  if (threadIdx.x == 0) {
    atomicMax(&of_all->rank, best);
    __threadfence();
    shared.is_last = atomicAdd(&of_all->blocks, 1u) + 1 == gridDim.x;
    __threadfence();
    if (shared.is_last) {
      shared.best[0] = atomicExch(&of_all->rank, 0ull);
      of_all->blocks = 0;
    }
  }
  __syncthreads();
  if (!shared.is_last) return;
  best = shared.best[0];
  __syncthreads();  // it is read
  if (best == kBad) {
    if (threadIdx.x == 0) answer(call, 0, CudaSampled::kNotFinite);
    return;
  }
  if (call.temperature == 0) {
    if (threadIdx.x == 0) answer(call, id_of(best), CudaSampled::kDone);
    return;
  }
  const float largest = logit_of(static_cast<unsigned>(best >> 32));
  const int64_t k = call.top_k > 0 && call.top_k < call.n ? call.top_k : call.n;
  if (k == call.n && call.top_p == 1) return draw_of_all(call, shared, largest);
  draw_of_largest(call, shared, largest, k);
}

// A block for each row.
__global__ void __launch_bounds__(kBlock)
    score_rows(const float* logits, int64_t n, const int32_t* targets, double* out) {
  let_next_start();
  wait_for_previous();
  const float* row = logits + blockIdx.x * n;
  float top = -INFINITY;
  int bad = 0;
  for (int64_t i = threadIdx.x; i < n; i += kBlock) {
    top = fmaxf(top, row[i]);
    bad |= isfinite(row[i]) ? 0 : 1;
  }
  top = over_block<Max>(top);
  bad = over_block<Max>(bad);
  double sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += kBlock) sum += exp(static_cast<double>(row[i]) - top);
  sum = over_block<Sum>(sum);
  if (threadIdx.x != 0) return;
  out[blockIdx.x] = bad != 0 ? NAN : top + log(sum) - row[targets[blockIdx.x]];
}

}  // namespace

void sample(NibbleCudaContext* context, const CudaSample* call) {
  const dim3 grid(static_cast<unsigned>((call->n + kPerBlock - 1) / kPerBlock));
  auto* best = reinterpret_cast<Best*>(context->counters + NibbleCudaContext::kCounters);
  start(context, "sample", sample_one, grid, kBlock, sizeof(Shared), *call, best);
}

void score(NibbleCudaContext* context, const float* logits, int64_t m, int64_t n,
           const int32_t* targets, double* out) {
  start(context, "score", score_rows, dim3(static_cast<unsigned>(m)), kBlock, 0, logits, n, targets,
        out);
}

}  // namespace nibble::kernels::cuda
