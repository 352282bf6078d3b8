// What the benchmarks of a card share: a library's kernels called by their table, timed in CUDA
// graphs, and the times as rows.
#pragma once

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "kernels/attention/kv_cache.h"
#include "kernels/cuda/abi.h"

namespace nibble::kernels {

// A library's tables and a context of its own. Memory lives as long as the program.
class Card {
 public:
  static bool open(const char* path, Card* out) {
    void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return std::fprintf(stderr, "%s\n", dlerror()), false;
    const auto device_of =
        reinterpret_cast<NibbleCudaDeviceFunction>(dlsym(library, kNibbleCudaDeviceSymbol));
    const auto kernels_of =
        reinterpret_cast<NibbleCudaKernelsFunction>(dlsym(library, kNibbleCudaKernelsSymbol));
    if (device_of == nullptr || kernels_of == nullptr) {
      return std::fprintf(stderr, "%s has no tables of kernels\n", path), false;
    }
    out->device_ = device_of(kNibbleCudaVersion);
    out->kernels_ = static_cast<const CudaKernels*>(kernels_of(kNibbleCudaVersion));
    if (out->device_ == nullptr || out->kernels_ == nullptr) {
      return std::fprintf(stderr, "%s is of another version\n", path), false;
    }
    char error[512];
    out->context_ = out->device_->open(0, error, sizeof error);
    if (out->context_ == nullptr) return std::fprintf(stderr, "%s\n", error), false;
    if (const char* missing = out->kernels_->missing(out->context_); missing != nullptr) {
      return std::fprintf(stderr, "%s\n", missing), false;
    }
    NibbleCudaInfo info;
    out->device_->info(0, &info, error, sizeof error);
    out->multiprocessors_ = info.multiprocessors;
    return true;
  }

  const CudaKernels& kernels() const { return *kernels_; }
  NibbleCudaContext* context() const { return context_; }
  int64_t multiprocessors() const { return multiprocessors_; }

  template <class T>
  T* place(std::span<const T> values) {
    auto* out = static_cast<T*>(device_->allocate(context_, values.size_bytes()));
    if (out != nullptr) device_->to_device(context_, out, values.data(), values.size_bytes());
    return out;
  }
  float* floats(int64_t count) {
    if (normal_.empty()) {
      normal_.resize(size_t{1} << 20);
      std::normal_distribution<float> normal;
      for (float& v : normal_) v = normal(random_);
    }
    std::vector<float> values(static_cast<size_t>(count));
    for (size_t i = 0; i < values.size(); ++i) values[i] = normal_[i % normal_.size()];
    return place(std::span<const float>(values));
  }
  void* bytes(int64_t count, KvType type) {
    if (pool_[type == KvType::kE4M3].empty()) fill_pool(type);
    const std::vector<uint8_t>& pool = pool_[type == KvType::kE4M3];
    auto* out = static_cast<uint8_t*>(device_->allocate(context_, static_cast<size_t>(count)));
    for (int64_t at = 0; out != nullptr && at < count; at += static_cast<int64_t>(pool.size())) {
      const auto left = std::min<int64_t>(static_cast<int64_t>(pool.size()), count - at);
      device_->to_device(context_, out + at, pool.data(), static_cast<size_t>(left));
    }
    return out;
  }

  // Microseconds of one of `calls` calls of body(i), which put something into the stream: the
  // median of graphs of them all.
  double time(int64_t calls, const std::function<void(int64_t)>& body) {
    for (int64_t i = 0; i < calls; ++i) body(i);  // what is made the first time
    device_->wait(context_);
    device_->begin_recording(context_);
    for (int64_t i = 0; i < calls; ++i) body(i);
    void* graph = device_->end_recording(context_);
    if (graph == nullptr) return NAN;
    std::vector<double> times;
    for (int i = 0; i < 7; ++i) {
      constexpr int kInARow = 5;
      const auto begin = std::chrono::steady_clock::now();
      for (int j = 0; j < kInARow; ++j) device_->replay(context_, graph);
      device_->wait(context_);
      const std::chrono::duration<double, std::micro> took =
          std::chrono::steady_clock::now() - begin;
      times.push_back(took.count() / kInARow / static_cast<double>(calls));
    }
    device_->release_graph(context_, graph);
    if (device_->error(context_) != nullptr) {
      std::fprintf(stderr, "%s\n", device_->error(context_));
      return NAN;
    }
    std::ranges::nth_element(times, times.begin() + 3);
    return times[3];
  }

 private:
  void fill_pool(KvType type) {
    std::vector<uint8_t>& pool = pool_[type == KvType::kE4M3];
    pool.resize(size_t{16} << 20);
    if (type == KvType::kE4M3) {  // any code but nan
      for (uint8_t& v : pool) v = static_cast<uint8_t>((random_() % 0x70) | (random_() & 0x80));
      return;
    }
    auto* halves = reinterpret_cast<uint16_t*>(pool.data());
    for (size_t i = 0; i < pool.size() / 2; ++i) {  // 2^-3 to 2
      halves[i] = static_cast<uint16_t>((0x3000 + random_() % 0x1000) | (random_() & 0x8000));
    }
  }

  const NibbleCudaDevice* device_ = nullptr;
  const CudaKernels* kernels_ = nullptr;
  NibbleCudaContext* context_ = nullptr;
  int64_t multiprocessors_ = 0;
  std::mt19937 random_{1};
  std::vector<float> normal_;
  std::vector<uint8_t> pool_[2];
};

// (n, k) codes of 4 or 8 bits in tiles, random; scales f16, one for 128 inputs.
inline CudaWeight weight_in_tiles(Card& card, int bits, int64_t n, int64_t k) {
  constexpr int64_t kGroup = 128;
  CudaWeight out{};
  out.n = n;
  out.k = k;
  out.tiles.bits = bits;
  out.tiles.group = kGroup;
  out.tiles.k_pad = k;
  out.tiles.groups = k / kGroup;
  out.tiles.scales_fold = 1;
  out.tiles.codes = card.bytes(n * k * bits / 8, KvType::kF16);
  out.tiles.scales = card.bytes(n * k / kGroup * 2, KvType::kF16);
  return out;
}

// What an H200 reads, and multiplies in bf16, in a microsecond.
constexpr double kBytesPerUs = 4.4e6;
constexpr double kProductsPerUs = 800e6;

struct Row {
  std::string name;
  double floor;  // microseconds that the bytes or products take at least, or 0
  std::vector<double> times;
};

class Table {
 public:
  explicit Table(std::string only) : only_(std::move(only)) {}
  bool wants(const std::string& name) const { return name.find(only_) != std::string::npos; }
  void add(Card& card, const std::string& name, double floor, int64_t calls,
           const std::function<void(int64_t)>& body) {
    if (!wants(name)) return;
    const double time = card.time(calls, body);
    for (Row& row : rows_) {
      if (row.name == name) return row.times.push_back(time);
    }
    rows_.push_back({name, floor, {time}});
  }
  void print() const {
    fmt::print("{:34} {:>8} | microseconds, by library\n", "", "floor");
    for (const Row& row : rows_) {
      fmt::print("{:34} {:8.2f} |", row.name, row.floor);
      for (const double t : row.times) fmt::print(" {:9.2f}", t);
      fmt::print("\n");
    }
  }

 private:
  std::string only_;
  std::vector<Row> rows_;
};

}  // namespace nibble::kernels
