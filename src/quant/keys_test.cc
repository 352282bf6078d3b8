#include "quant/keys.h"

#include "quant/test_support.h"

namespace nibble::quant {
namespace {

base::Json of(std::string_view value) {
  return json("{\"key\": " + std::string(value) + "}", "config.json");
}

TEST(keys, a_whole_number_is_read_in_every_spelling) {
  for (const char* spelling : {"4", "4.0", "\"4\"", "\" 4\"", "\"4.0\""}) {
    const auto read = int_key(of(spelling), "key");
    ASSERT_TRUE(read) << message(read);
    EXPECT_EQ(*read, 4);
  }
  EXPECT_EQ(*int_key(of("\"-1\""), "key"), -1);
  EXPECT_EQ(*int_key_or(of("null"), "key", 7), 7);
}

TEST(keys, what_is_no_whole_number_is_refused_with_what_was_found) {
  const auto refusal = [](const char* value) { return message(int_key_or(of(value), "key", 7)); };
  const std::string expected = "config.json: key: expected an integer, found ";
  EXPECT_EQ(refusal("\"four\""), expected + "a string (\"four\")");
  EXPECT_EQ(refusal("\"\""), expected + "a string (\"\")");
  EXPECT_EQ(refusal("\"4 bits\""), expected + "a string (\"4 bits\")");
  EXPECT_EQ(refusal("4.5"), expected + "the number 4.5");
  EXPECT_EQ(refusal("1e300"), expected + "the number 1e+300");
  EXPECT_EQ(refusal("true"), expected + "true");
  EXPECT_EQ(refusal("[4]"), expected + "a list of 1");
  EXPECT_EQ(message(int_key(of("null"), "key")), "config.json: key \"key\" is missing");
}

TEST(keys, a_number_is_finite) {
  EXPECT_EQ(*double_key(of("\"6.0\""), "key"), 6);
  EXPECT_EQ(*double_key(of("6"), "key"), 6);
  EXPECT_EQ(*double_key_or(of("null"), "key", 0.5), 0.5);
  EXPECT_EQ(message(double_key(of("null"), "key")), "config.json: key \"key\" is missing");
  for (const char* text : {"\"nan\"", "\"inf\"", "\"six\"", "false"}) {
    EXPECT_EQ(message(double_key(of(text), "key")),
              "config.json: key: expected a number, found " + of(text).find("key")->describe());
  }
}

TEST(keys, true_and_false_are_read_in_every_spelling) {
  for (const char* spelling : {"true", "\"true\"", "\"True\"", "\" TRUE \"", "1", "\"1\""}) {
    const auto read = bool_key_or(of(spelling), "key", false);
    ASSERT_TRUE(read) << message(read);
    EXPECT_TRUE(*read) << spelling;
  }
  for (const char* spelling : {"false", "\"false\"", "\"False\"", "0", "\"0\""}) {
    const auto read = bool_key_or(of(spelling), "key", true);
    ASSERT_TRUE(read) << message(read);
    EXPECT_FALSE(*read) << spelling;
  }
  EXPECT_TRUE(*bool_key_or(of("null"), "key", true));
}

TEST(keys, what_is_neither_true_nor_false_is_refused_with_what_was_found) {
  for (const char* text : {"\"yes\"", "\"none\"", "\"\"", "2", "-1", "0.5", "[]", "{}"}) {
    EXPECT_EQ(
        message(bool_key_or(of(text), "key", true)),
        "config.json: key: expected true or false, found " + of(text).find("key")->describe());
  }
}

TEST(keys, a_word_may_be_true_or_false_as_well) {
  const auto read = [](const char* text) {
    return message(word_key(of(text), "key", {"false", "true", "local"}));
  };
  EXPECT_EQ(*word_key(of("\"Local\""), "key", {"false", "true", "local"}), "local");
  EXPECT_EQ(*word_key(of("\"True\""), "key", {"false", "true", "local"}), "true");
  EXPECT_EQ(*word_key(of("true"), "key", {"false", "true", "local"}), "true");
  EXPECT_EQ(*word_key(of("null"), "key", {"false", "true", "local"}), "false");
  EXPECT_EQ(read("\"group\""), "config.json: key is \"group\"; known are: false, true, local");
}

TEST(keys, the_sides_of_a_block_are_a_list_or_one_word) {
  const auto expected = std::pair<int64_t, int64_t>(128, 64);
  for (const char* spelling : {"[128, 64]", "[\"128\", 64.0]", "\"128x64\"", "\"128 x 64\""}) {
    const auto read = pair_key(of(spelling), "key");
    ASSERT_TRUE(read) << message(read);
    EXPECT_EQ(*read, expected) << spelling;
  }
  for (const char* text : {"[128]", "[0,64]", "\"128\"", "\"\"", "128", "[128,64,1]", "\"axb\""}) {
    EXPECT_EQ(message(pair_key(of(text), "key")),
              "config.json: key: expected two positive integers, found " + std::string(text));
  }
}

TEST(keys, two_spellings_of_one_value_are_the_same) {
  for (const auto& [a, b] : {std::pair<const char*, const char*>{"4", "\"4\""},
                             {"4", "4.0"},
                             {"true", "\"True\""},
                             {"false", "0"},
                             {"\"gptq\"", "\"gptq\""},
                             {"null", "null"}}) {
    EXPECT_TRUE(same_value(*of(a).find("key"), *of(b).find("key"))) << a << " " << b;
  }
  for (const auto& [a, b] : {std::pair<const char*, const char*>{"4", "\"8\""},
                             {"true", "\"false\""},
                             {"null", "0"},
                             {"\"gptq\"", "\"awq\""}}) {
    EXPECT_FALSE(same_value(*of(a).find("key"), *of(b).find("key"))) << a << " " << b;
  }
}

TEST(keys, names_are_a_list_or_lists_in_a_list_or_one_text) {
  const std::vector<std::string> expected = {"a", "b.c"};
  for (const char* spelling : {R"(["a", "b.c"])", R"([["a"], ["b.c"]])", R"("a, b.c,")"}) {
    const auto read = names_or_text_key(of(spelling), "key");
    ASSERT_TRUE(read) << message(read);
    EXPECT_EQ(*read, expected) << spelling;
  }
  EXPECT_EQ(message(names_key(of("\"a\""), "key")),
            "config.json: key: expected a list of names, found a string (\"a\")");
  EXPECT_EQ(message(names_or_text_key(of("[4]"), "key")),
            "config.json: key: expected a list of names, found the integer 4");
}

TEST(keys, an_object_of_objects_holds_nothing_else) {
  EXPECT_EQ(objects_key(of("{\"a\": {}}"), "key")->size(), 1u);
  EXPECT_TRUE(objects_key(of("null"), "key")->empty());
  EXPECT_EQ(message(objects_key(of("[]"), "key")),
            "config.json: key: expected an object, found a list of 0");
  EXPECT_EQ(message(objects_key(of("{\"a\": 4}"), "key")),
            "config.json: key: a: expected an object, found the integer 4");
}

}  // namespace
}  // namespace nibble::quant
