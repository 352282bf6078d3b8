// Attention with the shapes of SmolLM2-135M (9 heads over 3, of 64) and Llama 3 8B (32 over 8, of
// 128): one query over a context, and whole prompts. One thread. The rate is of multiply-adds of
// scores and values.
#include "kernels/attention/attention.h"
#include "kernels/isa_bench.h"

namespace nibble::kernels {
namespace {

void run(benchmark::State& state, int64_t heads, int64_t kv_heads, int64_t dim, int64_t context,
         int64_t m, KvType type = KvType::kF16) {
  if (!has_isa(state)) return;
  const Ops ops = ops_for(static_cast<device::Isa>(state.range(0)));
  device::Stream stream(1);
  auto cache = KvCache::create({kv_heads, dim, dim, type, type == KvType::kS8});
  if (!cache || !cache->reserve(stream, context)) return state.SkipWithError("no memory");
  const auto kv = bench_floats(context * kv_heads * dim);
  cache->append(stream, ops, kv.data(), kv_heads * dim, kv.data(), kv_heads * dim, context);
  const auto q = bench_floats(m * heads * dim);
  std::vector<float> out(q.size());
  AttentionConfig config;
  config.heads = heads;
  config.scale = 0.1f;
  for (auto _ : state) {
    attention(stream, ops, config, *cache, q.data(), heads * dim, context - m, m, out.data(),
              heads * dim);
    benchmark::DoNotOptimize(out.data());
  }
  double pairs = 0;
  for (int64_t i = 0; i < m; ++i) pairs += static_cast<double>(context - i);
  const double work = pairs * static_cast<double>(heads * 2 * dim);
  state.counters["MAC"] = benchmark::Counter(work, benchmark::Counter::kIsIterationInvariantRate);
}

void decode_small(benchmark::State& state) { run(state, 9, 3, 64, state.range(1), 1); }
void prompt_small(benchmark::State& state) { run(state, 9, 3, 64, state.range(1), state.range(1)); }
void decode_8b(benchmark::State& state) { run(state, 32, 8, 128, state.range(1), 1); }
void prompt_8b(benchmark::State& state) { run(state, 32, 8, 128, state.range(1), state.range(1)); }

// The same decoding over each kind of cache.
void decode_types(benchmark::State& state) {
  const auto type = static_cast<KvType>(state.range(1));
  state.SetLabel(name(type));
  run(state, 32, 8, 128, 4096, 1, type);
}

BENCHMARK(decode_types)->ArgsProduct({{1, 2}, {0, 1, 2, 3, 4, 5}});
BENCHMARK(decode_small)->ArgsProduct({{1, 2}, {128, 512, 4096}});
BENCHMARK(prompt_small)->ArgsProduct({{1, 2}, {32, 512}});
BENCHMARK(decode_8b)->ArgsProduct({{1, 2}, {512, 8192}});
BENCHMARK(prompt_8b)->ArgsProduct({{1, 2}, {512}});

}  // namespace
}  // namespace nibble::kernels
