// Cards, memory and copies: device/cuda_abi.h with the CUDA runtime.
#include <cstdio>
#include <new>

#include "device/cuda_context.h"

void NibbleCudaContext::note(const char* what, const char* text) {
  if (failed) return;
  failed = true;
  std::snprintf(error, sizeof error, "%s: %s", what, text);
}

// Page-locked buffers, each with the event after its last copy.
struct NibbleCudaStaging {
  static constexpr int kBuffers = 3;
  cudaStream_t stream = nullptr;
  void* buffer[kBuffers] = {};
  cudaEvent_t sent[kBuffers] = {};
  int next = 0;

  cudaError_t create() {
    cudaError_t code = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    for (int i = 0; i < kBuffers && code == cudaSuccess; ++i) {
      code = cudaHostAlloc(&buffer[i], kNibbleStageBytes, cudaHostAllocDefault);
      if (code == cudaSuccess) code = cudaEventCreateWithFlags(&sent[i], cudaEventDisableTiming);
    }
    return code;
  }
  ~NibbleCudaStaging() {
    if (stream != nullptr) cudaStreamSynchronize(stream);
    for (int i = 0; i < kBuffers; ++i) {
      if (sent[i] != nullptr) cudaEventDestroy(sent[i]);
      if (buffer[i] != nullptr) cudaFreeHost(buffer[i]);
    }
    if (stream != nullptr) cudaStreamDestroy(stream);
  }
};

namespace {

void say(char* error, size_t size, const char* text) { std::snprintf(error, size, "%s", text); }

int count(char* error, size_t size) {
  int cards = 0;
  const cudaError_t code = cudaGetDeviceCount(&cards);
  if (code == cudaErrorNoDevice) return 0;
  if (code == cudaSuccess) return cards;
  int driver = 0;  // 12040 is 12.4; stays 0 where none is installed
  cudaDriverGetVersion(&driver);
  if (driver == 0) {
    say(error, size, "none is installed");
  } else if (code == cudaErrorInsufficientDriver) {
    std::snprintf(error, size, "the one installed is of CUDA %d.%d, and %d.%d or newer is needed",
                  driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000,
                  CUDART_VERSION % 1000 / 10);
  } else {
    say(error, size, cudaGetErrorString(code));
  }
  return -1;
}

int free_memory(int index, int64_t* bytes, char* error, size_t size) {
  size_t left = 0;
  size_t all = 0;
  cudaError_t code = cudaSetDevice(index);
  if (code == cudaSuccess) code = cudaMemGetInfo(&left, &all);
  cudaGetLastError();
  *bytes = static_cast<int64_t>(left);
  if (code == cudaSuccess) return 0;
  say(error, size, cudaGetErrorString(code));
  return 1;
}

int info(int index, NibbleCudaInfo* out, char* error, size_t size) {
  cudaDeviceProp properties;
  const cudaError_t code = cudaGetDeviceProperties(&properties, index);
  if (code != cudaSuccess) {
    say(error, size, cudaGetErrorString(code));
    return 1;
  }
  say(out->name, sizeof out->name, properties.name);
  out->major = properties.major;
  out->minor = properties.minor;
  out->multiprocessors = properties.multiProcessorCount;
  out->memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  out->l2_bytes = properties.l2CacheSize;
  return 0;
}

void close(NibbleCudaContext* context) {
  context->enter();
  if (context->stream != nullptr) cudaStreamDestroy(context->stream);
  if (context->marked != nullptr) cudaEventDestroy(context->marked);
  cudaFree(context->counters);
  cudaFree(context->tile_work);
  delete context->staging;
  delete context;
}

NibbleCudaContext* open(int index, char* error, size_t size) {
  auto* context = new (std::nothrow) NibbleCudaContext;
  if (context == nullptr) {
    say(error, size, "out of host memory");
    return nullptr;
  }
  context->index = index;
  NibbleCudaInfo properties{};
  cudaError_t code = cudaSetDevice(index);
  if (code == cudaSuccess)
    code = cudaStreamCreateWithFlags(&context->stream, cudaStreamNonBlocking);
  if (code == cudaSuccess) {
    code = cudaEventCreateWithFlags(&context->marked, cudaEventDisableTiming);
  }
  constexpr size_t kCounterBytes =
      NibbleCudaContext::kCounters * sizeof(unsigned) + NibbleCudaContext::kBestBytes;
  if (code == cudaSuccess) code = cudaMalloc(&context->counters, kCounterBytes);
  if (code == cudaSuccess) {  // in the kernels' own stream, which does not wait for another
    code = cudaMemsetAsync(context->counters, 0, kCounterBytes, context->stream);
  }
  if (code == cudaSuccess && info(index, &properties, error, size) == 0) {
    context->major = properties.major;
    context->multiprocessors = properties.multiprocessors;
    return context;
  }
  if (code != cudaSuccess) say(error, size, cudaGetErrorString(code));
  close(context);
  return nullptr;
}

void* allocate(NibbleCudaContext* context, size_t bytes) {
  context->enter();
  void* memory = nullptr;
  const cudaError_t code = cudaMalloc(&memory, bytes == 0 ? 1 : bytes);
  if (code == cudaSuccess) return memory;
  cudaGetLastError();  // it is told by the null, and must not be found by the next launch
  if (code != cudaErrorMemoryAllocation) context->note("cudaMalloc", code);
  return nullptr;
}

void release(NibbleCudaContext* context, void* memory) {
  cudaStreamSynchronize(context->enter());
  cudaFree(memory);
}

void to_device(NibbleCudaContext* context, void* to, const void* from, size_t bytes) {
  cudaStream_t stream = context->enter();
  context->note("a copy to the card",
                cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream));
  context->note("a copy to the card", cudaStreamSynchronize(stream));
}

void to_host(NibbleCudaContext* context, void* to, const void* from, size_t bytes) {
  cudaStream_t stream = context->enter();
  context->note("a copy from the card",
                cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream));
  context->note("a copy from the card", cudaStreamSynchronize(stream));
}

void* stage(NibbleCudaContext* context) {
  context->enter();
  if (context->staging == nullptr) {
    auto* made = new (std::nothrow) NibbleCudaStaging;
    if (made == nullptr || made->create() != cudaSuccess) {
      cudaGetLastError();  // told by the null
      delete made;
      return nullptr;
    }
    context->staging = made;
  }
  NibbleCudaStaging& s = *context->staging;
  s.next = (s.next + 1) % NibbleCudaStaging::kBuffers;
  context->note("a copy to the card", cudaEventSynchronize(s.sent[s.next]));
  return s.buffer[s.next];
}

void send(NibbleCudaContext* context, void* to, const void* staged, size_t bytes) {
  cudaStream_t stream = context->enter();
  NibbleCudaStaging& s = *context->staging;
  cudaEvent_t sent = s.sent[s.next];
  context->note("a copy to the card",
                cudaMemcpyAsync(to, staged, bytes, cudaMemcpyHostToDevice, s.stream));
  context->note("a copy to the card", cudaEventRecord(sent, s.stream));
  context->note("a copy to the card", cudaStreamWaitEvent(stream, sent, 0));
}

void* allocate_host(NibbleCudaContext* context, size_t bytes) {
  context->enter();
  void* memory = nullptr;
  if (cudaMallocHost(&memory, bytes == 0 ? 1 : bytes) == cudaSuccess) return memory;
  cudaGetLastError();
  return nullptr;
}

void release_host(NibbleCudaContext* context, void* memory) {
  cudaStreamSynchronize(context->enter());
  cudaFreeHost(memory);
}

void upload(NibbleCudaContext* context, void* to, const void* from, size_t bytes) {
  context->note("a copy to the card",
                cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, context->enter()));
}

void mark(NibbleCudaContext* context) {
  context->note("an event", cudaEventRecord(context->marked, context->enter()));
}

void wait_for_mark(NibbleCudaContext* context) {
  context->note("an event", cudaEventSynchronize(context->marked));
}

void wait(NibbleCudaContext* context) {
  context->note("the work on the card", cudaStreamSynchronize(context->enter()));
}

void begin_recording(NibbleCudaContext* context) {
  context->failed_before_recording = context->failed;
  cudaStreamBeginCapture(context->enter(), cudaStreamCaptureModeRelaxed);
}

void* end_recording(NibbleCudaContext* context) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t made = nullptr;
  if (cudaStreamEndCapture(context->enter(), &graph) == cudaSuccess && graph != nullptr &&
      cudaGraphInstantiate(&made, graph, 0) != cudaSuccess) {
    made = nullptr;
  }
  if (graph != nullptr) cudaGraphDestroy(graph);
  cudaGetLastError();  // it is told by the null
  // So are the launches that a broken recording refused: what they were to do is done without one.
  if (made == nullptr) context->failed = context->failed_before_recording;
  return made;
}

void replay(NibbleCudaContext* context, void* graph) {
  context->note("a recorded step",
                cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), context->enter()));
}

void release_graph(NibbleCudaContext* context, void* graph) {
  cudaStreamSynchronize(context->enter());
  cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph));
}

const char* error(const NibbleCudaContext* context) {
  return context->failed ? context->error : nullptr;
}

constexpr NibbleCudaDevice kDevice = {
    count,         info,      free_memory,   open,          close, allocate,
    release,       to_device, to_host,       stage,         send,  allocate_host,
    release_host,  upload,    mark,          wait_for_mark, wait,  begin_recording,
    end_recording, replay,    release_graph, error};

}  // namespace

extern "C" __attribute__((visibility("default"))) const NibbleCudaDevice* nibble_cuda_device(
    uint32_t version) {
  return version == kNibbleCudaVersion ? &kDevice : nullptr;
}
