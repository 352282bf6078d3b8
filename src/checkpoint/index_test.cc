#include "checkpoint/index.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace nibble::checkpoint {
namespace {

Result<ShardIndex> parse(std::string_view text) { return parse_shard_index(text, "i.json"); }

TEST(shard_index, shards_are_sorted_and_tensors_point_at_them) {
  const auto index = parse(
      R"({"metadata":{"total_size":12},"weight_map":{"x":"b.safetensors","y":"a.safetensors",)"
      R"("z":"sub/c.safetensors","..":"b.safetensors"}})");
  ASSERT_TRUE(index) << index.error().message;
  EXPECT_EQ(index->shards,
            (std::vector<std::string>{"a.safetensors", "b.safetensors", "sub/c.safetensors"}));
  ASSERT_EQ(index->tensors.size(), 4u);
  EXPECT_EQ(index->tensors[0], (std::pair<std::string, uint32_t>("x", 1)));
  EXPECT_EQ(index->tensors[1], (std::pair<std::string, uint32_t>("y", 0)));
  EXPECT_EQ(index->total_size, 12.0);
  EXPECT_FALSE(parse(R"({"weight_map":{"x":"b.safetensors"}})")->total_size);
}

struct Hostile {
  const char* what;
  std::string text;
  const char* message;  // after "i.json: "
};

class HostileIndex : public testing::TestWithParam<Hostile> {};

TEST_P(HostileIndex, is_refused_with_its_sentence) {
  const auto index = parse(GetParam().text);
  ASSERT_FALSE(index);
  EXPECT_EQ(index.error().message, std::string("i.json: ") + GetParam().message);
}

std::string with_path(std::string_view path) {
  return fmt::format(R"({{"weight_map":{{"w":"{}"}}}})", path);
}

const Hostile kHostile[] = {
    {"a_list", "[]", "expected a JSON object, found a list of 0"},
    {"no_map", R"({"metadata":{}})",
     "weight_map: expected an object of tensor names, found nothing"},
    {"map_is_a_list", R"({"weight_map":["a.safetensors"]})",
     "weight_map: expected an object of tensor names, found a list of 1"},
    {"empty_map", R"({"weight_map":{}})", "weight_map is empty"},
    {"shard_is_a_number", R"({"weight_map":{"w":1}})",
     "w: expected the name of a file, found the integer 1"},
    {"tensor_twice", R"({"weight_map":{"w":"a.safetensors","w":"b.safetensors"}})",
     "key \"w\" stands twice in one object; a file must say it once"},
    {"too_deep", R"({"weight_map":{"w":[[[[[[[[[[1]]]]]]]]]]}})",
     "JSON nested deeper than 8 levels"},
    {"no_path", with_path(""),
     "w: the shard's path \"\" is empty; shards are .safetensors files inside the folder"},
    {"absolute_path", with_path("/etc/a.safetensors"),
     "w: the shard's path \"/etc/a.safetensors\" is absolute; shards are .safetensors files inside "
     "the folder"},
    {"path_upwards", with_path("../a.safetensors"),
     "w: the shard's path \"../a.safetensors\" leaves the folder; shards are .safetensors files "
     "inside the folder"},
    {"path_down_and_up", with_path("a/../../b.safetensors"),
     "w: the shard's path \"a/../../b.safetensors\" leaves the folder; shards are .safetensors "
     "files "
     "inside the folder"},
    {"path_of_dots", with_path("a/.."),
     "w: the shard's path \"a/..\" leaves the folder; shards are .safetensors files inside the "
     "folder"},
    {"backslash", with_path("..\\\\a.safetensors"),
     "w: the shard's path \"..\\a.safetensors\" has a backslash; shards are .safetensors files "
     "inside "
     "the folder"},
    {"zero_byte", with_path("a\\u0000.safetensors"),
     "w: the shard's path \"a?.safetensors\" has a zero byte; shards are .safetensors files inside "
     "the folder"},
    {"a_pickle", with_path("pytorch_model-00001-of-00002.bin"),
     "w: the shard's path \"pytorch_model-00001-of-00002.bin\" is no .safetensors file; shards are "
     ".safetensors files inside the folder"},
};

INSTANTIATE_TEST_SUITE_P(shard_index, HostileIndex, testing::ValuesIn(kHostile),
                         [](const auto& row) { return std::string(row.param.what); });

}  // namespace
}  // namespace nibble::checkpoint
