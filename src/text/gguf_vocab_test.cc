#include <gtest/gtest.h>

#include "text/byte_level.h"
#include "text/gguf_pre.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace nibble::text {
namespace {

using Ids = std::vector<int32_t>;

// The 256 byte tokens, then "Ġ" + "t" ... as `merges` say, then the control token <|im_end|>.
GgufVocab byte_vocab(std::vector<std::string> merges, std::string pre = "smollm") {
  GgufVocab v;
  v.model = "gpt2";
  v.pre = std::move(pre);
  for (int b = 0; b < 256; ++b) {
    std::string c;
    append_utf8(c, byte_to_char(static_cast<unsigned char>(b)));
    v.tokens.push_back(c);
  }
  for (const std::string& merge : merges) {
    std::string both = merge;
    both.erase(both.find(' ', 1), 1);
    v.tokens.push_back(both);
  }
  v.types.assign(v.tokens.size(), 1);
  v.tokens.push_back("<|im_end|>");
  v.types.push_back(3);
  v.eos = static_cast<int32_t>(v.tokens.size()) - 1;
  v.add_bos = false;
  v.merges = std::move(merges);
  return v;
}

Tokenizer build(GgufVocab v) {
  auto t = Tokenizer::from_gguf(std::move(v), "test.gguf");
  if (!t) throw std::runtime_error(t.error().message);
  return *t;
}

std::string refusal(GgufVocab v) {
  auto t = Tokenizer::from_gguf(std::move(v), "test.gguf");
  return t ? "(accepted)" : t.error().message;
}

TEST(gguf_vocab, lower_ranks_merge_first) {
  const Tokenizer t = build(byte_vocab({"a b", "b c", "ab c"}));
  EXPECT_EQ(*t.encode("abc"), (Ids{258}));
  EXPECT_EQ(*t.encode("bc"), (Ids{257}));
  EXPECT_EQ(*t.encode("abab"), (Ids{256, 256}));
}

TEST(gguf_vocab, a_byte_level_vocabulary_takes_no_space_in_front) {
  GgufVocab v = byte_vocab({"a b"}, "llama-bpe");
  v.add_space_prefix = true;
  EXPECT_EQ(*build(std::move(v)).encode("ab,ab"), (Ids{256, ',', 256}));
}

TEST(gguf_vocab, smollm_keeps_digits_apart) {
  const Tokenizer t = build(byte_vocab({"1 2"}));
  EXPECT_EQ(*t.encode("12"), (Ids{'1', '2'}));
  EXPECT_EQ(*build(byte_vocab({"1 2"}, "gpt-2")).encode("12"), (Ids{256}));
}

TEST(gguf_vocab, control_tokens_are_parsed_only_where_asked) {
  const Tokenizer t = build(byte_vocab({}));
  EXPECT_EQ(*t.encode("a<|im_end|>"), (Ids{'a', 256}));
  EXPECT_EQ(t.encode("<|im_end|>", {.parse_special = false})->size(), 10u);
  EXPECT_EQ(t.decode(Ids{'a', 256, 'b'}), "ab");
  EXPECT_EQ(t.decode(Ids{'a', 256, 'b'}, false), "a<|im_end|>b");
}

TEST(gguf_vocab, an_unknown_pre_tokenizer_is_named) {
  EXPECT_EQ(refusal(byte_vocab({}, "no-such-family")),
            "test.gguf: tokenizer.ggml.pre is \"no-such-family\", a way of cutting words that "
            "nibble does not know");
  EXPECT_NE(refusal(byte_vocab({}, "")).find("tokenizer.ggml.pre is missing"), std::string::npos);
}

TEST(gguf_vocab, a_merge_of_unknown_parts_is_refused) {
  GgufVocab v = byte_vocab({});
  v.merges = {"a zz"};
  EXPECT_EQ(refusal(v),
            "test.gguf: merge 0 of tokenizer.ggml.merges is \"a zz\", but \"zz\" is no token");
  v.merges = {"ab"};
  EXPECT_NE(refusal(v).find("expected two parts with a space between"), std::string::npos);
}

TEST(gguf_vocab, lists_of_unequal_length_are_refused) {
  GgufVocab v = byte_vocab({});
  v.types.pop_back();
  EXPECT_NE(refusal(v).find("token_type has 256 entries for 257 tokens"), std::string::npos);
}

TEST(gguf_vocab, an_id_outside_the_vocabulary_is_refused) {
  GgufVocab v = byte_vocab({});
  v.eos = 257;
  EXPECT_EQ(refusal(v), "test.gguf: tokenizer.ggml.eos_token_id is 257; ids go from 0 to 256");
}

TEST(gguf_vocab, an_unknown_model_is_named) {
  GgufVocab v = byte_vocab({});
  v.model = "rwkv";
  EXPECT_NE(refusal(v).find("tokenizer.ggml.model is \"rwkv\""), std::string::npos);
}

// SentencePiece: the pair with the best score first, bytes for what no token covers.
TEST(gguf_vocab, sentencepiece_merges_by_score) {
  GgufVocab v;
  v.model = "llama";
  v.tokens = {"<unk>",
              "<s>",
              "</s>",
              "\xe2\x96\x81",
              "a",
              "b",
              "c",
              "ab",
              "bc",
              "\xe2\x96\x81"
              "a"};
  v.scores = {0, 0, 0, -10, -11, -12, -13, -2, -1, -3};
  v.types = {2, 3, 3, 1, 1, 1, 1, 1, 1, 1};
  for (int b = 0; b < 256; ++b) {
    char text[8];
    std::snprintf(text, sizeof text, "<0x%02X>", b);
    v.tokens.push_back(text);
    v.scores.push_back(0);
    v.types.push_back(6);
  }
  v.bos = 1;
  v.eos = 2;
  v.unk = 0;
  const Tokenizer t = build(v);
  EXPECT_EQ(*t.encode("abc"), (Ids{1, 9, 8}));
  EXPECT_EQ(*t.encode("\xc3\xa9", {.add_special_tokens = false}), (Ids{3, 10 + 0xc3, 10 + 0xa9}));
  EXPECT_EQ(t.decode(*t.encode("a \xc3\xa9 bc")), "a \xc3\xa9 bc");
}

TEST(gguf_vocab, every_known_pre_tokenizer_compiles) {
  for (const char* name : {"default",     "llama-bpe",
                           "dbrx",        "glm4",
                           "jais-2",      "gpt-2",
                           "smollm",      "falcon",
                           "qwen2",       "qwen35",
                           "laguna",      "gpt-4o",
                           "tiny_aya",    "tekken",
                           "kimi-k2",     "deepseek-llm",
                           "spark2_5",    "deepseek-coder",
                           "deepseek-v3", "afmoe",
                           "youtu",       "poro-chat",
                           "viking",      "superbpe",
                           "bailingmoe",  "seed-coder",
                           "ufakzeka",    "exaone-moe",
                           "minicpm5",    "chameleon",
                           "gemma4",      "minimax-m2",
                           "command-r",   "granite-embed-multi-97m"}) {
    const Tokenizer t = build(byte_vocab({}, name));
    const std::string text = "It's 12345\n\n  \xe6\xbc\xa2\xe5\xad\x97 \xc3\xa9t\xc3\xa9!! <a>";
    if (std::string_view(name) != "gemma4") {
      EXPECT_EQ(t.decode(*t.encode(text)), text) << name;
    }
  }
}

TEST(detokenizer, a_character_over_several_tokens_comes_out_whole) {
  const Tokenizer t = build(byte_vocab({}));
  Detokenizer stream(t);
  EXPECT_EQ(stream.push(0xf0), "");
  EXPECT_EQ(stream.push(0x9f), "");
  EXPECT_EQ(stream.push(0x98), "");
  EXPECT_EQ(stream.push(0x8a), "\xf0\x9f\x98\x8a");
  EXPECT_EQ(stream.push(0xe2), "");
  EXPECT_EQ(stream.push('a'),
            "\xef\xbf\xbd"
            "a");
  EXPECT_EQ(stream.push(0xe2), "");
  EXPECT_EQ(stream.finish(), "\xef\xbf\xbd");
}

}  // namespace
}  // namespace nibble::text
