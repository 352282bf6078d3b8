// What libnibble_cuda.so offers the program about cards, memory and streams: plain functions, so
// that a program and a library of different compilers can meet. The library is opened at run time;
// nothing here needs CUDA's headers.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

struct NibbleCudaContext;  // a card, a stream on it, and the first error that happened

struct NibbleCudaInfo {
  char name[256];
  int32_t major;
  int32_t minor;
  int32_t multiprocessors;
  int64_t memory_bytes;
  int64_t l2_bytes;
};

// Counted up with every change of this struct or of kernels/cuda/abi.h.
constexpr uint32_t kNibbleCudaVersion = 7;

constexpr size_t kNibbleStageBytes = size_t{32} << 20;

// `error` gets a text of at most `size` bytes, its end included, when a function fails.
struct NibbleCudaDevice {
  int (*count)(char* error, size_t size);  // -1: there is no driver, or it does not answer
  int (*info)(int index, NibbleCudaInfo* info, char* error, size_t size);  // 0: fine
  // Bytes of a card that nobody holds at this moment; 0: fine. Takes a context on the card, which
  // stays.
  int (*free_memory)(int index, int64_t* bytes, char* error, size_t size);
  NibbleCudaContext* (*open)(int index, char* error, size_t size);  // null: failed
  void (*close)(NibbleCudaContext* context);
  void* (*allocate)(NibbleCudaContext* context, size_t bytes);  // null: no memory
  void (*release)(NibbleCudaContext* context, void* memory);    // waits for the stream
  // Copies are in the stream's order. Both return when the host's bytes may be changed or read.
  void (*to_device)(NibbleCudaContext* context, void* to, const void* from, size_t bytes);
  void (*to_host)(NibbleCudaContext* context, void* to, const void* from, size_t bytes);
  // Host memory that a card reads by itself. stage() lends one of a few buffers of
  // kNibbleStageBytes in turn, when what was last sent from it has gone; null: there is none.
  // send() puts the copy of what was written there into a stream of its own and returns; whatever
  // comes later in the context's stream comes after it.
  void* (*stage)(NibbleCudaContext* context);
  void (*send)(NibbleCudaContext* context, void* to, const void* staged, size_t bytes);
  // Memory of the host that the card reads and writes at its own time; null: there is none.
  void* (*allocate_host)(NibbleCudaContext* context, size_t bytes);
  void (*release_host)(NibbleCudaContext* context, void* memory);
  // A copy from such memory, in the stream's order; the function does not wait.
  void (*upload)(NibbleCudaContext* context, void* to, const void* from, size_t bytes);
  // mark() marks what was put into the stream until now, wait_for_mark() waits for it.
  void (*mark)(NibbleCudaContext* context);
  void (*wait_for_mark)(NibbleCudaContext* context);
  void (*wait)(NibbleCudaContext* context);  // for everything
  // What is put into the stream between the two is not run but becomes a graph; null: something in
  // it cannot be recorded, or the recording did not begin.
  void (*begin_recording)(NibbleCudaContext* context);
  void* (*end_recording)(NibbleCudaContext* context);
  void (*replay)(NibbleCudaContext* context, void* graph);
  void (*release_graph)(NibbleCudaContext* context, void* graph);
  // The first thing that went wrong in this context, or null. Kernels run later than they are
  // called: only after to_host is everything before it known to be right.
  const char* (*error)(const NibbleCudaContext* context);
};

// The library's two symbols; null when it is of another version. What the second returns is a
// nibble::kernels::CudaKernels.
using NibbleCudaDeviceFunction = const NibbleCudaDevice* (*)(uint32_t version);
using NibbleCudaKernelsFunction = const void* (*)(uint32_t version);
constexpr const char* kNibbleCudaDeviceSymbol = "nibble_cuda_device";
constexpr const char* kNibbleCudaKernelsSymbol = "nibble_cuda_kernels";

}  // extern "C"
