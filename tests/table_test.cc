// docs/table.md, the table of schemes x weights x activations x kernels, is what the lists say: the
// schemes plan every folder of tests/golden, and the chooser answers for machines of each kind.
// NIBBLE_WRITE_DOCS=1 writes the file anew instead of comparing it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <tuple>

#include "load/plan.h"
#include "quant/scheme.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr char kHead[] =
    "# Schemes, weights, activations, kernels\n"
    "\n"
    "Made from the lists by `tests/table_test.cc` (`NIBBLE_WRITE_DOCS=1 "
    "build/dev/tests/test_table`\n"
    "writes it anew): one row for each kind of layer in `tests/golden`, and the kernels that the\n"
    "chooser gives a 4096 x 4096 weight of it with `--precision fast`, for 1 and for 512 tokens.\n"
    "\n"
    "| scheme | weights | activations | AVX-512: 1 token | 512 tokens | AVX2: 1 token | 512 tokens "
    "|\n"
    "|---|---|---|---|---|---|---|\n";

// scheme, weight, activation; the schemes in the order of the list
using Row = std::tuple<size_t, std::string, std::string>;

std::string kernels_of(const kernels::MatmulProblem& problem, device::Isa isa) {
  const auto choice = kernels::choose(problem, device::hardware_with(isa), {});
  EXPECT_TRUE(choice) << choice.error().message;
  if (!choice) return "";
  std::string out;
  for (const int64_t m : {int64_t{1}, int64_t{512}}) {
    for (const kernels::ChoiceRange& range : choice->ranges) {
      if (m < range.m_min || m > range.m_max) continue;
      out += fmt::format(" {} |", kernels::kernel_name(*range.kernel));
    }
  }
  return out;
}

std::map<Row, std::string> rows() {
  std::map<std::string_view, size_t> order;
  for (const quant::Scheme* scheme : quant::schemes()) order.emplace(scheme->name, order.size());
  std::map<Row, std::string> out;
  for (const auto& group : fs::directory_iterator(fs::path(NIBBLE_SOURCE_DIR) / "tests/golden")) {
    if (!group.is_directory()) continue;
    for (const auto& folder : fs::directory_iterator(group)) {
      if (!fs::exists(folder.path() / "expected")) continue;
      fs::path path = folder.path();
      if (!fs::exists(path / "config.json")) {
        for (const auto& file : fs::directory_iterator(folder)) {
          if (file.path().extension() == ".gguf" && (path == folder.path() || file.path() < path)) {
            path = file.path();
          }
        }
      }
      auto checkpoint = checkpoint::Checkpoint::open(path.string(), {});
      EXPECT_TRUE(checkpoint) << path << ": " << checkpoint.error().message;
      if (!checkpoint) continue;
      auto plan =
          load::make_plan(*checkpoint, {.hardware = device::hardware_with(device::Isa::kAvx2)});
      EXPECT_TRUE(plan) << path << ": " << plan.error().message;
      if (!plan) continue;
      for (const load::PlannedModule& module : plan->modules) {
        kernels::MatmulProblem problem = module.problem;
        problem.n = problem.k = 4096;
        const Row row = {order.at(module.method->scheme()), tensor::to_string(problem.weight),
                         tensor::to_string(problem.activation)};
        if (out.count(row) != 0) continue;
        out[row] =
            kernels_of(problem, device::Isa::kAvx512) + kernels_of(problem, device::Isa::kAvx2);
      }
    }
  }
  return out;
}

TEST(table, is_what_the_lists_say) {
  std::string table = kHead;
  std::set<size_t> seen;
  for (const auto& [row, kernels] : rows()) {
    const auto& [scheme, weight, activation] = row;
    seen.insert(scheme);
    table += fmt::format("| {} | {} | {} |{}\n", quant::schemes()[scheme]->name, weight, activation,
                         kernels);
  }
  for (size_t i = 0; i < quant::schemes().size(); ++i) {
    EXPECT_EQ(seen.count(i), 1u) << quant::schemes()[i]->name << " has no folder in tests/golden";
  }
  const fs::path file = fs::path(NIBBLE_SOURCE_DIR) / "docs/table.md";
  if (std::getenv("NIBBLE_WRITE_DOCS") != nullptr) {
    std::ofstream(file, std::ios::binary) << table;
    GTEST_SKIP() << "docs/table.md was written";
  }
  std::ostringstream stored;
  stored << std::ifstream(file, std::ios::binary).rdbuf();
  EXPECT_EQ(stored.str(), table) << "write it anew: NIBBLE_WRITE_DOCS=1 build/dev/tests/test_table";
}

}  // namespace
}  // namespace nibble
