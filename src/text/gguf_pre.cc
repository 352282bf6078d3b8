#include "text/gguf_pre.h"

#include <array>

#include "text/pre_tokenizer.h"

namespace nibble::text {
namespace {

// Sources: the pre_tokenizer of each family's own tokenizer.json, and for names whose file nibble's
// authors have not seen, the patterns that llama.cpp (MIT; src/llama-vocab.cpp of 2026) uses for
// that name.
#define NIBBLE_CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define NIBBLE_UPPER "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define NIBBLE_LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define NIBBLE_WORD "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
#define NIBBLE_SYMBOLS " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
#define NIBBLE_SYMBOLS_SLASH " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*"
#define NIBBLE_SPACES "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

constexpr std::string_view kDigit = "\\p{N}";
constexpr std::string_view kDigits3 = "\\p{N}{1,3}";
// Groups of three counted from the right of a number.
constexpr std::string_view kDigitsFromRight = "\\p{N}{1,3}(?=(?:\\p{N}{3})*(?!\\p{N}))";
constexpr std::string_view kLines = "[^\\n]+|[\\n]+";
constexpr std::string_view kLlama3 =
    NIBBLE_CONTRACTION "|" NIBBLE_WORD "|\\p{N}{1,3}|" NIBBLE_SYMBOLS "|" NIBBLE_SPACES;
constexpr std::string_view kQwen2 =
    NIBBLE_CONTRACTION "|" NIBBLE_WORD "|\\p{N}|" NIBBLE_SYMBOLS "|" NIBBLE_SPACES;
constexpr std::string_view kQwen35 = NIBBLE_CONTRACTION
    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| "
    "?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" NIBBLE_SPACES;
constexpr std::string_view kGpt4o =
    NIBBLE_UPPER "*" NIBBLE_LOWER "+" NIBBLE_CONTRACTION "?|" NIBBLE_UPPER "+" NIBBLE_LOWER
                 "*" NIBBLE_CONTRACTION
                 "?|"
                 "\\p{N}{1,3}|" NIBBLE_SYMBOLS_SLASH "|" NIBBLE_SPACES;
constexpr std::string_view kTekken =
    NIBBLE_UPPER "*" NIBBLE_LOWER "+|" NIBBLE_UPPER "+" NIBBLE_LOWER
                 "*|"
                 "\\p{N}|" NIBBLE_SYMBOLS_SLASH "|" NIBBLE_SPACES;
constexpr std::string_view kKimi =
    "[\\p{Han}]+|"
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]*"
    "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]+" NIBBLE_CONTRACTION
    "?|"
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]+"
    "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]*" NIBBLE_CONTRACTION
    "?|"
    "\\p{N}{1,3}|" NIBBLE_SYMBOLS "|" NIBBLE_SPACES;
constexpr std::string_view kJais2 = NIBBLE_CONTRACTION
    "|" NIBBLE_WORD "|\\p{N}{1,3}|" NIBBLE_SYMBOLS
    "|\\s*[\\r\\n]+|"
    "\\s{512}(?!\\S)|\\s{256}(?!\\S)|\\s{128}(?!\\S)|\\s{64}(?!\\S)|\\s{32}(?!\\S)|"
    "\\s{16}(?!\\S)|\\s{8}(?!\\S)|\\s{4}(?!\\S)|\\s{1,2}(?!\\S)|\\s{1}";
constexpr std::string_view kBailing =
    "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}|"
    " ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+";
constexpr std::string_view kSeedCoder =
    NIBBLE_CONTRACTION "|" NIBBLE_WORD "|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|" NIBBLE_SPACES;
constexpr std::string_view kTurkish = NIBBLE_WORD "|\\p{N}|" NIBBLE_SYMBOLS "|" NIBBLE_SPACES;
constexpr std::string_view kExaoneMoe = NIBBLE_CONTRACTION
    "|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}\\p{M}*(?: \\p{L}\\p{M}*)*)+|\\p{N}|"
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]?|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+";
constexpr std::string_view kMiniCpm5 =
    NIBBLE_CONTRACTION "|" NIBBLE_WORD "|\\p{N}+|" NIBBLE_SYMBOLS "|" NIBBLE_SPACES;
constexpr std::string_view kBloom =
    R"~( ?[^(\s|.,!?\x{2026}\x{3002}\x{ff0c}\x{3001}\x{964}\x{6d4}\x{60c})]+)~";
constexpr std::string_view kPunctuated = R"~([\p{P}\$\+<=>\^~\|`]+)~";

constexpr std::string_view kDeepseekLetters =
    R"~(\s?[A-Za-z\x{b5}\x{c0}-\x{d6}\x{d8}-\x{f6}\x{f8}-\x{1ba}\x{1bc}-\x{1bf}\x{1c4}-)~"
    R"~(\x{293}\x{295}-\x{2af}\x{370}-\x{373}\x{376}\x{377}\x{37b}-\x{37d}\x{37f}\x{386})~"
    R"~(\x{388}-\x{38a}\x{38c}\x{38e}-\x{3a1}\x{3a3}-\x{3f5}\x{3f7}-\x{481}\x{48a}-\x{52f})~"
    R"~(\x{531}-\x{556}\x{10a0}-\x{10c5}\x{13a0}-\x{13f5}\x{13f8}-\x{13fd}\x{1c90}-\x{1cba})~"
    R"~(\x{1cbd}-\x{1cbf}\x{1d00}-\x{1d2b}\x{1d6b}-\x{1d77}\x{1d79}-\x{1d9a}\x{1e00}-)~"
    R"~(\x{1f15}\x{1f18}-\x{1f1d}\x{1f20}-\x{1f45}\x{1f48}-\x{1f4d}\x{1f50}-\x{1f57}\x{1f59})~"
    R"~(\x{1f5b}\x{1f5d}\x{1f5f}-\x{1f7d}\x{1f80}-\x{1fb4}\x{1fb6}-\x{1fbc}\x{1fbe}\x{1fc2}-)~"
    R"~(\x{1fc4}\x{1fc6}-\x{1fcc}\x{1fd0}-\x{1fd3}\x{1fd6}-\x{1fdb}\x{1fe0}-\x{1fec}\x{1ff2})~"
    R"~(-\x{1ff4}\x{1ff6}-\x{1ffc}\x{2102}\x{2107}\x{210a}-\x{2113}\x{2115}\x{2119}-\x{211d})~"
    R"~(\x{2124}\x{2126}\x{2128}\x{212a}-\x{212d}\x{212f}-\x{2134}\x{2139}\x{213c}-\x{213f})~"
    R"~(\x{2145}-\x{2149}\x{214e}\x{2183}\x{2184}\x{2c00}-\x{2c7b}\x{2c7e}-\x{2ce4}\x{2ceb}-)~"
    R"~(\x{2cee}\x{2cf2}\x{2cf3}\x{a640}-\x{a66d}\x{a680}-\x{a69b}\x{a722}-\x{a76f}\x{a771}-)~"
    R"~(\x{a787}\x{a78b}-\x{a78e}\x{ab70}-\x{abbf}\x{fb00}-\x{fb06}\x{fb13}-\x{fb17}\x{ff21})~"
    R"~(-\x{ff3a}\x{ff41}-\x{ff5a}\x{10400}-\x{1044f}\x{104b0}-\x{104d3}\x{104d8}-\x{104fb})~"
    R"~(\x{10c80}-\x{10cb2}\x{10cc0}-\x{10cf2}\x{118a0}-\x{118df}\x{1e900}-\x{1e943}]+)~";
constexpr std::string_view kDeepseekPunctuation =
    R"~(\s?[!-/:-~\x{ff01}-\x{ff0f}\x{ff1a}-\x{ff5e}\x{2018}-\x{201f}\x{3000}-\x{3002}]+)~";
constexpr std::string_view kDeepseekHan =
    R"~([\x{4e00}-\x{9fa5}\x{800}-\x{4e00}\x{ac00}-\x{d7ff}]+)~";
constexpr std::string_view kDeepseek3Han =
    R"~([\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}]+)~";
#define NIBBLE_ASCII_PUNCTUATION R"~([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+)~"
constexpr std::string_view kDeepseek3 = NIBBLE_ASCII_PUNCTUATION
    "|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|" NIBBLE_SPACES;
constexpr std::string_view kSpark = NIBBLE_ASCII_PUNCTUATION
    "|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+|[\\r\\n]|\\s+(?!\\S)|\\s+";
constexpr std::string_view kAfmoeAsian =
    R"~([\x{4e00}-\x{9fff}\x{3400}-\x{4dbf}\x{8c48}-\x{faff}\x{3040}-\x{309f}\x{30a0}-)~"
    R"~(\x{30ff}\x{ff65}-\x{ff9f}\x{2f00}-\x{2fdf}\x{e40}-\x{e7f}\x{e80}-\x{eff}\x{1780}-)~"
    R"~(\x{17ff}\x{1000}-\x{109f}\x{aa60}-\x{aa7f}\x{a9e0}-\x{a9ff}\x{ac00}-\x{d7af}\x{1100})~"
    R"~(-\x{11ff}]+)~";
constexpr std::string_view kYoutuScripts =
    R"~([\x{ac00}-\x{d7a3}\x{3131}-\x{318e}]+|[\x{ff01}\x{2026}\x{201c}\x{201d}\x{2018})~"
    R"~(\x{2019}\x{2014}\x{ff1a}\x{ff1b}\x{ff0c}\x{3001}-\x{303f}\x{fe30}-\x{fe4f}]+|[)~"
    R"~(\x{3105}-\x{312f}]+|[\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}]+)~";
constexpr std::string_view kYoutu =
    NIBBLE_UPPER "*" NIBBLE_LOWER "+" NIBBLE_CONTRACTION "?|" NIBBLE_UPPER "+" NIBBLE_LOWER
                 "*" NIBBLE_CONTRACTION
                 "?|"
                 "\\p{N}|" NIBBLE_SYMBOLS_SLASH "|" NIBBLE_SPACES;

struct Named {
  std::vector<std::string_view> names;
  GgufPre pre;
};

const std::vector<Named>& table() {
  static const std::vector<Named> kTable = {
      {{"default"}, {{R"~([\p{P}\$\+<=>\^~\|]+)~", kGpt2Pattern, "\\p{N}+", "[0-9][0-9][0-9]"}}},
      {{"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
        "jina-v5-nano"},
       {.patterns = {kLlama3}, .ignore_merges = true, .add_bos = true}},
      {{"dbrx", "smaug-bpe", "chatglm-bpe"}, {{kLlama3}}},
      {{"glm4", "glm5"}, {.patterns = {kLlama3}, .ignore_merges = true}},
      {{"jais-2"}, {{kJais2}}},
      {{"gpt-2", "phi-2", "jina-es", "jina-de", "jina-v2-es", "jina-v2-de", "jina-v1-en",
        "jina-v2-code", "roberta-bpe", "gigachat", "a.x-4.0", "mellum", "modern-bert", "exaone4",
        "mpt", "olmo", "jais", "trillion", "granite-docling"},
       {{kGpt2Pattern}}},
      {{"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b",
        "mellum2"},
       {{kDigit, kGpt2Pattern}}},
      {{"falcon"}, {{kPunctuated, kGpt2Pattern, "[0-9][0-9][0-9]"}}},
      {{"qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan",
        "solar-open", "grok-2"},
       {{kQwen2}}},
      {{"qwen35"}, {{kQwen35}}},
      {{"laguna"}, {{kLines, kQwen2}}},
      {{"gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"}, {{kGpt4o}}},
      {{"granite-embed-multi-97m"}, {.patterns = {kGpt4o}, .ignore_merges = true}},
      {{"tiny_aya", "cohere2moe"}, {{kDigitsFromRight, kGpt4o}}},
      {{"tekken"}, {.patterns = {kTekken}, .ignore_merges = true, .add_bos = true}},
      {{"kimi-k2"}, {{kKimi}}},
      {{"deepseek-llm"},
       {{"[\\r\\n]", kDeepseekLetters, kDeepseekPunctuation, "\\s+$", kDeepseekHan, "\\p{N}+"}}},
      {{"deepseek-coder"}, {{"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", kDeepseekHan, kDigit}}},
      {{"deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"},
       {{kDigits3, kDeepseek3Han, kDeepseek3}}},
      {{"spark2_5"}, {{kDigits3, kDeepseek3Han, kSpark, kDigit}}},
      {{"afmoe"}, {{kDigitsFromRight, kAfmoeAsian, kDeepseek3}}},
      {{"youtu"}, {.patterns = {kYoutuScripts, kYoutu}, .ignore_merges = true}},
      {{"poro-chat", "bloom", "gpt3-finnish"}, {{kBloom}}},
      {{"viking"}, {{kBloom, kDigit}}},
      {{"superbpe"}, {{"\\p{N}+", "(?=(\\d{3})+(?!\\d))"}}},
      {{"bailingmoe", "bailingmoe2", "llada-moe"}, {{kBailing}}},
      {{"seed-coder"}, {{kSeedCoder}}},
      {{"ufakzeka"}, {{kTurkish}}},
      {{"exaone-moe"}, {{kExaoneMoe}}},
      {{"minicpm5"}, {.patterns = {kDigits3, kMiniCpm5}, .ignore_merges = true}},
      {{"chameleon"},
       {.patterns = {"<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
                     "([\\t\\n]|    |  )", kDigit, R"~([\p{P}!-/:-@\[-`{-~])~", kGpt2Pattern},
        .add_bos = true}},
      {{"gemma4", "granite-embed-multi-311m", "sarvam-moe"},
       {.patterns = {kLines}, .byte_level = false, .escape_whitespace = true}},
  };
  return kTable;
}

}  // namespace

const GgufPre* find_gguf_pre(std::string_view name) {
  for (const Named& row : table()) {
    for (const std::string_view known : row.names) {
      if (known == name) return &row.pre;
    }
  }
  return nullptr;
}

}  // namespace nibble::text
