#include "kernels/attention/attention.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "device/cuda.h"
#include "kernels/attention/attention_ops.h"
#include "kernels/cuda/abi.h"
#include "kernels/scratch.h"

namespace nibble::kernels {
namespace {

constexpr int64_t kTaskRows = 96;        // a multiple of every ISA's rows in registers (6, 8)
constexpr int64_t kSplitTokens = 128;    // the least context that is worth a task of its own
constexpr int64_t kSerialWork = 250000;  // multiplications: a few us of one core

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// How one call is cut into tasks; from shapes alone.
struct Cut {
  int64_t kv_heads = 0;
  int64_t group = 1;
  int64_t block_tokens = 1;  // query tokens of a task
  int64_t blocks = 1;
  int64_t first_key = 0;  // a multiple of kKeyTile
  int64_t split_tokens = 0;
  int64_t splits = 1;  // more than one only if blocks == 1
  int64_t task_rows = 0;
  bool serial = false;
};

Cut cut_up(const AttentionConfig& config, const KvShape& shape, int64_t position, int64_t m) {
  Cut cut;
  cut.kv_heads = shape.heads;
  cut.group = config.heads / shape.heads;
  cut.block_tokens = std::min(m, std::max<int64_t>(1, kTaskRows / cut.group));
  cut.blocks = ceil_div(m, cut.block_tokens);
  cut.task_rows = cut.block_tokens * cut.group;
  if (config.window > 0) {
    cut.first_key = std::max<int64_t>(0, position - config.window + 1) / kKeyTile * kKeyTile;
  }
  const int64_t context = position + m - cut.first_key;
  cut.split_tokens = context;
  if (cut.blocks == 1) {
    const int64_t least = ceil_div(ceil_div(context, kMostParts), kKeyTile) * kKeyTile;
    cut.split_tokens = std::max(kSplitTokens, least);
    cut.splits = ceil_div(context, cut.split_tokens);
  }
  cut.serial = m * config.heads * context * (shape.key_dim + shape.value_dim) < kSerialWork;
  return cut;
}

// Everything that the tasks of one call share.
struct Call {
  const Ops& ops;
  const AttentionConfig& config;
  const KvCache& cache;
  const float* q;
  int64_t ldq;
  int64_t position;
  int64_t m;
  float* out;
  int64_t ldo;
  Cut cut;
  int64_t value_pad;
};

AttentionRange range_of(const Call& call, int64_t head, int64_t block) {
  const Cut& cut = call.cut;
  const KvShape& shape = call.cache.shape();
  const int64_t token = block * cut.block_tokens;
  AttentionRange r;
  r.q = call.q + token * call.ldq + head * cut.group * shape.key_dim;
  r.ldq = call.ldq;
  r.group = cut.group;
  r.rows = std::min(cut.block_tokens, call.m - token) * cut.group;
  r.first_position = call.position + token;
  r.scale = call.config.scale;
  r.soft_cap = call.config.soft_cap;
  r.window = call.config.window;
  r.type = shape.type;
  r.pages = call.cache.pages();
  r.key_offset = call.cache.key_offset(head);
  r.value_offset = call.cache.value_offset(head);
  r.key_scale = call.cache.key_scale(head);
  r.key_zero = call.cache.key_zero(head);
  r.value_scale = call.cache.value_scale(head);
  r.value_zero = call.cache.value_zero(head);
  r.scale_offset = call.cache.scale_offset(head);
  r.key_dim = shape.key_dim;
  r.value_dim = call.value_pad;
  r.key_begin = cut.first_key;
  r.key_end = r.first_position + r.rows / cut.group;
  return r;
}

void join_row(const Call& call, const AttentionRange& r, int64_t head, int64_t row, int64_t count,
              int64_t acc_stride, int64_t row_stride) {
  const Cut& cut = call.cut;
  const int64_t token = r.first_position - call.position + row / cut.group;
  const int64_t query_head = head * cut.group + row % cut.group;
  AttentionParts parts;
  parts.count = count;
  parts.acc = r.acc + row * call.value_pad;
  parts.max = r.max + row;
  parts.sum = r.sum + row;
  parts.acc_stride = acc_stride;
  parts.row_stride = row_stride;
  parts.value_dim = call.cache.shape().value_dim;
  parts.has_sink = call.config.sinks != nullptr;
  parts.sink = parts.has_sink ? call.config.sinks[query_head] : 0.0f;
  call.ops.attention->join(parts, call.out + token * call.ldo + query_head * parts.value_dim);
}

// Many query tokens: a task is a block of them and a KV head, over the whole context.
void run_blocks(device::Stream& stream, const Call& call) {
  const Cut& cut = call.cut;
  const int64_t scratch_floats =
      attention_scratch(cut.task_rows, call.cache.shape().key_dim, call.value_pad);
  const int64_t worker_floats =
      aligned_floats(scratch_floats + cut.task_rows * (call.value_pad + 2));
  float* all = stream.scratch_of<float>(kAttentionWorkerSlot, worker_floats * stream.threads());
  const int64_t tasks = cut.blocks * cut.kv_heads;
  const auto body = [&](int64_t begin, int64_t end, int worker) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t head = i % cut.kv_heads;
      // The last tokens see the longest context: they go first, so that the end is even.
      AttentionRange r = range_of(call, head, cut.blocks - 1 - i / cut.kv_heads);
      r.scratch = all + worker * worker_floats;
      r.acc = r.scratch + scratch_floats;
      r.max = r.acc + cut.task_rows * call.value_pad;
      r.sum = r.max + cut.task_rows;
      call.ops.attention->range(r);
      for (int64_t row = 0; row < r.rows; ++row) join_row(call, r, head, row, 1, 0, 0);
    }
  };
  stream.pool().parallel_for(tasks, cut.serial ? tasks : 1, body);
}

// Few query tokens: a task is a piece of the context and a KV head; a second loop joins the pieces.
void run_splits(device::Stream& stream, const Call& call) {
  const Cut& cut = call.cut;
  const int64_t worker_floats =
      attention_scratch(cut.task_rows, call.cache.shape().key_dim, call.value_pad);
  float* scratch = stream.scratch_of<float>(kAttentionWorkerSlot, worker_floats * stream.threads());
  // (head, split): acc (rows, value_pad), max (rows), sum (rows)
  const int64_t part_floats = aligned_floats(cut.task_rows * (call.value_pad + 2));
  const int64_t tasks = cut.kv_heads * cut.splits;
  float* parts = stream.scratch_of<float>(kAttentionPartSlot, part_floats * tasks);
  const auto part_of = [&](int64_t head, int64_t split) {
    AttentionRange r = range_of(call, head, 0);
    r.key_begin = cut.first_key + split * cut.split_tokens;
    r.key_end = std::min(r.key_end, r.key_begin + cut.split_tokens);
    r.acc = parts + (head * cut.splits + split) * part_floats;
    r.max = r.acc + cut.task_rows * call.value_pad;
    r.sum = r.max + cut.task_rows;
    return r;
  };
  stream.pool().parallel_for(tasks, cut.serial ? tasks : 1,
                             [&](int64_t begin, int64_t end, int worker) {
                               for (int64_t i = begin; i < end; ++i) {
                                 AttentionRange r = part_of(i / cut.splits, i % cut.splits);
                                 r.scratch = scratch + worker * worker_floats;
                                 call.ops.attention->range(r);
                               }
                             });
  const int64_t rows = cut.kv_heads * cut.task_rows;
  const int64_t together = std::max<int64_t>(1, kSerialWork / (cut.splits * call.value_pad));
  stream.pool().parallel_for(rows, together, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t head = i / cut.task_rows;
      join_row(call, part_of(head, 0), head, i % cut.task_rows, cut.splits, part_floats,
               part_floats);
    }
  });
}

}  // namespace

void attention(device::Stream& stream, const Ops& ops, const AttentionConfig& config,
               const KvCache& cache, const float* q, int64_t ldq, int64_t position, int64_t m,
               float* out, int64_t ldo) {
  if (m <= 0) return;
  const KvShape& shape = cache.shape();
  NIBBLE_CHECK(config.heads > 0 && config.heads % shape.heads == 0);
  NIBBLE_CHECK(position >= 0 && position + m <= cache.size());
  NIBBLE_CHECK(stream.cuda() == nullptr);
  if (cache.has_not_finite()) {
    for (int64_t i = 0; i < m; ++i) {
      std::fill_n(out + i * ldo, config.heads * shape.value_dim,
                  std::numeric_limits<float>::quiet_NaN());
    }
    return;
  }
  if (ops.isa == device::Isa::kReference) {
    attention_reference(config, cache, q, ldq, position, m, out, ldo);
    return;
  }
  const Call call = {ops,
                     config,
                     cache,
                     q,
                     ldq,
                     position,
                     m,
                     out,
                     ldo,
                     cut_up(config, shape, position, m),
                     padded_dim(shape.value_dim)};
  if (call.cut.blocks == 1) {
    run_splits(stream, call);
  } else {
    run_blocks(stream, call);
  }
}

namespace {

// Into how many parts a card cuts a context at most: one block of each for every multiprocessor,
// and each with so many keys that it is worth a block. What was recorded for a number of pages is
// made anew when there are more.
int64_t splits_for(const device::Gpu& gpu, int64_t units, int64_t room) {
  constexpr int64_t kLeastKeys = 64;
  const int64_t blocks = std::clamp<int64_t>(gpu.multiprocessors / units, 1, 128);
  return std::min(blocks, ceil_div(room, kLeastKeys));
}

void attend_on_card(device::Cuda& cuda, const AttentionConfig& config, const KvCache& cache,
                    const AttentionStep& step) {
  constexpr int64_t kTogether = 16;  // query heads of a block
  CudaStep call{};
  call.kv = cuda_kv(cache);
  call.heads = config.heads;
  call.scale = config.scale;
  call.soft_cap = config.soft_cap;
  call.window = config.window;
  call.sinks = config.sinks;
  call.exact = config.exact;
  if (step.rope != nullptr) {
    call.neighbours = step.rope->order == PairOrder::kNeighbours;
    call.cos = step.rope->placed_cos;
    call.sin = step.rope->placed_sin;
    call.rotary_dim = step.rope->rotary_dim;
  }
  call.q = step.q;
  call.ldq = step.ldq;
  call.k = step.k;
  call.ldk = step.ldk;
  call.v = step.v;
  call.ldv = step.ldv;
  call.out = step.out.data;
  call.out_is_bf16 = step.out.held == Held::kBf16;
  call.ldo = step.ldo;
  call.m = step.m;
  call.position = step.position;
  call.placed = step.placed_position;
  const int64_t kv_heads = cache.shape().heads;
  const int64_t units = kv_heads * ceil_div(config.heads / kv_heads, kTogether);
  call.splits = splits_for(cuda.gpu(), units, cache.room());
  const int64_t floats = units * call.splits * kTogether * (cache.shape().value_dim + 2);
  call.work = reinterpret_cast<float*>(
      cuda.scratch(kAttentionCudaSlot, static_cast<size_t>(floats) * sizeof(float)));
  cuda.kernels().attend(cuda.context(), &call);
}

}  // namespace

void attend(device::Stream& stream, const Ops& ops, const AttentionConfig& config, KvCache& cache,
            const AttentionStep& step) {
  if (step.m <= 0) return;
  const KvShape& shape = cache.shape();
  NIBBLE_CHECK(config.heads > 0 && config.heads % shape.heads == 0);
  if (device::Cuda* cuda = stream.cuda(); cuda != nullptr) {
    attend_on_card(*cuda, config, cache, step);
    return cache.set_size(step.position + step.m);
  }
  NIBBLE_CHECK(cache.size() == step.position);
  if (step.rope != nullptr) {
    rotate(stream, ops, *step.rope, step.q, step.ldq, config.heads, shape.key_dim);
    rotate(stream, ops, *step.rope, step.k, step.ldk, shape.heads, shape.key_dim);
  }
  cache.append(stream, ops, step.k, step.ldk, step.v, step.ldv, step.m);
  attention(stream, ops, config, cache, step.q, step.ldq, step.position, step.m, step.out.f32(),
            step.ldo);
}

}  // namespace nibble::kernels
