// RMSNorm with the residual's sum, one row of a model's width, one thread.
#include "kernels/isa_bench.h"
#include "kernels/norm/norm.h"

namespace nibble::kernels {
namespace {

void add_and_rms_norm(benchmark::State& state) {
  if (!has_isa(state)) return;
  const Ops ops = ops_for(static_cast<device::Isa>(state.range(0)));
  const int64_t n = state.range(1);
  device::Stream stream(1);
  const auto weight = bench_floats(n);
  const std::vector<float> delta(static_cast<size_t>(n), 0.0f);
  auto residual = bench_floats(n);
  std::vector<float> y(residual.size());
  const RmsNorm norm = {weight.data(), n, 1e-5f, false};
  for (auto _ : state) {
    add_rms_norm(stream, ops, norm, delta.data(), n, residual.data(), n, y.data(), n, 1);
    benchmark::DoNotOptimize(y.data());
  }
  state.SetItemsProcessed(state.iterations() * n);
}
BENCHMARK(add_and_rms_norm)->ArgsProduct({{1, 2}, {576, 4096}});

}  // namespace
}  // namespace nibble::kernels
