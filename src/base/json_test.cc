#include "base/json.h"

#include <gtest/gtest.h>

namespace nibble::base {
namespace {

TEST(json, keeps_integers_reals_and_order_apart) {
  auto json = parse_json(R"({"b": 1, "a": 1.0, "c": [true, null, "x"]})", "t.json");
  ASSERT_TRUE(json);
  EXPECT_EQ(json->as_object()[0].first, "b");
  EXPECT_TRUE(json->find("b")->is_int());
  EXPECT_TRUE(json->find("a")->is_double());
  EXPECT_EQ(json->dump(), R"({"b":1,"a":1.0,"c":[true,null,"x"]})");
}

TEST(json, a_duplicate_key_is_an_error_that_names_it) {
  auto json = parse_json(R"({"k": 1, "k": 2})", "t.json");
  ASSERT_FALSE(json);
  EXPECT_EQ(json.error().message,
            "t.json: key \"k\" stands twice in one object; a file must say it once");
}

TEST(json, depth_is_limited) {
  auto json = parse_json(std::string(100000, '['), "deep.json");
  ASSERT_FALSE(json);
  EXPECT_EQ(json.error().message, "deep.json: JSON nested deeper than 64 levels");
}

TEST(json, messages_name_file_key_expected_and_found) {
  auto json = parse_json(R"({"rope": {"factor": "8"}})", "config.json");
  ASSERT_TRUE(json);
  auto factor = json->find("rope")->get_double("factor");
  ASSERT_FALSE(factor);
  EXPECT_EQ(factor.error().message,
            "config.json: rope: factor: expected a number, found a string (\"8\")");
}

TEST(json, invalid_utf8_and_trailing_text_are_refused) {
  EXPECT_FALSE(parse_json("\"\xff\"", "t.json"));
  EXPECT_FALSE(parse_json("{} x", "t.json"));
  EXPECT_FALSE(parse_json("", "t.json"));
  EXPECT_FALSE(parse_json(std::string_view("{}\0", 3), "t.json"));
  EXPECT_FALSE(parse_json(std::string_view("{}\0x", 4), "t.json"));
}

TEST(json, a_long_key_above_many_objects_does_not_multiply) {
  std::string text = "{\"" + std::string(1 << 20, 'k') + "\": {";
  for (int i = 0; i < 10'000; ++i) text += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":{}";
  auto json = parse_json(text + "}}", "c.json");  // 10 GB if each object kept its whole path
  ASSERT_TRUE(json) << json.error().message;
  EXPECT_LT(json->as_object()[0].second.find("7")->where().size(), 200u);
}

TEST(json, asked_keys_are_remembered_with_their_place) {
  auto json = parse_json("{\"a\": {\"b\": 1, \"c\": 2}, \"d\": 3}", "c.json");
  ASSERT_TRUE(json);
  const auto asked = json->remember_asked();
  EXPECT_EQ(json->find("a")->find("b")->as_int(), 1);
  EXPECT_FALSE(json->find_set("absent"));
  EXPECT_EQ(*asked, (Json::Asked{{"c.json", "a"}, {"c.json", "absent"}, {"c.json: a", "b"}}));
}

TEST(json, changing_a_copy_leaves_the_original) {
  Json a = Json::object();
  a.set("k", 1);
  Json b = a;
  b.set("k", 2);
  EXPECT_EQ(a.find("k")->as_int(), 1);
  EXPECT_EQ(b.find("k")->as_int(), 2);
}

TEST(json, a_real_that_is_a_whole_number_is_an_integer) {
  const auto json = parse_json(R"({"bits": 4.0, "half": 4.5, "vast": 1e30})", "f");
  ASSERT_TRUE(json);
  EXPECT_EQ(json->get_int("bits").value_or(0), 4);
  EXPECT_EQ(json->get_int("half").error().message,
            "f: half: expected an integer, found the number 4.5");
  EXPECT_EQ(json->get_int("vast").error().message,
            "f: vast: expected an integer, found the number 1e+30");
}

}  // namespace
}  // namespace nibble::base
