// The real program on the golden folders, for tests of what docs/cli.md promises. Numbers are
// judged by tests/golden_test.cc; here it is exit codes, streams, files and the shapes of
// documents.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/spawn.h"

namespace nibble::cli {

namespace fs = std::filesystem;
using Json = nlohmann::json;

inline const std::string kGolden = NIBBLE_SOURCE_DIR "/tests/golden/";
inline const std::string kAwq = kGolden + "awq/g32";
inline const std::string kGguf = kGolden + "gguf/q4_1/model.gguf";
inline const std::string kFloat = kGolden + "unquantized/bf16_untied";

inline Ran nibble(std::vector<std::string> arguments, const std::string& input = "") {
  arguments.insert(arguments.begin(), NIBBLE_PROGRAM);
  Spawn spawn{std::move(arguments)};
  spawn.input = input;
  return run(spawn, 120);
}

inline Json json_of(const Ran& ran) {
  Json json = Json::parse(ran.out, nullptr, false);
  EXPECT_FALSE(json.is_discarded()) << ran.out << ran.err;
  return json;
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

inline void expect_error(const Ran& ran, int exit_code, const std::string& part) {
  EXPECT_EQ(ran.signal, 0);
  EXPECT_EQ(ran.exit_code, exit_code) << ran.err;
  EXPECT_EQ(ran.out, "");
  const size_t at = ran.err.find("error: ");
  ASSERT_NE(at, std::string::npos) << ran.err;
  EXPECT_TRUE(at == 0 || ran.err[at - 1] == '\n') << ran.err;
  EXPECT_EQ(ran.err.find('\n', at), ran.err.size() - 1) << "one line, the last: " << ran.err;
  EXPECT_TRUE(contains(ran.err, part)) << ran.err;
}

// A path of the running test's own: tests run side by side.
inline std::string temporary(const std::string& name) {
  return testing::TempDir() + testing::UnitTest::GetInstance()->current_test_info()->name() + "_" +
         name;
}

// A folder of its own with a copy of a golden one.
class Copy {
 public:
  explicit Copy(const std::string& folder) : path_(temporary("copy")) {
    fs::remove_all(path_);
    fs::copy(folder, path_, fs::copy_options::recursive);
  }
  ~Copy() { fs::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Where a tensor's bytes lie in a safetensors file, and how many they are.
inline std::pair<uint64_t, uint64_t> bytes_of(const std::string& file, const std::string& tensor) {
  std::ifstream in(file, std::ios::binary);
  uint64_t length = 0;
  in.read(reinterpret_cast<char*>(&length), 8);
  std::string header(length, '\0');
  in.read(header.data(), static_cast<std::streamsize>(length));
  const Json range = Json::parse(header)[tensor]["data_offsets"];
  return {8 + length + range[0].get<uint64_t>(),
          range[1].get<uint64_t>() - range[0].get<uint64_t>()};
}

inline void write_at(const std::string& file, uint64_t offset, const std::string& bytes) {
  std::fstream out(file, std::ios::binary | std::ios::in | std::ios::out);
  out.seekp(static_cast<std::streamoff>(offset));
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

// verify --json of a damaged copy: exit code 1, and the only finding.
inline std::string only_finding(const std::string& model) {
  const Ran ran = nibble({"verify", model, "--json"});
  EXPECT_EQ(ran.exit_code, 1) << ran.out;
  const Json findings = json_of(ran)["findings"];
  EXPECT_EQ(findings.size(), 1u) << findings;
  if (findings.empty()) return "";
  return findings[0]["where"].get<std::string>() + ": " + findings[0]["what"].get<std::string>();
}

// Writes `to` over the first `from` of a file.
inline void rename_in(const std::string& path, const std::string& from, const std::string& to) {
  std::ostringstream all;
  all << std::ifstream(path, std::ios::binary).rdbuf();
  const size_t at = all.str().find(from);
  ASSERT_NE(at, std::string::npos) << from;
  ASSERT_EQ(from.size(), to.size());
  write_at(path, at, to);
}

}  // namespace nibble::cli
