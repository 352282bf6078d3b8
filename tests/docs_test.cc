// What the documents point at exists: links between files, and in src/README.md the files of the
// path of one tensor.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

const fs::path kRoot = NIBBLE_SOURCE_DIR;

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<fs::path> documents() {
  std::vector<fs::path> found;
  for (const char* folder : {".", "docs", "src", "tools"}) {
    for (const auto& entry : fs::directory_iterator(kRoot / folder)) {
      if (entry.path().extension() == ".md") found.push_back(entry.path());
    }
  }
  return found;
}

// Without the ``` blocks: what stands in them is code.
std::string prose(const std::string& text) {
  std::string kept;
  bool code = false;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("```", 0) == 0) code = !code;
    if (!code) kept += line + "\n";
  }
  return kept;
}

// The first group of every match.
std::vector<std::string> matches(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern);
  std::vector<std::string> found;
  for (std::sregex_iterator it(text.begin(), text.end(), regex), end; it != end; ++it) {
    found.push_back((*it)[1]);
  }
  return found;
}

TEST(docs, there_are_documents) { EXPECT_GT(documents().size(), 5u); }

TEST(docs, every_link_leads_to_a_file) {
  for (const fs::path& document : documents()) {
    for (const std::string& link : matches(prose(text_of(document)), R"(\]\(([^)#\s]+)[^)]*\))")) {
      if (link.find("://") != std::string::npos) continue;
      EXPECT_TRUE(fs::exists(document.parent_path() / link)) << document << ": " << link;
    }
  }
}

TEST(docs, the_path_of_one_tensor_names_files_that_exist) {
  std::string text = text_of(kRoot / "src/README.md");
  text.erase(0, text.find("One tensor's path"));
  const std::vector<std::string> files = matches(text, "`([a-z]+/[a-z0-9_/]+\\.(?:cc|h))`");
  EXPECT_GT(files.size(), 8u);
  for (const std::string& file : files) {
    EXPECT_TRUE(fs::exists(kRoot / "src" / file) || fs::exists(kRoot / file)) << file;
  }
}

}  // namespace
