#include "kernels/probe/probe.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <vector>

#include "tensor/tensor.h"

namespace nibble::kernels {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

const ProbeOps& probe_of(const device::Hardware& hardware) {
  if (hardware.avx512) return hardware.avx512_bf16 ? kProbeAvx512Bf16 : kProbeAvx512;
  return hardware.avx2 ? kProbeAvx2 : kProbeReference;
}

uint64_t read_reference(const std::byte* data, int64_t bytes) noexcept {
  uint64_t sum = 0;
  for (int64_t i = 0; i + 8 <= bytes; i += 8) {
    uint64_t word;
    std::memcpy(&word, data + i, 8);
    sum += word;
  }
  return sum;
}

int64_t f32_reference(int64_t rounds, float* sink) noexcept {
  float a[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  for (int64_t r = 0; r < rounds; ++r) {
    for (float& v : a) v = v * 0.999f + 0.5f;
  }
  for (float v : a) *sink += v;
  return rounds * 8 * 2;
}

using Loop = int64_t (*)(int64_t rounds, float* sink) noexcept;

double rate(device::Stream& stream, Loop loop) {
  constexpr int64_t kRounds = 200'000;
  constexpr int64_t kChunks = 8;  // a worker: enough to level out a stolen core
  std::vector<float> sinks(static_cast<size_t>(stream.threads()) * 16);
  double best = 0;
  for (int repeat = 0; repeat < 5; ++repeat) {
    std::atomic<int64_t> operations = 0;
    const auto start = Clock::now();
    stream.pool().parallel_for(
        kChunks * stream.threads(), 1, [&](int64_t begin, int64_t end, int worker) {
          for (int64_t i = begin; i < end; ++i) {
            operations += loop(kRounds, &sinks[static_cast<size_t>(worker) * 16]);
          }
        });
    best = std::max(best, static_cast<double>(operations) / seconds_since(start));
  }
  return best;
}

}  // namespace

const ProbeOps kProbeReference = {&read_reference, &f32_reference, nullptr, nullptr};

Result<double> measure_read(device::Stream& stream, const device::Hardware& hardware) {
  constexpr size_t kBytes = size_t{384} << 20;
  constexpr int64_t kChunk = int64_t{1} << 20;
  NIBBLE_ASSIGN(tensor::Buffer buffer, tensor::Buffer::allocate(kBytes));
  // Distinct contents: a page of zeros may be shared, and a sum of equal words says nothing.
  auto words = buffer.as<uint32_t>();
  stream.pool().parallel_for(
      static_cast<int64_t>(words.size()), kChunk, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) {
          words[static_cast<size_t>(i)] = static_cast<uint32_t>(i) * 2654435761u;
        }
      });
  const ProbeOps& probe = probe_of(hardware);
  std::atomic<uint64_t> sum = 0;
  double best = 0;
  for (int repeat = 0; repeat < 5; ++repeat) {
    const auto start = Clock::now();
    stream.pool().parallel_for(static_cast<int64_t>(kBytes), kChunk,
                               [&](int64_t begin, int64_t end, int) {
                                 sum += probe.read(buffer.data() + begin, end - begin);
                               });
    best = std::max(best, static_cast<double>(kBytes) / seconds_since(start));
  }
  return sum == 0 ? 0 : best;  // the sum is used, so the reads are real
}

std::vector<Peak> measure_peaks(device::Stream& stream, const device::Hardware& hardware) {
  const ProbeOps& probe = probe_of(hardware);
  std::vector<Peak> out = {{"f32", rate(stream, probe.f32)}};
  if (probe.s8 != nullptr) out.push_back({"s8", rate(stream, probe.s8)});
  if (probe.bf16 != nullptr) out.push_back({"bf16", rate(stream, probe.bf16)});
  return out;
}

}  // namespace nibble::kernels
