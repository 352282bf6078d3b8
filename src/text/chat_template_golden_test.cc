// Compares renderings with what transformers wrote (tools/golden/make_chat_templates.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "text/chat_template.h"

namespace nibble::text {
namespace {

namespace fs = std::filesystem;
using base::Json;

std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

Json read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  auto json = base::parse_json(text.str(), path.filename().string());
  if (!json) ADD_FAILURE() << json.error().message;
  return json ? *json : Json();
}

std::tm time_of(const Json& document) {
  const auto& at = document.find("now")->as_array();
  std::tm now{};
  now.tm_year = static_cast<int>(at[0].as_int()) - 1900;
  now.tm_mon = static_cast<int>(at[1].as_int()) - 1;
  now.tm_mday = static_cast<int>(at[2].as_int());
  now.tm_hour = static_cast<int>(at[3].as_int());
  now.tm_min = static_cast<int>(at[4].as_int());
  now.tm_sec = static_cast<int>(at[5].as_int());
  timegm(&now);  // fills in the day of the week and of the year
  return now;
}

// A member of a case, or else what all cases of the file share.
const Json* given(const Json& document, const Json& test, const char* name) {
  const Json* own = test.find_set(name);
  return own != nullptr ? own : document.find("shared")->find_set(name);
}

Result<std::string> render(const Json& document, const Json& test) {
  const auto get = [&](const char* name) { return given(document, test, name); };
  ChatVariables variables;
  if (const Json* token = get("bos_token")) variables.bos_token = token->as_string();
  if (const Json* token = get("eos_token")) variables.eos_token = token->as_string();
  if (const Json* add = get("add_generation_prompt")) {
    variables.add_generation_prompt = add->as_bool();
  }
  if (const Json* extra = get("extra")) variables.extra = *extra;
  variables.now = time_of(document);
  NIBBLE_ASSIGN(const ChatTemplate chat,
                ChatTemplate::parse(get("template")->as_string(), "golden"));
  return chat.render(*get("messages"), get("tools"), variables);
}

struct Tally {
  int same_text = 0;
  int same_refusal = 0;
  int different = 0;
};

Tally compare(const fs::path& path) {
  const Json document = read(path);
  Tally tally;
  const Json* cases = document.find("cases");
  if (cases == nullptr) return tally;
  for (const Json& test : cases->as_array()) {
    const Result<std::string> rendered = render(document, test);
    const std::string name = path.stem().string() + ": " + test.find("name")->as_string();
    const Json* expected = test.find("expected");
    if (expected == nullptr) {
      EXPECT_FALSE(rendered) << name << "\nexpected " << test.find("error")->as_string()
                             << "\nfound    " << (rendered ? *rendered : "");
      rendered ? ++tally.different : ++tally.same_refusal;
      continue;
    }
    EXPECT_TRUE(rendered) << name << "\n" << (rendered ? "" : rendered.error().message);
    const bool same = rendered && *rendered == expected->as_string();
    if (rendered) {
      EXPECT_EQ(*rendered, expected->as_string()) << name;
    }
    same ? ++tally.same_text : ++tally.different;
  }
  return tally;
}

TEST(chat_template_golden, renders_every_construct_as_transformers_does) {
  const std::vector<fs::path> files =
      files_in(fs::path(NIBBLE_SOURCE_DIR) / "tests/golden/chat_templates");
  ASSERT_FALSE(files.empty());
  for (const fs::path& path : files) {
    const Tally tally = compare(path);
    EXPECT_GT(tally.same_text, 0) << path;
    EXPECT_EQ(tally.different, 0) << path;
  }
}

// NIBBLE_CHAT_TEMPLATES names a folder written by the script's --templates.
TEST(chat_template_golden, renders_the_templates_of_a_given_folder_as_transformers_does) {
  const char* folder = std::getenv("NIBBLE_CHAT_TEMPLATES");
  if (folder == nullptr) GTEST_SKIP() << "NIBBLE_CHAT_TEMPLATES names no folder to compare with";
  for (const fs::path& path : files_in(folder)) {
    const Tally tally = compare(path);
    std::printf("%-60s same text %3d  same refusal %3d  different %3d\n", path.stem().c_str(),
                tally.same_text, tally.same_refusal, tally.different);
    EXPECT_EQ(tally.different, 0) << path;
  }
}

}  // namespace
}  // namespace nibble::text
