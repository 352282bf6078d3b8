#include "cli/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "cli/parse.h"

namespace nibble::cli {

OptionGroup voice_options(Voice& voice) {
  return {"output",
          {
              {"--json", "", "one JSON document on stdout", Switch{&voice.json}},
              {"-q,--quiet", "", "no progress, notes, warnings or timings", Switch{&voice.quiet}},
              {"-v,--verbose", "", "say more", Switch{&voice.verbose}},
          }};
}

Option model_argument(std::string& model) {
  Option option{"MODEL", "", "a folder as downloaded, a .gguf file, or a packaged model's name",
                &model};
  option.required = true;
  return option;
}

namespace {

Option number(std::string names, std::string help, Target target, std::string shown_default,
              double low, double high = std::numeric_limits<double>::infinity()) {
  Option option{std::move(names), "N", std::move(help), target, std::move(shown_default)};
  option.low = low;
  option.high = high;
  return option;
}

Option choice(std::string names, std::string help, std::string* target,
              std::vector<std::string> words) {
  std::string value = fmt::format("{}", fmt::join(words, "|"));
  return {std::move(names), std::move(value), std::move(help), target, "", std::move(words)};
}

}  // namespace

OptionGroup sampling_options(GenerateOptions& options) {
  const std::string from_model = "the model's own, else ";
  return {"sampling",
          {
              number("-n,--max-tokens", "tokens to generate", &options.max_tokens,
                     "until the model stops or the context ends", -1),
              number("--temp", "temperature; 0 is greedy and reproducible", &options.temperature,
                     from_model + "0.8", 0, 1000),
              number("--top-k", "sample among the K likeliest; 0 switches it off", &options.top_k,
                     from_model + "40", 0),
              number("--top-p", "sample within this probability; 1 switches it off", &options.top_p,
                     from_model + "0.95", 0, 1),
              number("--min-p", "drop tokens below this share of the likeliest", &options.min_p,
                     "0", 0, 1),
              number("--repeat-penalty", "divide the logits of tokens already there",
                     &options.repeat_penalty, from_model + "1", 0, 1000),
              number("--seed", "of the random numbers", &options.seed, "", 0),
              {"--stop", "TEXT", "end before this text; may be repeated", &options.stop},
          }};
}

OptionGroup model_options(Options& options) {
  return {
      "model",
      {
          number("-c,--ctx", "context length in tokens", &options.ctx,
                 options.ctx == 0 ? "the model's own, cut to what fits" : "", 1, 1 << 30),
          number("-t,--threads", "threads", &options.threads,
                 options.threads == 0 ? "the physical cores this process may use" : "", 1, 4096),
          {"--device", "cpu|cuda[:I]", "where it runs", &options.device,
           "cuda when a supported GPU is there, else cpu"},
          {"--isa",
           "reference|avx2|avx512|amx",
           "force a CPU path",
           &options.isa,
           "the best one here",
           {"auto", "reference", "avx2", "avx512", "amx"}},
          {"--kernel", "GLOB", "allow only kernels of matching name", &options.kernel},
          choice("--precision", "how activations are held where the checkpoint leaves them alone",
                 &options.precision, {"fast", "exact"}),
          choice("--dtype", "activations between layers", &options.dtype,
                 {"auto", "bf16", "f16", "f32"}),
          choice("--activation-dtype", "activations of quantized layers", &options.activation_dtype,
                 {"auto", "float", "fp8", "int8"}),
          {"--kv-cache-dtype",
           "TYPE",
           "auto, f32, bf16, f16, fp8_e4m3, fp8_e5m2 or int8",
           &options.kv_cache_dtype,
           "",
           {"auto", "f32", "bf16", "f16", "fp8_e4m3", "fp8_e5m2", "int8"}},
          {"--quantization", "S", "quantize while loading, or name an unlabelled scheme",
           &options.quantization, "what the checkpoint says"},
          {"--quantization-config", "JSON|FILE", "a quantization config from elsewhere",
           &options.quantization_config, "the checkpoint's"},
          {"--override", "KEY=VALUE", "replace a config key; may be repeated", &options.overrides},
          choice("--load-format", "dummy: random weights of the right shapes", &options.load_format,
                 {"auto", "dummy"}),
          choice("--load-strategy", "how files are read", &options.load_strategy,
                 {"lazy", "eager", "prefetch"}),
          {"--no-mmap", "", "read files instead of mapping them", Switch{&options.mmap, false}},
          {"--enforce-eager", "", "on a card: no CUDA graphs", Switch{&options.enforce_eager}},
          number("--tp", "ranks that each layer is cut for", &options.tp, "", 1, 4096),
          number("--ep", "ranks that experts are spread over", &options.ep, "", 1, 4096),
          {"--strict", "", "warnings become errors", Switch{&options.strict}},
      }};
}

OptionGroup without(OptionGroup group, std::string_view name) {
  std::erase_if(group.options, [&](const Option& option) { return option.name() == name; });
  return group;
}

OptionGroup idle(OptionGroup group, const std::vector<std::string_view>& names,
                 const std::function<std::string()>& why) {
  for (Option& option : group.options) {
    if (std::find(names.begin(), names.end(), option.name()) != names.end()) option.idle = why;
  }
  return group;
}

Result<void> check(const Options& options) {
  const std::string& device = options.device;
  const bool numbered = device.rfind("cuda:", 0) == 0 && device.size() > 5 && device.size() < 9 &&
                        device.find_first_not_of("0123456789", 5) == std::string::npos;
  if (device != "auto" && device != "cpu" && device != "cuda" && !numbered) {
    return fail(ErrorCode::kUsage,
                fmt::format("--device: \"{}\" is not one of cpu, cuda, cuda:0, cuda:1, ...; give "
                            "one of them, or leave it out.",
                            device));
  }
  return {};
}

std::string resolve_model(const std::string& model) {
  std::error_code ignored;
  if (std::filesystem::exists(model, ignored)) return model;
  return find_packaged_model(model).value_or(model);
}

namespace {

// Words as a shell would see them: blanks part, quotes join, a backslash takes the next character.
Result<std::vector<std::string>> shell_words(std::string_view text) {
  std::vector<std::string> words;
  std::string word;
  bool in_word = false;
  char quote = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quote != 0) {
      if (c == quote)
        quote = 0;
      else
        word += c;
    } else if (c == '"' || c == '\'') {
      quote = c;
      in_word = true;
    } else if (c == ' ' || c == '\t' || c == '\n') {
      if (in_word) words.push_back(std::exchange(word, {}));
      in_word = false;
    } else {
      word += c == '\\' && i + 1 < text.size() ? text[++i] : c;
      in_word = true;
    }
  }
  if (quote != 0) {
    return fail(ErrorCode::kUsage, fmt::format("the quote {} is not closed in: {}", quote, text));
  }
  if (in_word) words.push_back(word);
  return words;
}

}  // namespace

Result<void> apply_option_string(const std::string& option, std::string_view text,
                                 Options& options) {
  const auto parsed = [&]() -> Result<void> {
    NIBBLE_ASSIGN(const std::vector<std::string> words, shell_words(text));
    return parse_options({model_options(options)}, words, option);
  };
  if (auto ok = parsed(); !ok) {
    const std::string& message = ok.error().message;  // not each kind of it names the option
    const bool named = message.rfind(option, 0) == 0;
    return fail(ErrorCode::kUsage, named ? message : fmt::format("{}: {}", option, message));
  }
  return check(options);
}

}  // namespace nibble::cli
