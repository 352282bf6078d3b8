// A libnibble_cuda.so without CUDA, for tests of what happens around cards: a card of any name and
// memory, whose memory is the host's and whose kernels only look at what they are given
// (fake_kernels.h). NIBBLE_FAKE_CARD says what it is, read at every question: "name=Tesla
// V100;major=7;minor=0;total=16384;free=800" (MiB). Also cards=0, driver=TEXT (none answers, for
// this reason), busy=TEXT (no context can be had), version=2 (the only one it answers to), wall=N
// (bytes that can be allocated in all, whatever `free` says), hostwall=N (the same of the host's
// page-locked memory), nan=N (products with weights of N rows and more are nan).
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "fake_kernels.h"
#include "kernels/cuda/abi.h"

struct NibbleCudaContext {
  char stage[kNibbleStageBytes];
};

namespace {

std::string setting(const std::string& key, const std::string& otherwise) {
  const char* all = std::getenv("NIBBLE_FAKE_CARD");
  const std::string text = std::string(";") + (all == nullptr ? "" : all) + ";";
  const size_t at = text.find(";" + key + "=");
  if (at == text.npos) return otherwise;
  const size_t begin = at + key.size() + 2;
  return text.substr(begin, text.find(';', begin) - begin);
}

int64_t number(const std::string& key, int64_t otherwise) {
  return std::atoll(setting(key, std::to_string(otherwise)).c_str());
}

constexpr int64_t kMiB = int64_t{1} << 20;
int64_t g_taken = 0;
std::map<void*, int64_t>& sizes() {
  static std::map<void*, int64_t> all;
  return all;
}

std::map<void*, int64_t>& host_sizes() {
  static std::map<void*, int64_t> all;
  return all;
}
std::string g_wrong;

// 0 without the setting, else 1 with its text as the error.
int refused(const char* key, char* error, size_t size) {
  const std::string text = setting(key, "");
  if (!text.empty()) std::snprintf(error, size, "%s", text.c_str());
  return text.empty() ? 0 : 1;
}

int count(char* error, size_t size) {
  return refused("driver", error, size) != 0 ? -1 : static_cast<int>(number("cards", 1));
}

int info(int, NibbleCudaInfo* out, char*, size_t) {
  std::snprintf(out->name, sizeof out->name, "%s", setting("name", "NVIDIA Fake").c_str());
  out->major = static_cast<int32_t>(number("major", 9));
  out->minor = static_cast<int32_t>(number("minor", 0));
  out->multiprocessors = 1;
  out->memory_bytes = number("total", 16384) * kMiB;
  out->l2_bytes = kMiB;
  return 0;
}

int free_memory(int, int64_t* bytes, char* error, size_t size) {
  *bytes = number("free", number("total", 16384)) * kMiB;
  return refused("busy", error, size);
}

NibbleCudaContext* open(int, char* error, size_t size) {
  g_wrong.clear();
  return refused("busy", error, size) != 0 ? nullptr : new NibbleCudaContext;
}

void close(NibbleCudaContext* context) { delete context; }

void* allocate(NibbleCudaContext*, size_t bytes) {
  const auto wanted = static_cast<int64_t>(bytes);
  if (g_taken + wanted > number("wall", INT64_MAX / 2)) return nullptr;
  void* memory = std::calloc(bytes == 0 ? 1 : bytes, 1);
  g_taken += wanted;
  sizes()[memory] = wanted;
  return memory;
}

void release(NibbleCudaContext*, void* memory) {
  g_taken -= sizes().at(memory);
  sizes().erase(memory);
  std::free(memory);
}

void copy(NibbleCudaContext*, void* to, const void* from, size_t bytes) {
  std::memcpy(to, from, bytes);
}

void* stage(NibbleCudaContext* context) { return context->stage; }

const char* error(const NibbleCudaContext*) { return g_wrong.empty() ? nullptr : g_wrong.c_str(); }

void* allocate_host(NibbleCudaContext*, size_t bytes) {
  int64_t taken = 0;
  for (const auto& [piece, size] : host_sizes()) taken += size;
  if (taken + static_cast<int64_t>(bytes) > number("hostwall", INT64_MAX / 2)) return nullptr;
  void* memory = std::calloc(bytes == 0 ? 1 : bytes, 1);
  host_sizes()[memory] = static_cast<int64_t>(bytes);
  return memory;
}
void release_host(NibbleCudaContext*, void* memory) {
  host_sizes().erase(memory);
  std::free(memory);
}
void nothing_to_wait_for(NibbleCudaContext*) {}
void* no_graph(NibbleCudaContext*) { return nullptr; }
void with_graph(NibbleCudaContext*, void*) {}

constexpr NibbleCudaDevice kDevice = {
    count,
    info,
    free_memory,
    open,
    close,
    allocate,
    release,
    copy,
    copy,
    stage,
    copy,
    allocate_host,
    release_host,
    copy,
    nothing_to_wait_for,
    nothing_to_wait_for,
    nothing_to_wait_for,
    nothing_to_wait_for,
    no_graph,
    with_graph,
    with_graph,
    error,
};

// Becomes a function of any type that does nothing.
struct Nothing {
  template <class R, class... A>
  using Function = R (*)(A...);
  template <class R, class... A>
  operator Function<R, A...>() const {  // NOLINT: implicit on purpose
    return [](A...) -> R { return R(); };
  }
};

template <size_t... I>
constexpr nibble::kernels::CudaKernels nothing(std::index_sequence<I...>) {
  return {((void)I, Nothing())...};
}
const nibble::kernels::CudaKernels kKernels = [] {
  auto out = nothing(
      std::make_index_sequence<sizeof(nibble::kernels::CudaKernels) / sizeof(void (*)())>());
  nibble::fake::look_at_arguments(&out);
  return out;
}();

bool answers(uint32_t version) { return version == number("version", kNibbleCudaVersion); }

}  // namespace

namespace nibble::fake {

bool is_held(const void* p, int64_t bytes) {
  for (const auto* pieces : {&sizes(), &host_sizes()}) {
    auto after = pieces->upper_bound(const_cast<void*>(p));
    if (after == pieces->begin()) continue;
    const auto& [begin, size] = *--after;
    const int64_t at = static_cast<const char*>(p) - static_cast<const char*>(begin);
    if (bytes >= 0 && at + bytes <= size) return true;
  }
  return false;
}

int64_t rows_of_nan() { return number("nan", INT64_MAX); }

void note(const char* text) {
  if (g_wrong.empty()) g_wrong = text;
}

}  // namespace nibble::fake

extern "C" __attribute__((visibility("default"))) const NibbleCudaDevice* nibble_cuda_device(
    uint32_t version) {
  return answers(version) ? &kDevice : nullptr;
}

extern "C" __attribute__((visibility("default"))) const void* nibble_cuda_kernels(
    uint32_t version) {
  return answers(version) ? &kKernels : nullptr;
}

// Bytes of the card that are taken at this moment.
extern "C" __attribute__((visibility("default"))) int64_t nibble_fake_card_taken() {
  return g_taken;
}
// Until now.
extern "C" __attribute__((visibility("default"))) void nibble_fake_card_done(
    nibble::fake::Done* done) {
  *done = nibble::fake::done();
}
