#include "device/limits.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

namespace nibble::device {
namespace {

std::optional<std::string> first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!file || !std::getline(file, line)) return std::nullopt;
  return line;
}

std::optional<int64_t> first_integer(const std::string& path) {
  const auto line = first_line(path);
  if (!line) return std::nullopt;
  std::istringstream in(*line);
  int64_t value = 0;
  if (!(in >> value)) return std::nullopt;
  return value;
}

// The folders of one control group and its parents, innermost first. Inside a container the path
// in /proc/self/cgroup may be that of the host and not exist here; the mount's own top, which is
// always last, is then the container's group.
std::vector<std::string> group_folders(const std::string& mount, std::string path) {
  std::vector<std::string> folders;
  while (path.size() > 1) {
    folders.push_back(mount + path);
    path.resize(path.find_last_of('/'));
  }
  folders.push_back(mount);
  return folders;
}

// Folders of this process's group, for a version 1 controller and for version 2.
struct GroupFolders {
  std::vector<std::string> v1;
  std::vector<std::string> v2;
};

GroupFolders find_groups(const std::string& root, const std::string& controller) {
  const std::string mount = root + "/sys/fs/cgroup";
  GroupFolders found;
  std::ifstream file(root + "/proc/self/cgroup");
  // Lines are "hierarchy:controller,controller:path"; version 2 is "0::path".
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string names = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (path.empty() || path[0] != '/') continue;
    if (names.empty()) found.v2 = group_folders(mount, path);
    std::istringstream split(names);
    for (std::string one; std::getline(split, one, ',');) {
      if (one == controller) found.v1 = group_folders(mount + "/" + controller, path);
    }
  }
  return found;
}

}  // namespace

std::vector<int> allowed_cpus() {
  // The kernel refuses a mask smaller than its own, which may be larger than cpu_set_t.
  for (int size = 1024; size <= (1 << 20); size *= 2) {
    cpu_set_t* mask = CPU_ALLOC(size);
    if (mask == nullptr) break;
    const size_t bytes = CPU_ALLOC_SIZE(size);
    const bool told = sched_getaffinity(0, bytes, mask) == 0;
    std::vector<int> cpus;
    for (int cpu = 0; told && cpu < size; ++cpu) {
      if (CPU_ISSET_S(cpu, bytes, mask)) cpus.push_back(cpu);
    }
    CPU_FREE(mask);
    if (!cpus.empty()) return cpus;
  }
  return {0};
}

int physical_cores(const std::string& root, const std::vector<int>& cpus) {
  std::set<std::pair<int64_t, int64_t>> cores;
  int untold = 0;
  for (int cpu : cpus) {
    const std::string folder =
        root + "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
    const auto package = first_integer(folder + "physical_package_id");
    const auto core = first_integer(folder + "core_id");
    if (package && core && *core >= 0) {
      cores.emplace(*package, *core);
    } else {
      ++untold;
    }
  }
  return std::max(1, static_cast<int>(cores.size()) + untold);
}

double cgroup_cpu_quota(const std::string& root) {
  double tightest = 0;
  const auto take = [&](double quota, double period) {
    if (quota <= 0 || period <= 0) return;
    const double cpus = quota / period;
    if (tightest == 0 || cpus < tightest) tightest = cpus;
  };
  const GroupFolders groups = find_groups(root, "cpu");
  for (const auto& folder : groups.v2) {
    const auto line = first_line(folder + "/cpu.max");  // "150000 100000" or "max 100000"
    if (!line) continue;
    std::istringstream in(*line);
    double quota = 0;
    double period = 0;
    if (in >> quota >> period) take(quota, period);
  }
  for (const auto& folder : groups.v1) {
    const auto quota = first_integer(folder + "/cpu.cfs_quota_us");  // -1: none
    const auto period = first_integer(folder + "/cpu.cfs_period_us");
    if (quota && period) take(static_cast<double>(*quota), static_cast<double>(*period));
  }
  return tightest;
}

int64_t cgroup_memory_limit(const std::string& root) {
  int64_t tightest = 0;
  const auto take = [&](std::optional<int64_t> limit) {
    // Version 1 writes "none" as a number near the largest int64; version 2 writes "max".
    if (!limit || *limit <= 0 || *limit >= (int64_t{1} << 60)) return;
    if (tightest == 0 || *limit < tightest) tightest = *limit;
  };
  const GroupFolders groups = find_groups(root, "memory");
  for (const auto& folder : groups.v2) take(first_integer(folder + "/memory.max"));
  for (const auto& folder : groups.v1) take(first_integer(folder + "/memory.limit_in_bytes"));
  return tightest;
}

int usable_cores(int physical, double quota) {
  if (quota <= 0) return std::max(1, physical);
  // A thread beyond the quota gets the whole process throttled, so halves are not used.
  return std::max(1, std::min(physical, static_cast<int>(quota)));
}

}  // namespace nibble::device
