// A CUDA card in use. The CUDA part of nibble is a library of its own that is opened when a card is
// asked for, so that the program starts on machines without a driver.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "device/cuda_abi.h"
#include "device/gpu.h"
#include "device/thread_pool.h"
#include "nibble/result.h"

namespace nibble::kernels {
struct CudaKernels;  // kernels/cuda/abi.h
}

namespace nibble::device {

// The cards of this machine, supported or not. An error when the library is not there, is of
// another version, or finds no driver; then nothing can run.
// free_bytes is that of an empty card: see ask_free_memory.
Result<std::vector<Gpu>> cuda_cards();

// What keeps the CUDA part from being used although it is there, or NIBBLE_CUDA_LIBRARY says so: a
// sentence. "" when nothing does, also where it is merely not there.
std::string cuda_library_trouble();

// Sets gpu.free_bytes to what card `index` has left now. Takes a context on it, which costs some
// tenths of a second once.
Result<void> ask_free_memory(int index, Gpu& gpu);

// The memory of a card ran out where only an exception can say so.
class CardMemoryRanOut : public std::bad_alloc {
 public:
  explicit CardMemoryRanOut(std::string text) : text_(std::move(text)) {}
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::string text_;
};

class Cuda {
 public:
  // Errors: those of cuda_cards(); no card of this number; one that is too old.
  static Result<std::shared_ptr<Cuda>> open(int index);
  ~Cuda();
  Cuda(const Cuda&) = delete;
  Cuda& operator=(const Cuda&) = delete;

  const Gpu& gpu() const { return gpu_; }
  const kernels::CudaKernels& kernels() const { return *kernels_; }
  NibbleCudaContext* context() const { return context_; }

  // Memory of the card; null when it has no more. For Memory, which owns it. What was given back is
  // kept for who next wants as much, up to a share of the card's memory: the driver takes many
  // microseconds for each piece, and a prompt's cache has hundreds.
  void* allocate(size_t bytes);
  void release(void* memory, size_t bytes);
  // Page-locked memory of the host, at least `bytes`, which says how large it became; null when
  // there is no more. For SharedMemory. It is kept in the same way: the driver takes more than a
  // millisecond for the smallest piece.
  void* allocate_host(size_t* bytes);
  void release_host(void* memory, size_t bytes);
  // Changes whenever memory was taken or given back: addresses that were recorded may be old then.
  uint64_t generation() const { return generation_; }

  void to_device(void* to, const void* from, size_t bytes) {
    device_->to_device(context_, to, from, bytes);
  }
  // The same through page-locked memory, filled by the threads of `pool`: returns when `from` was
  // read, which may be before it has arrived.
  void upload(ThreadPool& pool, void* to, const void* from, size_t bytes);
  // Waits for everything before it; its error is the first one of all that.
  Result<void> to_host(void* to, const void* from, size_t bytes);

  // Waits for everything; the error as above.
  Result<void> wait();
  // The rest of NibbleCudaDevice, for Staging and Recording.
  const NibbleCudaDevice& device() const { return *device_; }
  // Whether steps are recorded as CUDA graphs (--enforce-eager: not).
  bool records() const { return records_; }
  void set_records(bool records) { records_ = records; }

  // Like Stream::scratch, on the card; ends in CardMemoryRanOut.
  std::byte* scratch(int slot, size_t bytes);

 private:
  Cuda() = default;

  // Pieces that were given back, for who next wants as many bytes, and how the driver is asked.
  struct Kept {
    void* (*allocate)(NibbleCudaContext*, size_t);
    void (*release)(NibbleCudaContext*, void*);
    std::multimap<size_t, void*> pieces;  // by size
    size_t bytes = 0;
  };
  void* take(Kept& kept, size_t bytes);
  void give_back(Kept& kept, void* memory, size_t bytes, size_t most);
  void release_all(Kept& kept);

  struct Scratch {
    std::byte* data = nullptr;
    size_t size = 0;
  };
  static constexpr int kSlots = 16;
  Result<void> error() const;

  uint64_t generation_ = 0;
  bool records_ = true;
  Gpu gpu_;
  const NibbleCudaDevice* device_ = nullptr;
  const kernels::CudaKernels* kernels_ = nullptr;
  NibbleCudaContext* context_ = nullptr;
  Scratch scratch_[kSlots];
  Kept kept_;
  Kept kept_of_host_;
};

}  // namespace nibble::device
