#include "device/hardware.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "device/limits.h"

namespace nibble::device {
namespace {

// A machine drawn as files in a temporary folder.
class FakeRoot {
 public:
  FakeRoot() {
    std::string name = (std::filesystem::temp_directory_path() / "nibble_root_XXXXXX").string();
    if (mkdtemp(name.data()) != nullptr) path_ = name;
  }
  ~FakeRoot() {
    if (!path_.empty()) std::filesystem::remove_all(path_);
  }
  FakeRoot& file(const std::string& name, const std::string& text) {
    const std::filesystem::path path = path_ + "/" + name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text << "\n";
    return *this;
  }
  FakeRoot& cpu(int number, int package, int core) {
    const std::string folder = "sys/devices/system/cpu/cpu" + std::to_string(number) + "/topology/";
    file(folder + "physical_package_id", std::to_string(package));
    return file(folder + "core_id", std::to_string(core));
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(hardware, this_machine_is_described_without_contradiction) {
  const Hardware hw = detect_hardware();
  EXPECT_FALSE(hw.cpu_model.empty());
  EXPECT_GE(hw.cores, 1);
  EXPECT_LE(hw.cores, static_cast<int>(allowed_cpus().size()));
  EXPECT_GT(hw.memory_bytes, int64_t{64} << 20);
  EXPECT_GT(hw.l2_bytes, 0);
  EXPECT_TRUE(!hw.avx512 || hw.avx2);
  EXPECT_TRUE(!hw.avx512_bf16 || hw.avx512);
  EXPECT_TRUE(!hw.amx || hw.avx512);
  EXPECT_TRUE(hw.has(hw.best_isa()));
  EXPECT_TRUE(hw.has(Isa::kReference));
}

TEST(hardware, the_features_agree_with_what_the_compiler_asks_the_cpu) {
  const Hardware hw = detect_hardware();
  __builtin_cpu_init();
  EXPECT_EQ(hw.avx2, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
  EXPECT_EQ(hw.avx512, __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                           __builtin_cpu_supports("avx512vl") &&
                           __builtin_cpu_supports("avx512dq") &&
                           __builtin_cpu_supports("avx512vnni"));
  EXPECT_EQ(hw.avx512_bf16, hw.avx512 && __builtin_cpu_supports("avx512bf16"));
}

TEST(hardware, an_invented_machine_has_what_was_asked_and_nothing_above) {
  for (Isa isa : {Isa::kReference, Isa::kAvx2, Isa::kAvx512, Isa::kAmx}) {
    const Hardware hw = hardware_with(isa);
    EXPECT_EQ(hw.best_isa(), isa) << name(isa);
    for (Isa other : {Isa::kReference, Isa::kAvx2, Isa::kAvx512, Isa::kAmx}) {
      EXPECT_EQ(hw.has(other), other <= isa) << name(isa) << " " << name(other);
    }
  }
}

TEST(hardware, isa_names_are_the_words_of_the_command_line) {
  EXPECT_STREQ(name(Isa::kReference), "reference");
  EXPECT_STREQ(name(Isa::kAvx2), "avx2");
  EXPECT_STREQ(name(Isa::kAvx512), "avx512");
  EXPECT_STREQ(name(Isa::kAmx), "amx");
}

TEST(limits, siblings_of_one_core_count_once) {
  FakeRoot root;
  root.cpu(0, 0, 0).cpu(1, 0, 1).cpu(2, 0, 0).cpu(3, 0, 1).cpu(4, 1, 0);
  EXPECT_EQ(physical_cores(root.path(), {0, 1, 2, 3}), 2);
  EXPECT_EQ(physical_cores(root.path(), {0, 2}), 1);
  EXPECT_EQ(physical_cores(root.path(), {0, 4}), 2);
  EXPECT_EQ(physical_cores(root.path(), {0, 8, 9}), 3);  // 8 and 9 have no topology
}

TEST(limits, the_tightest_version_2_group_wins) {
  FakeRoot root;
  root.file("proc/self/cgroup", "0::/a/b");
  EXPECT_EQ(cgroup_cpu_quota(root.path()), 0);
  root.file("sys/fs/cgroup/a/b/cpu.max", "max 100000");
  EXPECT_EQ(cgroup_cpu_quota(root.path()), 0);
  root.file("sys/fs/cgroup/a/cpu.max", "250000 100000");
  EXPECT_EQ(cgroup_cpu_quota(root.path()), 2.5);
  root.file("sys/fs/cgroup/a/b/cpu.max", "400000 100000");
  EXPECT_EQ(cgroup_cpu_quota(root.path()), 2.5);
  root.file("sys/fs/cgroup/a/b/memory.max", "max");
  EXPECT_EQ(cgroup_memory_limit(root.path()), 0);
  root.file("sys/fs/cgroup/a/memory.max", "1073741824");
  EXPECT_EQ(cgroup_memory_limit(root.path()), 1073741824);
}

TEST(limits, version_1_groups_are_read) {
  FakeRoot root;
  root.file("proc/self/cgroup", "5:memory:/docker/x\n4:cpu,cpuacct:/docker/x\n0::/docker/x");
  // Seen from inside the container the mount's top is the container's own group.
  root.file("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "150000");
  root.file("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000");
  root.file("sys/fs/cgroup/memory/memory.limit_in_bytes", "536870912");
  EXPECT_EQ(cgroup_cpu_quota(root.path()), 1.5);
  EXPECT_EQ(cgroup_memory_limit(root.path()), 536870912);
  root.file("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1");
  root.file("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
  EXPECT_EQ(cgroup_cpu_quota(root.path()), 0);
  EXPECT_EQ(cgroup_memory_limit(root.path()), 0);
}

TEST(limits, damaged_files_mean_no_limit) {
  FakeRoot root;
  EXPECT_EQ(cgroup_cpu_quota(root.path()), 0);
  root.file("proc/self/cgroup", "nonsense\n0::relative\n0::/");
  root.file("sys/fs/cgroup/cpu.max", "soon");
  root.file("sys/fs/cgroup/memory.max", "-5");
  EXPECT_EQ(cgroup_cpu_quota(root.path()), 0);
  EXPECT_EQ(cgroup_memory_limit(root.path()), 0);
}

TEST(limits, a_quota_gives_whole_cpus_and_at_least_one) {
  EXPECT_EQ(usable_cores(8, 0), 8);
  EXPECT_EQ(usable_cores(8, 2.5), 2);
  EXPECT_EQ(usable_cores(8, 0.5), 1);
  EXPECT_EQ(usable_cores(2, 16), 2);
}

}  // namespace
}  // namespace nibble::device
