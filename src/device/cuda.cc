#include "device/cuda.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>

#include "base/check.h"
#include "device/other_cards.h"

namespace nibble::device {
namespace {

constexpr const char* kLibrary = "libnibble_cuda.so";

struct Library {
  const NibbleCudaDevice* device;
  const kernels::CudaKernels* kernels;
};

// NIBBLE_CUDA_LIBRARY; null when it names nothing.
const char* named_place() {
  const char* path = std::getenv("NIBBLE_CUDA_LIBRARY");
  return path != nullptr && *path != '\0' ? path : nullptr;
}

// That one, else beside the program, else where an installed program has its libraries.
std::vector<std::string> places() {
  if (const char* path = named_place(); path != nullptr) return {path};
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  return {(program / kLibrary).string(), (program.parent_path() / "lib" / kLibrary).string()};
}

Result<Library> open_library(const std::vector<std::string>& paths) {
  const auto found = std::find_if(paths.begin(), paths.end(), [](const std::string& path) {
    std::error_code error;
    return std::filesystem::exists(path, error);
  });
  if (found == paths.end() && named_place() != nullptr) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("NIBBLE_CUDA_LIBRARY names {}, which is not there; name the "
                            "libnibble_cuda.so that was built with this program, or unset it",
                            paths.front()));
  }
  if (found == paths.end()) {
    return fail(ErrorCode::kNotFound,
                fmt::format("the CUDA part of nibble is not there: {} was not found; build it with "
                            "the preset `cuda`, or leave --device out to run on the CPU",
                            paths.front()));
  }
  void* library = dlopen(found->c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return fail(ErrorCode::kUnsupported, fmt::format("{} cannot be opened: {}", *found, dlerror()));
  }
  // The library stays open: its functions run at exit, too.
  const auto device =
      reinterpret_cast<NibbleCudaDeviceFunction>(dlsym(library, kNibbleCudaDeviceSymbol));
  const auto kernels =
      reinterpret_cast<NibbleCudaKernelsFunction>(dlsym(library, kNibbleCudaKernelsSymbol));
  Library out{};
  if (device != nullptr && kernels != nullptr) {
    out.device = device(kNibbleCudaVersion);
    out.kernels = static_cast<const kernels::CudaKernels*>(kernels(kNibbleCudaVersion));
  }
  if (out.device == nullptr || out.kernels == nullptr) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("{} is of another version than this program, which wants {}; build "
                            "both together",
                            *found, kNibbleCudaVersion));
  }
  return out;
}

// Opened once for each list of places. A failure is told again.
const Result<Library>& library() {
  static std::mutex mutex;
  static std::map<std::vector<std::string>, Result<Library>> opened;
  const std::lock_guard lock(mutex);
  const std::vector<std::string> paths = places();
  const auto known = opened.find(paths);
  return known != opened.end() ? known->second
                               : opened.emplace(paths, open_library(paths)).first->second;
}

constexpr size_t kTextBytes = 512;

Result<Gpu> card(const NibbleCudaDevice& device, int index) {
  NibbleCudaInfo info{};
  char text[kTextBytes] = {};
  if (device.info(index, &info, text, sizeof text) != 0) {
    return fail(ErrorCode::kUnsupported, fmt::format("card {} does not answer: {}", index, text));
  }
  Gpu gpu;
  gpu.name = info.name;
  gpu.major = info.major;
  gpu.minor = info.minor;
  gpu.multiprocessors = info.multiprocessors;
  gpu.memory_bytes = info.memory_bytes;
  gpu.free_bytes = info.memory_bytes;
  gpu.l2_bytes = info.l2_bytes;
  return gpu;
}

}  // namespace

Gpu gpu_h200() {
  Gpu gpu;
  gpu.name = "NVIDIA H200";
  gpu.major = 9;
  gpu.minor = 0;
  gpu.multiprocessors = 132;
  gpu.memory_bytes = int64_t{143771} << 20;
  gpu.free_bytes = gpu.memory_bytes;
  gpu.l2_bytes = int64_t{60} << 20;
  gpu.present = false;
  return gpu;
}

int64_t card_bytes(int64_t bytes) {
  constexpr int64_t kSmall = int64_t{1} << 20;
  constexpr int64_t kPiece = int64_t{2} << 20;
  return bytes <= kSmall ? bytes : (bytes + kPiece - 1) / kPiece * kPiece;
}

Result<void> check_supported(const Gpu& gpu) {
  if (gpu.at_least(7, 5)) return {};
  return fail(ErrorCode::kUnsupported,
              fmt::format("{} has compute capability {}.{}; nibble needs 7.5 (Turing) or newer",
                          gpu.name, gpu.major, gpu.minor));
}

Result<std::vector<Gpu>> cuda_cards() {
  if (!library()) return fail(library().error());
  const NibbleCudaDevice& device = *library()->device;
  char text[kTextBytes] = {};
  const int count = device.count(text, sizeof text);
  if (count < 0) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("no NVIDIA driver answers on this machine: {}{}", text,
                            other_cards_clause("/")));
  }
  std::vector<Gpu> out;
  for (int i = 0; i < count; ++i) {
    NIBBLE_ASSIGN(Gpu gpu, card(device, i));
    out.push_back(std::move(gpu));
  }
  return out;
}

std::string cuda_library_trouble() {
  if (library() || library().error().code == ErrorCode::kNotFound) return {};
  return library().error().message;
}

Result<void> ask_free_memory(int index, Gpu& gpu) {
  if (!library()) return fail(library().error());
  char text[kTextBytes] = {};
  if (library()->device->free_memory(index, &gpu.free_bytes, text, sizeof text) != 0) {
    return fail(ErrorCode::kUnsupported, fmt::format("{} cannot be used: {}", gpu.name, text));
  }
  return {};
}

Result<std::shared_ptr<Cuda>> Cuda::open(int index) {
  NIBBLE_ASSIGN(const std::vector<Gpu> cards, cuda_cards());
  if (index < 0 || static_cast<size_t>(index) >= cards.size()) {
    return fail(ErrorCode::kUnsupported,
                cards.empty()
                    ? "this machine has no NVIDIA card" + other_cards_clause("/")
                    : fmt::format("there is no card {}; the last one of this machine is {}", index,
                                  cards.size() - 1));
  }
  const Gpu& gpu = cards[static_cast<size_t>(index)];
  NIBBLE_TRY(check_supported(gpu));
  std::shared_ptr<Cuda> out(new Cuda);
  out->gpu_ = gpu;
  out->device_ = library()->device;
  out->kept_ = {out->device_->allocate, out->device_->release, {}, 0};
  out->kept_of_host_ = {out->device_->allocate_host, out->device_->release_host, {}, 0};
  out->kernels_ = library()->kernels;
  char text[kTextBytes] = {};
  out->context_ = out->device_->open(index, text, sizeof text);
  if (out->context_ == nullptr) {
    return fail(ErrorCode::kUnsupported, fmt::format("{} cannot be used: {}", gpu.name, text));
  }
  return out;
}

Cuda::~Cuda() {
  if (context_ == nullptr) return;
  for (const Scratch& scratch : scratch_) {
    if (scratch.data != nullptr) device_->release(context_, scratch.data);
  }
  release_all(kept_);
  release_all(kept_of_host_);
  device_->close(context_);
}

void* Cuda::allocate(size_t bytes) {
  ++generation_;
  return take(kept_, bytes);
}

void Cuda::release(void* memory, size_t bytes) {
  ++generation_;
  constexpr size_t kShare = 64;
  give_back(kept_, memory, bytes, static_cast<size_t>(gpu_.memory_bytes) / kShare);
}

// Sizes are powers of two from 64 KiB on, so that prompts of about one length use the same piece,
// one after the other.
void* Cuda::allocate_host(size_t* bytes) {
  *bytes = std::bit_ceil(std::max(*bytes, size_t{64} << 10));
  return take(kept_of_host_, *bytes);
}

void Cuda::release_host(void* memory, size_t bytes) {
  constexpr size_t kMost = size_t{64} << 20;
  give_back(kept_of_host_, memory, bytes, kMost);
}

void* Cuda::take(Kept& kept, size_t bytes) {
  if (const auto found = kept.pieces.find(bytes); found != kept.pieces.end()) {
    void* memory = found->second;
    kept.pieces.erase(found);
    kept.bytes -= bytes;
    return memory;
  }
  void* memory = kept.allocate(context_, bytes);
  if (memory != nullptr || kept.pieces.empty()) return memory;
  release_all(kept);
  return kept.allocate(context_, bytes);
}

void Cuda::give_back(Kept& kept, void* memory, size_t bytes, size_t most) {
  if (kept.bytes + bytes > most) return kept.release(context_, memory);
  device_->wait(context_);  // kernels and copies, also of other streams, may still use it
  kept.pieces.emplace(bytes, memory);
  kept.bytes += bytes;
}

void Cuda::release_all(Kept& kept) {
  for (const auto& [bytes, memory] : kept.pieces) kept.release(context_, memory);
  kept.pieces.clear();
  kept.bytes = 0;
}

void Cuda::upload(ThreadPool& pool, void* to, const void* from, size_t bytes) {
  auto* target = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  for (size_t done = 0; done < bytes; done += kNibbleStageBytes) {
    const size_t count = std::min(bytes - done, kNibbleStageBytes);
    auto* staged = static_cast<std::byte*>(device_->stage(context_));
    if (staged == nullptr) return to_device(target + done, source + done, bytes - done);
    pool.parallel_for(
        static_cast<int64_t>(count), int64_t{1} << 20, [&](int64_t begin, int64_t end, int) {
          std::memcpy(staged + begin, source + done + begin, static_cast<size_t>(end - begin));
        });
    device_->send(context_, target + done, staged, count);
  }
}

Result<void> Cuda::to_host(void* to, const void* from, size_t bytes) {
  device_->to_host(context_, to, from, bytes);
  return error();
}

Result<void> Cuda::wait() {
  device_->wait(context_);
  return error();
}

Result<void> Cuda::error() const {
  if (const char* text = device_->error(context_); text != nullptr) {
    return fail(ErrorCode::kUnsupported, fmt::format("{}: {}", gpu_.name, text));
  }
  return {};
}

std::byte* Cuda::scratch(int slot, size_t bytes) {
  NIBBLE_CHECK(slot >= 0 && slot < kSlots);
  Scratch& scratch = scratch_[slot];
  if (scratch.size < bytes || scratch.data == nullptr) {
    const size_t least = std::max(bytes, size_t{256});
    size_t wanted = std::max(least, scratch.size + scratch.size / 2);
    if (scratch.data != nullptr) {  // a larger one may need its place
      ++generation_;
      device_->release(context_, scratch.data);
    }
    scratch = {};
    scratch.data = static_cast<std::byte*>(allocate(wanted));
    if (scratch.data == nullptr && wanted > least) {  // what the plan counted may be all there is
      wanted = least;
      scratch.data = static_cast<std::byte*>(allocate(wanted));
    }
    if (scratch.data == nullptr) {
      throw CardMemoryRanOut(
          fmt::format("the memory of the card ran out: {} MiB more, to work in, do not fit on {}",
                      (wanted >> 20) + 1, gpu_.name));
    }
    scratch.size = wanted;
  }
  return scratch.data;
}

}  // namespace nibble::device
