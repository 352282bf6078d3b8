#include "device/hardware.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "device/limits.h"

namespace nibble::device {
namespace {

struct Registers {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

// Zeros when the CPU does not have the leaf.
Registers cpuid(uint32_t leaf, uint32_t subleaf = 0) {
  Registers r;
  __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);
  return r;
}

bool bit(uint32_t word, int index) { return ((word >> index) & 1) != 0; }

// Which register states the operating system saves on a switch (Intel SDM vol. 1, 13.3). Written
// as an instruction because the intrinsic needs a compile flag for the whole file.
uint64_t enabled_states(bool osxsave) {
  if (!osxsave) return 0;
  uint32_t low = 0;
  uint32_t high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t{high} << 32) | low;
}

constexpr uint64_t kYmmStates = 0x6;       // xmm, ymm
constexpr uint64_t kZmmStates = 0xe6;      // and opmask, upper zmm, zmm16-31
constexpr uint64_t kTileStates = 0x60000;  // tile config, tile data

// Linux gives the 8 KB of tile data to a process only when asked (kernel docs, x86/xstate).
bool request_tiles() {
  constexpr long kArchReqXcompPerm = 0x1023;
  constexpr long kTileDataState = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kTileDataState) == 0;
}

void detect_features(Hardware& hw) {
  const Registers leaf1 = cpuid(1);
  const Registers leaf7 = cpuid(7, 0);
  const Registers leaf7_1 = leaf7.eax >= 1 ? cpuid(7, 1) : Registers{};
  const uint64_t states = enabled_states(bit(leaf1.ecx, 27));
  const bool ymm = (states & kYmmStates) == kYmmStates;
  const bool zmm = (states & kZmmStates) == kZmmStates;
  const bool fma = bit(leaf1.ecx, 12);
  const bool f16c = bit(leaf1.ecx, 29);

  hw.avx2 = ymm && fma && f16c && bit(leaf7.ebx, 5);
  hw.avx_vnni = hw.avx2 && bit(leaf7_1.eax, 4);
  const bool f = bit(leaf7.ebx, 16);
  const bool dq = bit(leaf7.ebx, 17);
  const bool bw = bit(leaf7.ebx, 30);
  const bool vl = bit(leaf7.ebx, 31);
  const bool vnni = bit(leaf7.ecx, 11);
  hw.avx512 = hw.avx2 && zmm && f && dq && bw && vl && vnni;
  hw.avx512_bf16 = hw.avx512 && bit(leaf7_1.eax, 5);
  hw.avx512_vbmi = hw.avx512 && bit(leaf7.ecx, 1);
  const bool tiles = bit(leaf7.edx, 22) && bit(leaf7.edx, 24) && bit(leaf7.edx, 25);
  hw.amx = hw.avx512 && tiles && (states & kTileStates) == kTileStates && request_tiles();
}

std::string brand() {
  if (cpuid(0x80000000u).eax < 0x80000004u) return "unknown x86-64";
  char text[49] = {};
  for (uint32_t i = 0; i < 3; ++i) {
    const Registers r = cpuid(0x80000002u + i);
    std::memcpy(text + 16 * i, &r, 16);
  }
  std::string name = text;
  const size_t first = name.find_first_not_of(' ');
  const size_t last = name.find_last_not_of(' ');
  return first == std::string::npos ? "unknown x86-64" : name.substr(first, last - first + 1);
}

// Leaf 4 (Intel) and 0x8000001d (AMD) list the caches in the same form.
void detect_caches(Hardware& hw) {
  const bool amd = cpuid(0x80000000u).eax >= 0x8000001du && cpuid(0x8000001du).eax != 0;
  const uint32_t leaf = amd ? 0x8000001du : 4;
  for (uint32_t i = 0; i < 16; ++i) {
    const Registers r = cpuid(leaf, i);
    const uint32_t type = r.eax & 31;
    if (type == 0) break;
    if (type == 2) continue;  // instructions
    const int64_t ways = (r.ebx >> 22) + 1;
    const int64_t partitions = ((r.ebx >> 12) & 1023) + 1;
    const int64_t line = (r.ebx & 4095) + 1;
    const int64_t sets = int64_t{r.ecx} + 1;
    const int64_t bytes = ways * partitions * line * sets;
    const uint32_t level = (r.eax >> 5) & 7;
    if (level == 2) hw.l2_bytes = bytes;
    if (level == 3) hw.l3_bytes = bytes;
  }
}

int64_t physical_memory() {
  const long pages = sysconf(_SC_PHYS_PAGES);
  const long page = sysconf(_SC_PAGESIZE);
  return pages > 0 && page > 0 ? int64_t{pages} * page : 0;
}

}  // namespace

const char* name(Isa isa) {
  switch (isa) {
    case Isa::kReference:
      return "reference";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAmx:
      return "amx";
  }
  return "?";
}

bool Hardware::has(Isa isa) const {
  switch (isa) {
    case Isa::kReference:
      return true;
    case Isa::kAvx2:
      return avx2;
    case Isa::kAvx512:
      return avx512;
    case Isa::kAmx:
      return avx512 && amx;
  }
  return false;
}

Isa Hardware::best_isa() const {
  for (Isa isa : {Isa::kAmx, Isa::kAvx512, Isa::kAvx2}) {
    if (has(isa)) return isa;
  }
  return Isa::kReference;
}

Hardware detect_hardware() {
  Hardware hw;
  hw.cpu_model = brand();
  detect_features(hw);
  detect_caches(hw);
  hw.cores = usable_cores(physical_cores("", allowed_cpus()), cgroup_cpu_quota(""));
  hw.memory_bytes = physical_memory();
  const int64_t limit = cgroup_memory_limit("");
  if (limit > 0) hw.memory_bytes = std::min(hw.memory_bytes, limit);
  return hw;
}

Hardware hardware_with(Isa isa) {
  Hardware hw;
  hw.cpu_model = std::string("a machine with ") + name(isa);
  hw.avx2 = isa >= Isa::kAvx2;
  hw.avx512 = isa >= Isa::kAvx512;
  hw.avx512_bf16 = hw.avx512;
  hw.avx512_vbmi = hw.avx512;
  hw.avx_vnni = hw.avx512;
  hw.amx = isa >= Isa::kAmx;
  hw.cores = hw.amx ? 16 : 8;
  hw.l2_bytes = (hw.amx ? 2048 : hw.avx512 ? 1024 : 512) * int64_t{1024};
  hw.l3_bytes = int64_t{32} << 20;
  hw.memory_bytes = int64_t{32} << 30;
  return hw;
}

}  // namespace nibble::device
