// The rooms and who may include whom (docs/architecture.md, "Rooms"), checked on the includes of
// every source file. Tests, benchmarks and fuzz targets are exempt: they may look anywhere.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace {

namespace fs = std::filesystem;

// Room -> the other rooms it may include. Every room may include itself and "nibble/result.h".
const std::map<std::string, std::set<std::string>>& rooms() {
  static const std::map<std::string, std::set<std::string>> table = {
      {"base", {}},
      {"tensor", {"base"}},
      {"device", {"base", "tensor"}},
      {"comm", {"base", "tensor", "device"}},
      {"kernels", {"base", "tensor", "device"}},
      {"checkpoint", {"base", "tensor"}},
      {"text", {"base"}},
      {"quant", {"base", "tensor", "device", "kernels"}},
      {"layers", {"base", "tensor", "device", "comm", "kernels", "quant"}},
      {"models", {"base", "tensor", "layers"}},
      {"load",
       {"base", "tensor", "device", "comm", "kernels", "checkpoint", "quant", "layers", "models"}},
      {"export", {"base", "tensor", "device", "checkpoint", "kernels", "quant", "load"}},
      {"generate", {"base", "tensor", "device", "kernels", "layers", "models", "text"}},
      {"api",
       {"base", "tensor", "device", "comm", "kernels", "checkpoint", "text", "quant", "layers",
        "models", "load", "export", "generate"}},
  };
  return table;
}

struct Include {
  int line;
  std::string path;
};

// The quoted includes, and the angled ones: a room is a room however it is spelled.
std::vector<Include> includes_of(const std::string& text) {
  std::vector<Include> found;
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    size_t at = line.find_first_not_of(" \t");
    if (at == std::string::npos || line[at] != '#') continue;
    at = line.find_first_not_of(" \t", at + 1);
    if (at == std::string::npos || line.compare(at, 7, "include") != 0) continue;
    const size_t open = line.find_first_of("\"<", at + 7);
    if (open == std::string::npos) continue;
    const size_t close = line.find(line[open] == '"' ? '"' : '>', open + 1);
    if (close == std::string::npos) continue;
    const std::string path = line.substr(open + 1, close - open - 1);
    const bool quoted = line[open] == '"';
    if (quoted || rooms().count(path.substr(0, path.find('/'))) != 0) {
      found.push_back({number, path});
    }
  }
  return found;
}

std::string first_segment(std::string_view path) {
  return std::string(path.substr(0, path.find('/')));
}

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

bool is_exempt(std::string_view path) {
  return ends_with(path, "_test.cc") || ends_with(path, "_bench.cc");
}

// Path from the project's root -> text.
using Tree = std::map<std::string, std::string>;

// "quant/scheme.h" of "src/quant/scheme.h": how a file is included.
std::string spelled(const std::string& path) { return path.substr(path.find('/') + 1); }

// The headers that tests and benchmarks share: included, and only by exempt files or one another.
std::set<std::string> test_headers(const Tree& files) {
  std::map<std::string, std::set<std::string>> includers;  // spelled -> paths
  for (const auto& [path, text] : files) {
    for (const Include& include : includes_of(text)) includers[include.path].insert(path);
  }
  std::set<std::string> found;
  for (bool grew = true; grew;) {
    grew = false;
    for (const auto& [path, text] : files) {
      const std::set<std::string>& by = includers[spelled(path)];
      const bool tests_only =
          !by.empty() && std::all_of(by.begin(), by.end(), [&](const std::string& one) {
            return is_exempt(one) || found.count(one) != 0;
          });
      if (ends_with(path, ".h") && tests_only && found.insert(path).second) grew = true;
    }
  }
  return found;
}

// Why a file at `path` ("src/quant/awq.cc") may not include `include`; "" when it may.
std::string refusal(const std::string& path, const std::string& include) {
  const std::string target = first_segment(include);
  const bool in_public_header = target == "nibble";
  if (path.rfind("include/", 0) == 0) {
    return in_public_header ? "" : "the public header may include only \"nibble/...\"";
  }
  if (path.rfind("apps/", 0) == 0) {
    const std::string app = first_segment(path.substr(5));
    if (in_public_header || target == app) return "";
    return "apps/" + app + " may include only \"nibble/...\" and its own \"" + app + "/...\"";
  }
  const std::string room = first_segment(path.substr(4));  // after "src/"
  const auto known = rooms().find(room);
  if (known == rooms().end()) return "";  // said once, by the test about files outside the rooms
  if (in_public_header) {
    if (include == "nibble/result.h" || room == "api") return "";
    return "only api may include \"" + include + "\"; " + room + " may include \"nibble/result.h\"";
  }
  if (target == room || known->second.count(target) != 0) return "";
  if (rooms().count(target) == 0) {
    return "\"" + include + "\" does not begin with a room's name";
  }
  std::string allowed;
  for (const std::string& other : known->second) allowed += " " + other;
  return room + " may not include " + target +
         "; it may include:" + (allowed.empty() ? " nothing else" : allowed);
}

std::vector<std::string> violations(const std::string& path, const std::string& text) {
  std::vector<std::string> found;
  if (is_exempt(path)) return found;
  for (const Include& include : includes_of(text)) {
    const std::string why = refusal(path, include.path);
    if (!why.empty()) found.push_back(path + ":" + std::to_string(include.line) + ": " + why);
  }
  return found;
}

bool is_source(const fs::path& path) {
  static const std::set<std::string> endings = {".h", ".cc", ".inc", ".cu", ".cuh"};
  return endings.count(path.extension().string()) != 0;
}

// Every source file of src, apps and include.
const Tree& tree() {
  static const auto files = [] {
    Tree found;
    const fs::path root = NIBBLE_SOURCE_DIR;
    for (const char* folder : {"src", "apps", "include"}) {
      if (!fs::exists(root / folder)) continue;
      for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
        if (!entry.is_regular_file() || !is_source(entry.path())) continue;
        std::ifstream file(entry.path(), std::ios::binary);
        std::ostringstream text;
        text << file.rdbuf();
        found[fs::relative(entry.path(), root).generic_string()] = text.str();
      }
    }
    return found;
  }();
  return files;
}

TEST(rooms, the_tree_is_where_it_is_looked_for) { EXPECT_GT(tree().size(), 20u); }

TEST(rooms, every_include_follows_the_table) {
  const std::set<std::string> exempt = test_headers(tree());
  for (const auto& [path, text] : tree()) {
    if (exempt.count(path) != 0) continue;
    for (const std::string& violation : violations(path, text)) ADD_FAILURE() << violation;
  }
}

TEST(rooms, every_source_file_is_in_a_room) {
  for (const auto& [path, text] : tree()) {
    if (path.rfind("src/", 0) != 0) continue;
    const std::string rest = path.substr(4);
    EXPECT_TRUE(rest.find('/') != std::string::npos && rooms().count(first_segment(rest)) != 0)
        << path << ": is in none of the rooms";
  }
}

// What the compiler says about a file that holds nothing but this include; "" when it is content.
std::string compile_alone(const std::string& header) {
  const std::string root = NIBBLE_SOURCE_DIR;
  const std::string command = "echo '#include \"" + header +
                              "\"' | " NIBBLE_CXX_COMPILER " -x c++ -std=c++20 -fsyntax-only -I '" +
                              root + "/src' -I '" + root + "/include' -I '" + root +
                              "/apps' - 2>&1";
  std::string said;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return "the compiler could not be started: " + command;
  std::array<char, 4096> piece;
  while (const size_t got = fread(piece.data(), 1, piece.size(), pipe)) {
    said.append(piece.data(), got);
  }
  if (pclose(pipe) == 0) return "";
  return said.empty() ? "the compiler failed: " + command : said;
}

// A file that compiles and whose first include is X shows that X needs nothing before it. Only the
// few headers that come first nowhere are compiled here. A part of a header that cannot stand alone
// is an .inc file.
TEST(rooms, every_header_can_be_included_alone) {
  const std::set<std::string> exempt = test_headers(tree());
  std::set<std::string> first;
  for (const auto& [path, text] : tree()) {
    if (ends_with(path, ".h") || ends_with(path, ".inc")) continue;
    const std::vector<Include> includes = includes_of(text);
    if (!includes.empty()) first.insert(includes.front().path);
  }
  for (const auto& [path, text] : tree()) {
    const bool shown = first.count(spelled(path)) != 0;
    if (!ends_with(path, ".h") || shown || exempt.count(path) != 0) continue;
    EXPECT_EQ(compile_alone(spelled(path)), "") << path << ": cannot be included alone";
  }
}

TEST(rooms, the_table_lets_nobody_include_upwards) {
  for (const auto& [room, allowed] : rooms()) {
    for (const std::string& other : allowed) {
      ASSERT_EQ(rooms().count(other), 1u) << room << " names the unknown room " << other;
      EXPECT_EQ(rooms().at(other).count(room), 0u) << room << " and " << other << " form a cycle";
    }
  }
}

TEST(rooms, a_violation_names_file_line_and_rule) {
  const auto found =
      violations("src/kernels/a.cc", "#include \"base/x.h\"\n\n#include \"quant/y.h\"\n");
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(
      found[0],
      "src/kernels/a.cc:3: kernels may not include quant; it may include: base device tensor");
}

TEST(rooms, other_spellings_of_an_include_are_seen) {
  EXPECT_EQ(violations("src/text/a.h", "  #  include <tensor/x.h>\n").size(), 1u);
  EXPECT_EQ(violations("src/text/a.cc", "#include \"neighbour.h\"\n").size(), 1u);
  EXPECT_EQ(violations("src/text/a.cc", "#include <string>\n#include <fmt/format.h>\n").size(), 0u);
}

TEST(rooms, only_api_and_the_apps_see_the_public_header) {
  EXPECT_EQ(violations("src/quant/a.h", "#include \"nibble/result.h\"\n").size(), 0u);
  EXPECT_EQ(violations("src/quant/a.h", "#include \"nibble/nibble.h\"\n").size(), 1u);
  EXPECT_EQ(violations("src/api/a.cc", "#include \"nibble/nibble.h\"\n").size(), 0u);
  EXPECT_EQ(violations("apps/cli/a.cc", "#include \"nibble/nibble.h\"\n").size(), 0u);
  EXPECT_EQ(violations("apps/cli/a.cc", "#include \"cli/options.h\"\n").size(), 0u);
  EXPECT_EQ(violations("apps/cli/a.cc", "#include \"base/json.h\"\n").size(), 1u);
  EXPECT_EQ(violations("include/nibble/a.h", "#include \"base/json.h\"\n").size(), 1u);
}

TEST(rooms, tests_and_benchmarks_are_exempt) {
  EXPECT_EQ(violations("src/base/a_test.cc", "#include \"api/x.h\"\n").size(), 0u);
  EXPECT_EQ(violations("src/base/a_bench.cc", "#include \"api/x.h\"\n").size(), 0u);
}

TEST(rooms, a_header_that_only_tests_include_is_exempt_as_they_are) {
  const Tree files = {{"src/base/a.cc", "#include \"base/a.h\"\n"},
                      {"src/base/a.h", ""},
                      {"src/base/a_test.cc", "#include \"base/a.h\"\n#include \"base/help.h\"\n"},
                      {"src/base/help.h", "#include \"base/more.h\"\n"},
                      {"src/base/more.h", ""},
                      {"src/base/unused.h", ""}};
  EXPECT_EQ(test_headers(files), (std::set<std::string>{"src/base/help.h", "src/base/more.h"}));
}

}  // namespace
