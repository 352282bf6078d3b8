#include "text/regex.h"

#include <gtest/gtest.h>

#include "text/unicode.h"

namespace nibble::text {
namespace {

std::vector<std::string> matches(std::string_view pattern, const std::string& text) {
  auto regex = Regex::compile(pattern, "test.json");
  if (!regex) return {"(refused: " + regex.error().message + ")"};
  RegexMatcher matcher(*regex, text.size());
  std::vector<Span> spans;
  if (auto done = matcher.find_all(text, spans); !done) return {done.error().message};
  std::vector<std::string> out;
  for (const Span& s : spans) out.push_back(text.substr(s.begin, s.end - s.begin));
  return out;
}

using Strings = std::vector<std::string>;

std::string refusal(std::string_view pattern) {
  auto regex = Regex::compile(pattern, "test.json");
  return regex ? "(accepted)" : regex.error().message;
}

TEST(regex, dollar_and_caret_stand_at_every_line) {
  EXPECT_EQ(matches("^a$", "a\nba\na"), (Strings{"a", "a"}));
}

TEST(regex, a_possessive_interval_is_a_repeated_one) {
  EXPECT_EQ(matches("a{1,2}+b", "aaaaab"), (Strings{"aaaaab"}));
  EXPECT_EQ(matches("a++b", "aaab"), (Strings{"aaab"}));
}

TEST(regex, an_option_alone_holds_to_the_end_of_its_group) {
  EXPECT_EQ(matches("x(?i)b|c", "xB xC c"), (Strings{"xB", "xC"}));
}

TEST(regex, sets_nest_and_intersect) {
  EXPECT_EQ(matches("[a-z&&[^aeiou]]+", "banana"), (Strings{"b", "n", "n"}));
  EXPECT_EQ(matches("[a[0-9]]+", "ab12"), (Strings{"a", "12"}));
}

TEST(regex, a_script_is_not_its_extensions) {
  // U+3005 is Han; U+3001 is used with Han but belongs to no script.
  EXPECT_EQ(matches("\\p{Han}+", "\xe6\xbc\xa2\xe3\x80\x85\xe3\x80\x81"),
            (Strings{"\xe6\xbc\xa2\xe3\x80\x85"}));
}

TEST(regex, empty_matches_move_on) {
  EXPECT_EQ(matches("x*", "axb"), (Strings{"", "x", ""}));
  EXPECT_EQ(matches("(?=\\d)", "12").size(), 2u);
}

TEST(regex, what_does_not_compile_is_refused_with_its_place) {
  EXPECT_EQ(refusal("a(b"),
            "test.json: regular expression \"a(b\": byte 3 of the pattern: a group that does not "
            "end");
  EXPECT_NE(refusal("a)").find("a closing parenthesis without an opening one"), std::string::npos);
  EXPECT_NE(refusal("[a").find("a bracket that does not end"), std::string::npos);
  EXPECT_NE(refusal("*a").find("a quantifier with nothing before it"), std::string::npos);
  EXPECT_NE(refusal("\\p{Nonsense}").find("does not compile"), std::string::npos);
  EXPECT_NE(refusal("\\p{zz}").find("is not a known property"), std::string::npos);
  EXPECT_NE(refusal("\\X").find("\\X is not supported"), std::string::npos);
  EXPECT_NE(refusal("(?x)a b").find("is not supported"), std::string::npos);
  EXPECT_NE(refusal("a\xff").find("is not UTF-8"), std::string::npos);
  EXPECT_NE(refusal(std::string(300, '(')).find("nested deeper"), std::string::npos);
  EXPECT_NE(refusal(std::string(70000, 'a')).find("the pattern is 70000 bytes long"),
            std::string::npos);
}

TEST(regex, backtracking_without_end_is_an_error) {
  const auto out = matches("(a|aa)+$|.", std::string(60, 'a') + "c");
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0],
            "test.json: regular expression \"(a|aa)+$|.\" on this text: match limit exceeded");
}

TEST(regex, a_long_run_of_one_group_is_no_error) {
  EXPECT_EQ(matches("(?:(?=[a-z])[^q])+", std::string(1 << 20, 'a')).size(), 1u);
}

TEST(unicode, ill_formed_text_is_found_where_it_begins) {
  EXPECT_EQ(find_invalid_utf8("abc"), std::nullopt);
  EXPECT_EQ(find_invalid_utf8("ab\xc3\xa9\xff"), 4u);
  EXPECT_EQ(find_invalid_utf8("\xc0\x80"), 0u);          // overlong
  EXPECT_EQ(find_invalid_utf8("\xed\xa0\x80"), 0u);      // a surrogate
  EXPECT_EQ(find_invalid_utf8("\xf4\x90\x80\x80"), 0u);  // above U+10FFFF
  EXPECT_EQ(find_invalid_utf8("12345678\xe2\x82"), 8u);
}

TEST(unicode, each_maximal_ill_formed_part_is_one_replacement) {
  EXPECT_EQ(lossy_utf8("a\xf0\x9f\x98z"), "a\xef\xbf\xbdz");
  EXPECT_EQ(lossy_utf8("\xe2\x28\xa1"), "\xef\xbf\xbd(\xef\xbf\xbd");
  EXPECT_EQ(lossy_utf8("\xff\xff"), "\xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(incomplete_tail("ab\xf0\x9f\x98"), 3u);
  EXPECT_EQ(incomplete_tail("ab\xf0\x9f\x98\x8a"), 0u);
  EXPECT_EQ(incomplete_tail("\xe2\x28"), 0u);
}

}  // namespace
}  // namespace nibble::text
