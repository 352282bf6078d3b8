#include "api/tokenizer.h"

#include <gtest/gtest.h>

#include "checkpoint/test_files.h"

namespace nibble::api {
namespace {

using Ids = std::vector<int32_t>;

// What ends a text of a folder with this value in generation_config.json.
Result<Ids> ids_of(const std::string& value) {
  checkpoint::TempFolder folder;
  folder.write("config.json", "{}");
  folder.write("model.safetensors", checkpoint::small_safetensors("a"));
  folder.write("generation_config.json", "{\"eos_token_id\": " + value + "}");
  NIBBLE_ASSIGN(const checkpoint::Checkpoint c, checkpoint::Checkpoint::open(folder.path()));
  return eos_ids(c, base::Json::object(), nullptr);
}

TEST(eos_ids, are_a_number_a_list_or_nothing) {
  EXPECT_EQ(ids_of("7").value_or(Ids{}), Ids{7});
  EXPECT_EQ(ids_of("[9, 7, 9]").value_or(Ids{}), (Ids{7, 9}));
  EXPECT_EQ(ids_of("7.0").value_or(Ids{}), Ids{7});
  EXPECT_EQ(ids_of("null").value_or(Ids{1}), Ids{});
}

TEST(eos_ids, other_types_are_refused) {
  const std::pair<const char*, const char*> cases[] = {
      {"\"7\"", "a string (\"7\")"}, {"true", "true"},
      {"[7, null]", "null"},         {"7.5", "the number 7.5"},
      {"1e20", "the number 1e+20"},  {"{}", "an object"}};
  for (const auto& [value, found] : cases) {
    const auto ids = ids_of(value);
    ASSERT_FALSE(ids) << value;
    EXPECT_EQ(
        ids.error().message,
        "generation_config.json: eos_token_id: expected a token id or a list of them, found " +
            std::string(found));
  }
}

}  // namespace
}  // namespace nibble::api
