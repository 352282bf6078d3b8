#include "quant/matcher.h"

#include <gtest/gtest.h>

#include <chrono>

namespace nibble::quant {
namespace {

NameMatcher rules(std::vector<std::string> list) {
  auto compiled = NameMatcher::compile(std::move(list), "ignored_layers");
  EXPECT_TRUE(compiled) << (compiled ? "" : compiled.error().message);
  return compiled ? *compiled : NameMatcher();
}

bool hits(const std::string& rule, const std::string& module) {
  const auto hit = rules({rule}).match(module);
  EXPECT_TRUE(hit);
  return hit && hit->has_value();
}

constexpr const char* kGate = "model.layers.5.mlp.gate";

TEST(matcher, a_name_covers_itself_and_what_is_below_it) {
  EXPECT_TRUE(hits("lm_head", "lm_head"));
  EXPECT_TRUE(hits("model.layers.0.self_attn", "model.layers.0.self_attn.q_proj"));
  EXPECT_TRUE(hits("visual", "visual.blocks.3.attn.qkv"));
  EXPECT_FALSE(hits("model.layers.1", "model.layers.10.mlp.up_proj"));
}

TEST(matcher, segments_are_compared_whole) {
  EXPECT_TRUE(hits("gate", kGate));
  EXPECT_TRUE(hits("mlp.gate", kGate));
  EXPECT_TRUE(hits("5.mlp.gate", kGate));
  EXPECT_FALSE(hits("gate", "model.layers.5.mlp.gate_proj"));
  EXPECT_FALSE(hits("lp.gate", kGate));
  EXPECT_FALSE(hits("lm_head", "model.foo.lm_head2"));
}

TEST(matcher, wrappers_in_front_and_behind_do_not_matter) {
  for (const char* rule : {"model.layers.5.mlp.gate", "model.language_model.layers.5.mlp.gate",
                           "language_model.model.layers.5.mlp.gate", "layers.5.mlp.gate",
                           "model.layers.5.mlp.gate.linear", "model.layers.5.mlp.gate.weight",
                           "model.layers.5.mlp.gate."}) {
    EXPECT_TRUE(hits(rule, kGate)) << rule;
    EXPECT_TRUE(hits(rule, "model.language_model.layers.5.mlp.gate")) << rule;
  }
  EXPECT_TRUE(hits("lm_head", "language_model.lm_head"));
}

TEST(matcher, a_rooted_rule_does_not_reach_into_another_tower) {
  EXPECT_FALSE(hits("model.layers.5.mlp", "vision_model.layers.5.mlp.gate"));
  EXPECT_TRUE(hits("vision_model.layers.5.mlp", "vision_model.layers.5.mlp.gate"));
  EXPECT_FALSE(hits("vision_model.layers.5.mlp", kGate));
}

TEST(matcher, globs_cover_the_whole_path_or_a_whole_suffix) {
  EXPECT_TRUE(hits("model.layers.*.mlp.gate", kGate));
  EXPECT_TRUE(hits("*.mlp.gate", kGate));
  EXPECT_TRUE(hits("mlp.gat?", kGate));
  EXPECT_TRUE(hits("model.layers.5.*", kGate));
  EXPECT_TRUE(hits("lm_head*", "lm_head"));
  EXPECT_FALSE(hits("lp.gat?", kGate));
  EXPECT_FALSE(hits("*.mlp.gate", "model.layers.5.mlp.gate_proj"));
  EXPECT_FALSE(hits("model.layers.?.mlp.gate", "model.layers.15.mlp.gate"));
}

TEST(matcher, regular_expressions_match_from_the_start_only) {
  EXPECT_TRUE(hits("re:.*mlp", kGate));
  EXPECT_TRUE(hits("re:model\\.layers\\.[0-9]+\\.mlp\\.gate$", kGate));
  EXPECT_FALSE(hits("re:layers", kGate));
  EXPECT_TRUE(hits("re:.*\\.(q|k|v)_proj$", "model.layers.0.self_attn.k_proj"));
}

TEST(matcher, a_regex_meets_the_text_part_of_a_larger_model_wherever_it_is_placed) {
  const auto matcher =
      NameMatcher::compile({R"(re:model\.language_model\.layers\..*q_proj$)"}, "l");
  ASSERT_TRUE(matcher);
  const auto matches = [&](const char* module) { return matcher->match(module)->has_value(); };
  EXPECT_TRUE(matches("model.language_model.layers.0.self_attn.q_proj"));
  EXPECT_TRUE(matches("language_model.model.layers.0.self_attn.q_proj"));
  EXPECT_TRUE(matches("language_model.layers.0.self_attn.q_proj"));
  EXPECT_FALSE(matches("language_model.model.layers.0.self_attn.k_proj"));
  EXPECT_FALSE(matches("model.layers.0.self_attn.q_proj"));
  EXPECT_FALSE(matches("vision_tower.layers.0.self_attn.q_proj"));
  const auto alone = NameMatcher::compile({R"(re:^model\.layers\..*q_proj$)"}, "l");
  ASSERT_TRUE(alone);
  EXPECT_TRUE(*alone->match("model.language_model.layers.0.self_attn.q_proj"));
  EXPECT_FALSE(*alone->match("model.vision_tower.layers.0.self_attn.q_proj"));
  const auto head = NameMatcher::compile({"re:lm_head"}, "l");
  ASSERT_TRUE(head);
  EXPECT_TRUE(*head->match("language_model.lm_head"));
  EXPECT_FALSE(*head->match("vision_tower.lm_head"));
}

TEST(matcher, a_rule_behind_another_and_one_that_stands_twice_are_no_idle_rules) {
  const NameMatcher list = rules({"mlp", "re:.*gate$", "*.gate", "mlp", "mlp.gate", "visual",
                                  "model.layers.5.norm", "visual"});
  EXPECT_TRUE(list.match(kGate)->has_value());
  EXPECT_EQ(list.rules_that_matched_nothing(),
            (std::vector<std::string>{"re:.*gate$", "*.gate", "mlp.gate", "visual",
                                      "model.layers.5.norm"}));
  list.note_all({kGate, "model.layers.5.norm"});
  EXPECT_EQ(list.rules_that_matched_nothing(), (std::vector<std::string>{"visual"}));
}

TEST(matcher, noting_all_rules_leaves_out_expressions_that_are_too_many) {
  std::vector<std::string> many(300, "re:(a|a?)+$");
  for (size_t i = 0; i < many.size(); ++i) many[i] += std::string(i, '$');
  const NameMatcher list = rules(many);
  const std::vector<std::string_view> names(1000, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab");
  const auto begin = std::chrono::steady_clock::now();
  list.note_all(names);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
  EXPECT_EQ(list.rules_that_matched_nothing().size(), many.size());
}

TEST(matcher, a_fused_name_covers_its_parts) {
  EXPECT_TRUE(hits("model.layers.0.self_attn.qkv_proj", "model.layers.0.self_attn.v_proj"));
  EXPECT_TRUE(hits("*.gate_up_proj", "model.layers.0.mlp.up_proj"));
  EXPECT_TRUE(hits("qkv_proj", "model.layers.0.self_attn.qkv_proj"));
  EXPECT_FALSE(hits("qkv_proj", "model.layers.0.self_attn.o_proj"));
  EXPECT_FALSE(hits("q_proj", "model.layers.0.self_attn.qkv_proj"));
}

TEST(matcher, the_first_rule_of_the_list_wins_whatever_its_kind) {
  const NameMatcher list = rules({"re:.*never", "*.mlp.gate", "mlp", "re:.*gate", "mlp.gate"});
  EXPECT_EQ(**list.match(kGate), 1u);
  EXPECT_EQ(**list.match("model.layers.1.mlp.up_proj"), 2u);
  EXPECT_EQ(list.rules_that_matched_nothing(),
            (std::vector<std::string>{"re:.*never", "re:.*gate", "mlp.gate"}));
}

TEST(matcher, an_empty_list_matches_nothing) {
  EXPECT_FALSE(NameMatcher().match(kGate)->has_value());
  EXPECT_FALSE(rules({""}).match(kGate)->has_value());
}

TEST(matcher, a_bad_regular_expression_is_named) {
  const auto bad = NameMatcher::compile({"lm_head", "re:("}, "config.json: ignore");
  ASSERT_FALSE(bad);
  EXPECT_EQ(
      bad.error().message,
      "config.json: ignore: \"(\" is not a regular expression: missing closing parenthesis at "
      "character 1");
  const auto longer = NameMatcher::compile({"re:" + std::string(5000, 'a')}, "ignore");
  ASSERT_FALSE(longer);
  EXPECT_EQ(longer.error().message, "ignore: \"" + std::string(80, 'a') +
                                        "\" is not a regular expression: longer than 4096 "
                                        "characters");
}

TEST(matcher, a_regular_expression_that_explodes_is_refused) {
  const NameMatcher list = rules({"re:(a|a?)+$"});
  const auto hit = list.match("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab");
  ASSERT_FALSE(hit);
  EXPECT_EQ(
      hit.error().message,
      "ignored_layers: the rule \"re:(a|a?)+$\" takes more than 20000 steps on the name "
      "\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab\"; write it without nested repeats");
}

TEST(matcher, lists_of_thousands_of_names_stay_cheap) {
  std::vector<std::string> names;
  for (int i = 0; i < 5000; ++i) {
    names.push_back("model.layers." + std::to_string(i) + ".self_attn.q_proj");
  }
  const NameMatcher list = rules(names);
  const auto begin = std::chrono::steady_clock::now();
  for (const std::string& name : names) EXPECT_TRUE(list.match(name)->has_value());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
  EXPECT_TRUE(list.rules_that_matched_nothing().empty());
}

}  // namespace
}  // namespace nibble::quant
