// The loop over several weights that read the same x.
#include "kernels/matmul/matmul.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "kernels/matmul/cuda_weight.h"
#include "kernels/matmul/kernel.h"
#include "kernels/matmul/prepare.h"

namespace nibble::kernels {
namespace {

// The scratch slots of a stream that matmul uses: its workers' panels, and what prepare() needs for
// each distinct preparation.
constexpr int kPanelSlot = 7;
constexpr int kPrepareSlot = 8;
constexpr int kMostPreparations = (device::Stream::kSlots - kPrepareSlot) / kPrepareSlots;

int64_t tiles_of(const Layout& l) { return (l.n + kTileRows - 1) / kTileRows; }

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Tiles that a worker takes at once. Many tokens: as many as share a token block, cut so that all
// threads end together. Few tokens: so many bytes that taking them costs nothing, so few that a
// worker whose core was taken away does not hold up the others. Results do not depend on it.
int64_t tiles_an_item(const Layout& l, int64_t m, int64_t threads) {
  const int64_t tiles = tiles_of(l);
  constexpr int64_t kManyTokens = 13;
  constexpr int64_t kMostTiles = 3;
  if (m >= kManyTokens) {
    const int64_t rounds = divide_up(tiles, threads * kMostTiles);
    return divide_up(tiles, threads * rounds);
  }
  constexpr int64_t kItemBytes = 64 * 1024;
  constexpr int64_t kItemsAThread = 4;
  const int64_t most = std::max<int64_t>(1, kItemBytes / std::max<int64_t>(1, l.bytes / tiles));
  return std::clamp<int64_t>(tiles / (threads * kItemsAThread), 1, most);
}

// Measured: Emerald Rapids reads a quarter more with it, Zen 5 up to twice as much (from 2 to 16 KB
// alike), Zen 3, which has no AVX-512, a fifth less.
int64_t prefetch_distance() {
  static const int64_t distance = [] {
    const device::Hardware hardware = device::detect_hardware();
    const bool intel = hardware.cpu_model.find("Intel") != std::string::npos;
    return int64_t{hardware.avx512 || intel ? 4096 : 0};
  }();
  return distance;
}

struct Job {
  KernelArgs args;
  const Kernel* kernel;
  const Layout* layout;
  Activations x;
  int64_t first_item = 0;  // of the parallel loop
  int64_t tiles_an_item = 1;
};

void run_batch(device::Stream& stream, std::span<const MatmulTarget> targets, const float* x,
               int64_t ldx, int64_t m) {
  NIBBLE_CHECK(targets.size() <= kMostPreparations);
  Job jobs[kMostPreparations];
  const int64_t ahead = prefetch_distance();
  int64_t items = 0;
  int preparations = 0;
  for (size_t i = 0; i < targets.size(); ++i) {
    Job& job = jobs[i];
    const PackedWeight& weight = *targets[i].weight;
    job.layout = weight.layout.get();
    job.kernel = &kernel_for(weight.choice, m);
    const Request request{&weight, job.layout, job.kernel};
    const Job* twin = std::find_if(jobs, jobs + i, [&](const Job& other) {
      return same_preparation(request, {other.args.weight, other.layout, other.kernel});
    });
    job.x = twin != jobs + i ? twin->x
                             : prepare(stream, kPrepareSlot + preparations++ * kPrepareSlots,
                                       request, x, ldx, m);
    job.args = {&weight, job.layout, &job.x, targets[i].y, targets[i].ldy, 0,
                0,       0,          m,      nullptr,      ahead};
    job.first_item = items;
    job.tiles_an_item = tiles_an_item(*job.layout, m, stream.threads());
    items += divide_up(tiles_of(*job.layout), job.tiles_an_item);
  }
  std::byte* panels =
      stream.scratch(kPanelSlot, static_cast<size_t>(stream.threads() * kPanelBytes));
  stream.pool().parallel_for(items, 1, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t item = begin; item < end; ++item) {
      const Job* job = jobs + targets.size() - 1;
      while (job->first_item > item) --job;
      KernelArgs args = job->args;
      args.tile_begin = (item - job->first_item) * job->tiles_an_item;
      args.tile_end = std::min(args.tile_begin + job->tiles_an_item, tiles_of(*job->layout));
      args.scratch = panels + worker * kPanelBytes;
      job->kernel->run(args);
    }
  });
}

}  // namespace

const Kernel& kernel_for(const Choice& choice, int64_t m) {
  for (const ChoiceRange& range : choice.ranges) {
    if (m <= range.m_max) return *range.kernel;
  }
  NIBBLE_CHECK(false && "ranges cover every M");
}

void matmul(device::Stream& stream, std::span<const MatmulTarget> targets, const float* x,
            int64_t ldx, int64_t m) {
  if (m == 0) return;
  if (stream.cuda() != nullptr) {
    std::vector<RowsTarget> rows;
    for (const MatmulTarget& t : targets) rows.push_back({t.weight, t.y, t.ldy});
    return matmul_on_cuda(stream, rows, x, ldx, m);
  }
  for (size_t i = 0; i < targets.size(); i += kMostPreparations) {
    run_batch(stream, targets.subspan(i, std::min<size_t>(kMostPreparations, targets.size() - i)),
              x, ldx, m);
  }
}

}  // namespace nibble::kernels
