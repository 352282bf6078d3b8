// What the system lets this process use of the machine: affinity mask, cores, control groups.
//
// Every function reads files below `root` ("/" for this machine), so that tests can draw other
// machines as a few files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace nibble::device {

// The logical CPUs in this process's affinity mask, ascending; {0} if the system will not say.
std::vector<int> allowed_cpus();

// How many physical cores `cpus` (logical numbers) stand on, by sys/devices/system/cpu. CPUs whose
// topology is not told count as a core each.
int physical_cores(const std::string& root, const std::vector<int>& cpus);

// The tightest CPU quota of this process's control group and its parents, in CPUs (1.5 = one and a
// half); 0 when there is none. Versions 1 (cpu.cfs_quota_us) and 2 (cpu.max).
double cgroup_cpu_quota(const std::string& root);

// The tightest memory limit of this process's control group and its parents, in bytes; 0 when there
// is none. Versions 1 (memory.limit_in_bytes) and 2 (memory.max).
int64_t cgroup_memory_limit(const std::string& root);

// Cores to run threads on: whole CPUs of the quota, at least 1.
int usable_cores(int physical, double quota);

}  // namespace nibble::device
