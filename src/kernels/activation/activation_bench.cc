// Gated activations over one row, one thread.
#include "kernels/activation/activation.h"
#include "kernels/isa_bench.h"

namespace nibble::kernels {
namespace {

void gated(benchmark::State& state, Activation f) {
  if (!has_isa(state)) return;
  const Ops ops = ops_for(static_cast<device::Isa>(state.range(0)));
  const int64_t n = state.range(1);
  device::Stream stream(1);
  const auto gate = bench_floats(n);
  const auto up = bench_floats(n);
  std::vector<float> y(gate.size());
  for (auto _ : state) {
    activate_gated(stream, ops, f, gate.data(), n, up.data(), n, y.data(), n, 1, n);
    benchmark::DoNotOptimize(y.data());
  }
  state.SetItemsProcessed(state.iterations() * n);
}
BENCHMARK_CAPTURE(gated, silu, Activation::kSilu)->ArgsProduct({{1, 2}, {1536}});
BENCHMARK_CAPTURE(gated, gelu, Activation::kGelu)->ArgsProduct({{1, 2}, {1536}});
BENCHMARK_CAPTURE(gated, gelu_tanh, Activation::kGeluTanh)->ArgsProduct({{1, 2}, {1536}});

}  // namespace
}  // namespace nibble::kernels
