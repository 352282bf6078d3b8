#include "text/chat_template.h"

#include <gtest/gtest.h>

namespace nibble::text {
namespace {

using base::Json;

Json json(std::string_view text) {
  auto parsed = base::parse_json(text, "test");
  if (!parsed) ADD_FAILURE() << parsed.error().message;
  return parsed ? *parsed : Json();
}

Result<std::string> render(std::string_view source, std::string_view messages,
                           const ChatVariables& variables = {}) {
  NIBBLE_ASSIGN(const ChatTemplate chat,
                ChatTemplate::parse(source, "tokenizer_config.json: chat_template"));
  return chat.render(json(messages), nullptr, variables);
}

std::string text_of(const Result<std::string>& result) {
  return result ? *result : "error: " + result.error().message;
}

constexpr const char* kHello = R"([{"role": "user", "content": "Hello"}])";

TEST(chat_template, chatml_is_what_it_is_known_to_be) {
  ChatVariables variables;
  variables.add_generation_prompt = true;
  EXPECT_EQ(text_of(render(chatml_template(), kHello, variables)),
            "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(text_of(render(chatml_template(), kHello)), "<|im_start|>user\nHello<|im_end|>\n");
}

TEST(chat_template, one_parsed_template_renders_many_times) {
  const auto chat = ChatTemplate::parse("{% set x = messages|length %}{{ x }}", "t");
  ASSERT_TRUE(chat);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(text_of(chat->render(json(kHello), nullptr, {})), "1");
}

TEST(chat_template, what_is_not_given_is_undefined_and_tools_are_none) {
  EXPECT_EQ(text_of(render("{{ bos_token is defined }} {{ tools is none }} {{ documents is none }} "
                           "{{ add_generation_prompt }} {{ enable_thinking is defined }}",
                           kHello)),
            "False True True False False");
}

TEST(chat_template, extra_variables_win_over_the_others) {
  ChatVariables variables;
  variables.bos_token = "<s>";
  variables.extra =
      json(R"({"bos_token": "<b>", "enable_thinking": false, "n": 1.0, "documents": []})");
  EXPECT_EQ(text_of(render("{{ bos_token }} {{ enable_thinking }} {{ n }} {{ documents }}", kHello,
                           variables)),
            "<b> False 1.0 []");
}

TEST(chat_template, null_members_of_a_message_are_left_out) {
  EXPECT_EQ(
      text_of(render("{{ messages }} {{ messages[0].content is defined }}",
                     R"([{"role": "assistant", "content": null, "tool_calls": [{"id": null}]}])")),
      "[{'role': 'assistant', 'tool_calls': [{'id': None}]}] False");
}

TEST(chat_template, reasoning_is_seen_under_both_names) {
  EXPECT_EQ(text_of(render("{{ messages[0] | tojson }}",
                           R"([{"role": "assistant", "reasoning": "hm", "content": "4"}])")),
            R"({"thinking": "hm", "role": "assistant", "reasoning": "hm", "content": "4", )"
            R"("reasoning_content": "hm"})");
  EXPECT_EQ(text_of(render("{{ messages[0] | tojson }}",
                           R"([{"role": "a", "reasoning_content": "r", "thinking": "t"}])")),
            R"({"thinking": "t", "role": "a", "reasoning_content": "r"})");
}

TEST(chat_template, the_words_of_a_template_that_refuses_reach_the_caller) {
  const auto result = render("\n{{ raise_exception('roles must alternate') }}", kHello);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, ErrorCode::kUsage);
  EXPECT_EQ(result.error().message,
            "tokenizer_config.json: chat_template, line 2: the chat template does not fit this "
            "conversation: the template says: roles must alternate");
}

TEST(chat_template, an_error_in_a_macro_names_the_line_inside_it) {
  const auto result =
      render("{% macro f(m) %}\n\n{{ m.x.y }}\n{% endmacro %}\n\n{{ f(messages[0]) }}", kHello);
  ASSERT_FALSE(result);
  EXPECT_NE(result.error().message.find("line 3: "), std::string::npos) << result.error().message;
  EXPECT_NE(result.error().message.find("'dict object' has no attribute 'x'"), std::string::npos);
}

TEST(chat_template, an_error_after_a_macro_names_the_line_of_the_call) {
  const auto result = render("{% macro f() %}\n\n\na\n{% endmacro %}\n{{ f() + 1 }}\n", kHello);
  ASSERT_FALSE(result);
  EXPECT_NE(result.error().message.find("line 6: "), std::string::npos) << result.error().message;
}

TEST(chat_template, an_unsupported_construct_is_named_with_its_line) {
  const auto check = [](std::string_view source, std::string_view words) {
    const auto result = render(source, kHello);
    ASSERT_FALSE(result) << source;
    EXPECT_EQ(result.error().code, ErrorCode::kUnsupported) << result.error().message;
    EXPECT_NE(result.error().message.find(words), std::string::npos) << result.error().message;
  };
  check("\n{% include 'x' %}",
        "line 2: the chat template uses what nibble cannot do: the tag 'include'");
  check("{% block a %}{% endblock %}", "the tag 'block'");
  check("{{ 'x' | pprint }}", "the filter 'pprint'");
  check("{{ 'x'.encode() }}", "the attribute 'encode' of 'str'");
  check("{{ (1).bit_length() }}", "the attribute 'bit_length' of 'int'");
  check("{{ lipsum() }}", "the global 'lipsum'");
  check("{{ strftime_now('%Y') }}", "strftime_now, because the caller gave no time");
  check("{{ messages[0].items }}", "printing the function 'items'");
  check("{{ '\\N{DASH}' }}", "the string escape \\N");
}

TEST(chat_template, messages_must_be_a_list_of_objects) {
  for (const char* messages : {"{}", "[]", "[1]", "null", "\"hello\""}) {
    const auto result = render("x", messages);
    ASSERT_FALSE(result) << messages;
    EXPECT_EQ(result.error().code, ErrorCode::kUsage);
  }
}

// -- the choice of a template --

std::string chosen(const ChatTemplateSources& sources, bool has_tools = false) {
  const auto result = choose_chat_template(sources, has_tools);
  return result ? result->text + " from " + result->where : "error: " + result.error().message;
}

TEST(chat_template_choice, a_checkpoint_without_one_is_told_what_to_do) {
  const auto result = choose_chat_template({}, false);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, ErrorCode::kNotFound);
  EXPECT_NE(result.error().message.find("put a chat_template.jinja into the folder"),
            std::string::npos);
}

TEST(chat_template_choice, files_win_over_the_config_and_that_over_gguf) {
  const Json config = json(R"({"chat_template": "T"})");
  const Json processor = json(R"({"chat_template": "P"})");
  ChatTemplateSources sources;
  sources.gguf = "G";
  EXPECT_EQ(chosen(sources), "G from tokenizer.chat_template");
  sources.chat_template_json = &processor;
  EXPECT_EQ(chosen(sources), "P from chat_template.json: chat_template");
  sources.tokenizer_config = &config;
  EXPECT_EQ(chosen(sources), "T from tokenizer_config.json: chat_template");
  sources.chat_template_jinja = "J";
  EXPECT_EQ(chosen(sources), "J from chat_template.jinja");
}

TEST(chat_template_choice, tool_use_is_taken_only_with_tools) {
  const Json config = json(R"({"chat_template": [{"name": "default", "template": "D"},
                                                 {"name": "tool_use", "template": "U"}]})");
  ChatTemplateSources sources;
  sources.tokenizer_config = &config;
  EXPECT_EQ(chosen(sources), "D from tokenizer_config.json: chat_template: default");
  EXPECT_EQ(chosen(sources, true), "U from tokenizer_config.json: chat_template: tool_use");
  sources.requested = "tool_use";
  EXPECT_EQ(chosen(sources), "U from tokenizer_config.json: chat_template: tool_use");
}

TEST(chat_template_choice, additional_files_replace_the_config_altogether) {
  const Json config = json(R"({"chat_template": "T"})");
  ChatTemplateSources sources;
  sources.tokenizer_config = &config;
  sources.additional = {{"rag", "R"}};
  EXPECT_EQ(chosen(sources),
            "error: this checkpoint has several chat templates and none is called \"default\"; ask "
            "for one of rag by name");
  sources.chat_template_jinja = "J";
  EXPECT_EQ(chosen(sources), "J from chat_template.jinja");
  sources.requested = "rag";
  EXPECT_EQ(chosen(sources), "R from additional_chat_templates/rag.jinja");
}

TEST(chat_template_choice, a_request_is_a_name_a_template_or_an_error) {
  ChatTemplateSources sources;
  sources.gguf = "G";
  sources.requested = "chatml";
  EXPECT_EQ(chosen(sources), std::string(chatml_template()) + " from chatml");
  sources.requested = "{{ 1 }}";
  EXPECT_EQ(chosen(sources), "{{ 1 }} from the given chat template");
  sources.requested = "nope";
  EXPECT_EQ(chosen(sources),
            "error: there is no chat template named \"nope\"; this checkpoint has default, and "
            "\"chatml\" is built in");
}

TEST(chat_template_choice, a_malformed_source_is_an_error) {
  for (const char* text : {R"({"chat_template": 5})", R"({"chat_template": [5]})",
                           R"({"chat_template": [{"name": "a"}]})", R"({"chat_template": {}})"}) {
    const Json config = json(text);
    ChatTemplateSources sources;
    sources.tokenizer_config = &config;
    const auto result = choose_chat_template(sources, false);
    ASSERT_FALSE(result) << text;
    EXPECT_EQ(result.error().code, ErrorCode::kCorrupt);
  }
}

}  // namespace
}  // namespace nibble::text
