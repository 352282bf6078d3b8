// What a tokenizer.json may do wrong, and the sentence for it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/json.h"
#include "text/tokenizer.h"

namespace nibble::text {
namespace {

using Ids = std::vector<int32_t>;

struct File {
  std::string vocab = R"({"a":0,"b":1,"ab":2})";
  std::string merges = R"([["a","b"]])";
  std::string model = R"("type":"BPE")";
  std::string rest;
  std::string text() const {
    return fmt::format(R"({{{}"model":{{{},"vocab":{},"merges":{}}}}})", rest, model, vocab,
                       merges);
  }
};

std::string refusal(const std::string& text, const base::Json* config = nullptr) {
  auto t = Tokenizer::from_json(text, "t.json", config);
  return t ? "(accepted)" : t.error().message;
}

Tokenizer build(const File& file) {
  auto t = Tokenizer::from_json(file.text(), "t.json", nullptr);
  if (!t) throw std::runtime_error(t.error().message);
  return *t;
}

TEST(tokenizer_json, merges_may_be_pairs_or_text) {
  File file;
  EXPECT_EQ(*build(file).encode("abb"), (Ids{2, 1}));
  file.merges = R"(["a b"])";
  EXPECT_EQ(*build(file).encode("abb"), (Ids{2, 1}));
}

TEST(tokenizer_json, escapes_in_tokens_are_characters) {
  File file;
  file.vocab = R"({"\u00e9":0,"\ud83d\ude0a":1,"\"\\\n":2})";
  file.merges = "[]";
  const Tokenizer t = build(file);
  EXPECT_EQ(*t.encode("\xc3\xa9\xf0\x9f\x98\x8a"), (Ids{0, 1}));
  EXPECT_EQ(t.token_to_id("\"\\\n"), 2);
  EXPECT_EQ(t.token_text(1), "\xf0\x9f\x98\x8a");
  EXPECT_EQ(t.token_text(3), std::nullopt);
  EXPECT_EQ(t.token_text(-1), std::nullopt);
}

TEST(tokenizer_json, two_tokens_with_one_id_are_refused) {
  File file;
  file.vocab = R"({"a":0,"b":0})";
  EXPECT_EQ(refusal(file.text()),
            "t.json: model.vocab: tokens \"a\" and \"b\" have the same id 0, at byte 43");
}

TEST(tokenizer_json, a_token_that_stands_twice_is_refused) {
  File file;
  file.vocab = R"({"a":0,"a":1})";
  EXPECT_NE(refusal(file.text()).find("token \"a\" stands twice"), std::string::npos);
}

TEST(tokenizer_json, ids_out_of_range_are_refused) {
  File file;
  for (const char* id : {"-1", "16777216", "9223372036854775807"}) {
    file.vocab = fmt::format(R"({{"a":{}}})", id);
    EXPECT_NE(refusal(file.text()).find(fmt::format("token \"a\" has the id {}", id)),
              std::string::npos);
  }
  for (const char* id : {"\"0\"", "99999999999999999999", "1.5", "null", "[0]"}) {
    file.vocab = fmt::format(R"({{"a":{}}})", id);
    EXPECT_EQ(refusal(file.text()).find("(accepted)"), std::string::npos) << id;
  }
}

TEST(tokenizer_json, a_merge_of_what_is_no_token_is_refused) {
  File file;
  file.merges = R"([["a","b"],["b","a"]])";
  EXPECT_EQ(
      refusal(file.text()),
      "t.json: model.merges: merge 1 (\"b\" and \"a\"): \"ba\" is no token of the vocabulary");
  file.merges = R"([["a","x"]])";
  EXPECT_NE(refusal(file.text()).find("\"x\" is no token"), std::string::npos);
}

TEST(tokenizer_json, merges_of_another_shape_are_refused) {
  File file;
  for (const char* merges : {"[\"ab\"]", "[\"a b c\"]", "[[\"a\"]]", "[[\"a\",\"b\",\"c\"]]", "[1]",
                             "{}", "[[\"a\",\"b\"]", "\"a b\""}) {
    file.merges = merges;
    EXPECT_EQ(refusal(file.text()).find("(accepted)"), std::string::npos) << merges;
  }
}

// A merge makes a longer text of two, so merges cannot go in circles; empty tokens can, and end.
TEST(tokenizer_json, merges_in_a_circle_come_to_an_end) {
  File file;
  file.vocab = R"({"a":0,"":1,"aa":2})";
  file.merges = R"([["a","a"],["","a"],["a",""],["aa",""]])";
  EXPECT_EQ(*build(file).encode("aaaa"), (Ids{2, 2}));
  EXPECT_EQ(build(file).encode(std::string(1000, 'a'))->size(), 500u);
}

TEST(tokenizer_json, broken_json_is_refused_with_its_place) {
  for (const char* text :
       {"", "[]", "null", "{", "{\"model\":", "{\"model\":{\"vocab\":{\"a\":0}", "\"x\"",
        "{\"model\":{\"vocab\":{\"a\" 0}}}", "{\"model\":{\"vocab\":{\"\\ud800\":0}}}",
        "{\"model\":{\"vocab\":{\"\xff\":0}}}", "{\"model\":{\"vocab\":{\"a\":0,}}}"}) {
    EXPECT_EQ(refusal(text).find("t.json: "), 0u) << text << "\n" << refusal(text);
  }
  EXPECT_NE(refusal("{\"model\":{\"vocab\":{\"a\":0},\"vocab\":{\"b\":0}}}").find("stands twice"),
            std::string::npos);
}

TEST(tokenizer_json, unknown_parts_are_named) {
  File file;
  file.rest = R"("pre_tokenizer":{"type":"UnicodeScripts"},)";
  EXPECT_EQ(refusal(file.text()),
            "t.json: pre_tokenizer: a pre-tokenizer of type \"UnicodeScripts\" is not supported");
  file.rest = R"("normalizer":{"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"New"}]},)";
  EXPECT_EQ(refusal(file.text()),
            "t.json: normalizer: normalizers[1]: a normalizer of type \"New\" is not supported");
  file.rest = R"("decoder":{"type":"New"},)";
  EXPECT_NE(refusal(file.text()).find("a decoder of type \"New\""), std::string::npos);
  file.rest = R"("post_processor":{"type":"New"},)";
  EXPECT_NE(refusal(file.text()).find("a post-processor of type \"New\""), std::string::npos);
  file = File{.model = R"("type":"New")"};
  EXPECT_EQ(refusal(file.text()), "t.json: a model of type \"New\" is not supported");
}

TEST(tokenizer_json, wrong_types_are_refused) {
  File file;
  for (const char* rest :
       {R"("normalizer":[],)",
        R"("normalizer":{"type":1},)",
        R"("normalizer":{},)",
        R"("normalizer":{"type":"Replace","pattern":"a","content":"b"},)",
        R"("normalizer":{"type":"Replace","pattern":{"Regex":"("},"content":"b"},)",
        R"("normalizer":{"type":"Precompiled","precompiled_charsmap":"!!!!"},)",
        R"("normalizer":{"type":"Precompiled","precompiled_charsmap":"//////8="},)",
        R"("normalizer":{"type":"Sequence","normalizers":{}},)",
        R"("pre_tokenizer":{"type":"Split","pattern":{"String":"a"},"behavior":"New"},)",
        R"("pre_tokenizer":{"type":"Metaspace","replacement":"ab"},)",
        R"("pre_tokenizer":{"type":"Metaspace","replacement":"_","prepend_scheme":"new"},)",
        R"("pre_tokenizer":{"type":"FixedLength","length":0},)",
        R"("pre_tokenizer":{"type":"ByteLevel","add_prefix_space":"yes"},)",
        R"("decoder":{"type":"Strip","content":"","start":1,"stop":0},)",
        R"("decoder":{"type":"Strip","content":" ","start":-1,"stop":0},)",
        R"("post_processor":{"type":"BertProcessing","sep":["x"],"cls":["y",1]},)",
        R"("post_processor":{"type":"TemplateProcessing","single":[]},)",
        R"("post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"x"}}]},)",
        R"("added_tokens":{},)",
        R"("added_tokens":[1],)",
        R"("added_tokens":[{"id":0}],)",
        R"("added_tokens":[{"id":"0","content":"a"}],)"}) {
    file.rest = rest;
    EXPECT_EQ(refusal(file.text()).find("t.json"), 0u) << rest << "\n" << refusal(file.text());
  }
}

TEST(tokenizer_json, deep_sequences_are_refused) {
  std::string inside = R"({"type":"NFC"})";
  for (int i = 0; i < 20; ++i) {
    inside = R"({"type":"Sequence","normalizers":[)" + inside + "]}";
  }
  File file;
  file.rest = "\"normalizer\":" + inside + ",";
  EXPECT_NE(refusal(file.text()).find("at most 16 deep"), std::string::npos);
}

TEST(tokenizer_json, an_added_token_with_another_id_than_its_place_is_refused) {
  File file;
  file.rest = R"("added_tokens":[{"id":7,"content":"<x>"}],)";
  EXPECT_EQ(
      refusal(file.text()),
      "t.json: added_tokens[0]: \"<x>\" has the id 7, but the next free id is 3; which one the "
      "model was trained with cannot be known");
  file.rest = R"("added_tokens":[{"id":3,"content":"<x>"},{"id":2,"content":"ab"}],)";
  EXPECT_EQ(*build(file).encode("<x>ab"), (Ids{3, 2}));
}

TEST(tokenizer_json, an_added_token_longer_than_a_kibibyte_is_refused) {
  File file;
  file.rest = fmt::format(R"("added_tokens":[{{"id":3,"content":"{}"}}],)", std::string(2000, 'x'));
  EXPECT_NE(refusal(file.text()).find("is 2000 bytes long"), std::string::npos);
}

TEST(tokenizer_json, a_character_without_a_token_needs_an_unknown_token) {
  File file;
  EXPECT_EQ(*build(file).encode("aXb"), (Ids{2})) << "left out, as `tokenizers` does";
  file.model = R"("type":"BPE","unk_token":"<unk>")";
  const auto ids = build(file).encode("aXb");
  ASSERT_FALSE(ids.has_value());
  EXPECT_EQ(ids.error().message,
            "t.json: no token for \"X\", and the unknown token \"<unk>\" is not in the vocabulary");
}

TEST(tokenizer_json, text_that_is_not_utf8_is_refused) {
  const auto ids = build(File{}).encode("ab\xff");
  ASSERT_FALSE(ids.has_value());
  EXPECT_EQ(ids.error().message, "the text to tokenize is not UTF-8 at byte 2 (0xff)");
}

TEST(tokenizer_json, a_word_of_a_mebibyte_is_tokenized) {
  EXPECT_EQ(build(File{}).encode(std::string(1 << 20, 'a'))->size(), size_t{1} << 20);
  std::string pairs;
  for (int i = 0; i < 1 << 19; ++i) pairs += "ab";
  EXPECT_EQ(*build(File{}).encode(pairs), Ids(1 << 19, 2));
}

TEST(tokenizer_json, files_without_a_type_are_recognized) {
  EXPECT_EQ(*build(File{.model = R"("dropout":null)"}).encode("ab"), (Ids{2}));
  auto t = Tokenizer::from_json(
      R"({"model":{"unk_id":0,"vocab":[["<unk>",0.0],["a",-1],["ab",-1.5e0],["b",-2.0]]}})",
      "t.json", nullptr);
  ASSERT_TRUE(t.has_value()) << t.error().message;
  EXPECT_EQ(*t->encode("abaXY"), (Ids{2, 1, 0}));
}

TEST(tokenizer_config, roles_become_special_ids) {
  const auto config = base::parse_json(
      R"({"bos_token":"a","eos_token":{"content":"<end>"},"add_bos_token":true})", "c.json");
  auto t = Tokenizer::from_json(File{}.text(), "t.json", &*config);
  ASSERT_TRUE(t.has_value()) << t.error().message;
  EXPECT_EQ(t->special_ids().bos, 0);
  EXPECT_EQ(t->special_ids().eos, 3) << "a token that no vocabulary has gets the next id";
  EXPECT_EQ(t->vocab_size(), 4);
  EXPECT_TRUE(t->is_special(0));
  EXPECT_TRUE(t->prefix_ids().empty()) << "transformers ignores add_bos_token here";
  EXPECT_EQ(*t->encode("b<end>"), (Ids{1, 3}));
}

TEST(tokenizer_config, wrong_types_are_refused) {
  for (const char* text : {R"({"bos_token":1})", R"({"added_tokens_decoder":[]})",
                           R"({"added_tokens_decoder":{"x":{"content":"a"}}})",
                           R"({"added_tokens_decoder":{"5":{"content":"a"}}})",
                           R"({"additional_special_tokens":"x"})"}) {
    const auto config = base::parse_json(text, "tokenizer_config.json");
    EXPECT_EQ(refusal(File{}.text(), &*config).find("tokenizer_config.json"), 0u)
        << text << "\n"
        << refusal(File{}.text(), &*config);
  }
}

struct OldFiles {
  std::string vocab =
      R"({"a":0,"b":1,"ab":2,"\u0120":3,"\u0120a":4,"<|endoftext|>":5,"</s>":6,"1":7})";
  std::string merges = "#version: 0.2\na b\r\n\u0120 a\n\n";
  std::string config = R"({"tokenizer_class":"GPT2Tokenizer"})";
  Result<Tokenizer> read() const {
    const auto json = base::parse_json(config, "tokenizer_config.json");
    return Tokenizer::from_vocab_and_merges(vocab, merges, &*json);
  }
  Ids encode(std::string_view text) const {
    auto t = read();
    if (!t) throw std::runtime_error(t.error().message);
    return *t->encode(text);
  }
  std::string refusal() const {
    auto t = read();
    return t ? "(accepted)" : t.error().message;
  }
};

TEST(vocab_and_merges, the_config_says_what_stands_around_a_text) {
  OldFiles files;
  EXPECT_EQ(files.encode("ab a<|endoftext|>"), (Ids{2, 4, 5}));
  EXPECT_EQ(files.read()->special_ids().bos, 5);
  files.config = R"({"tokenizer_class":"GPT2Tokenizer","add_prefix_space":true,
                     "add_bos_token":true,"add_eos_token":true,"bos_token":{"content":"</s>"}})";
  EXPECT_EQ(files.encode("a1"), (Ids{6, 4, 7, 5}));
  files.config = R"({"tokenizer_class":"Qwen2TokenizerFast"})";
  EXPECT_EQ(files.read()->special_ids().bos, std::nullopt);
  EXPECT_EQ(files.read()->special_ids().eos, 5);
}

TEST(vocab_and_merges, what_is_wrong_is_said_by_file) {
  const std::string behind =
      ", so that it is not known how words are cut before vocab.json and merges.txt apply (known "
      "are GPT2Tokenizer, CodeGenTokenizer, Qwen2Tokenizer); a tokenizer.json says it";
  EXPECT_EQ((OldFiles{.config = "{}"}).refusal(),
            "tokenizer_config.json: tokenizer_class is missing" + behind);
  EXPECT_EQ((OldFiles{.config = R"({"tokenizer_class":"BertTokenizer"})"}).refusal(),
            "tokenizer_config.json: tokenizer_class is \"BertTokenizer\"" + behind);
  EXPECT_EQ((OldFiles{.merges = "a b\nab\n"}).refusal(),
            "merges.txt: line 2: expected two parts with a space between, found \"ab\"");
  EXPECT_EQ((OldFiles{.merges = "a b c\n"}).refusal(),
            "merges.txt: line 1: expected two parts with a space between, found \"a b c\"");
  EXPECT_EQ((OldFiles{.merges = "b a"}).refusal(),
            "merges.txt: merge 0 (\"b\" and \"a\"): \"ba\" is no token of the vocabulary");
  EXPECT_TRUE((OldFiles{.vocab = "[1]"}).refusal().starts_with("vocab.json: "));
  EXPECT_TRUE((OldFiles{.vocab = R"({"a":0,"b":0})"}).refusal().starts_with("vocab.json: "));
  EXPECT_TRUE((OldFiles{.vocab = R"({"a":0} x)"}).refusal().starts_with("vocab.json: "));
}

}  // namespace
}  // namespace nibble::text
