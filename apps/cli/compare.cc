// nibble compare: two checkpoints, or one under two sets of options, layer by layer.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "cli/command.h"
#include "cli/input.h"
#include "cli/interrupt.h"
#include "cli/open.h"
#include "cli/options.h"
#include "cli/progress.h"
#include "cli/report_json.h"
#include "cli/table.h"
#include "cli/terminal.h"

namespace nibble::cli {
namespace {

constexpr const char* kText =
    "A lighthouse keeper counts the ships that pass in a night: seven going north, four going "
    "south, and one that turned back. How many lamps did he see, and what did he write in the "
    "book?";

struct Arguments {
  Voice voice;
  Options options;
  std::string left_model;
  std::string right_model;
  std::string left;
  std::string right;
  std::string prompt = kText;
  std::string tokens;
};

// The tokens both sides run on: --tokens, or the text through the left model's tokenizer, or where
// there is none the first ids.
Result<std::vector<int32_t>> tokens_for(const Arguments& arguments, const Model& left,
                                        const Model& right) {
  const int64_t vocab_size = std::min(left.vocab_size(), right.vocab_size());
  std::vector<int32_t> tokens;
  if (!arguments.tokens.empty()) {
    NIBBLE_ASSIGN(tokens, parse_tokens(arguments.tokens, "--tokens"));
  } else if (left.has_tokenizer()) {
    NIBBLE_ASSIGN(tokens, left.tokenizer().encode(arguments.prompt));
  } else {
    tokens.resize(static_cast<size_t>(std::min<int64_t>(32, vocab_size)));
    std::iota(tokens.begin(), tokens.end(), 0);
    note(fmt::format("{}; the activations are those of the tokens 0 to {}", left.tokenizer_error(),
                     tokens.size() - 1));
  }
  NIBBLE_TRY(check_tokens(tokens, vocab_size));
  return tokens;
}

// Worst first; what is not a number is worse than any number.
void sort_worst_first(std::vector<CompareRow>& rows) {
  const auto badness = [](const CompareRow& row) {
    const double worst = std::max(row.weight_error, row.activation_error);
    return std::isnan(row.weight_error) || std::isnan(row.activation_error) ? HUGE_VAL : worst;
  };
  std::stable_sort(rows.begin(), rows.end(), [&](const CompareRow& a, const CompareRow& b) {
    return badness(a) > badness(b);
  });
}

std::string compare_text(const std::vector<CompareRow>& rows) {
  Table table({{"layer"}, {"weights", Align::kRight}, {"activations", Align::kRight}});
  for (const CompareRow& row : rows) {
    table.add({printable(row.name), fmt::format("{:.3e}", row.weight_error),
               fmt::format("{:.3e}", row.activation_error)});
  }
  return "relative error of the left model against the right one, worst first\n" + table.text();
}

Result<int> compare_models(const Arguments& arguments) {
  set_voice(arguments.voice);
  if (arguments.right_model.empty() && arguments.left.empty() && arguments.right.empty()) {
    return fail(ErrorCode::kUsage,
                "compare needs a second model, or --left and --right options for the one.");
  }
  Options left_options = arguments.options, right_options = arguments.options;
  NIBBLE_TRY(apply_option_string("--left", arguments.left, left_options));
  NIBBLE_TRY(apply_option_string("--right", arguments.right, right_options));
  const CatchInterrupt interrupt;
  NIBBLE_ASSIGN(const Model left, open_one_of_two(arguments.left_model, left_options, interrupt));
  const std::string& second =
      arguments.right_model.empty() ? arguments.left_model : arguments.right_model;
  NIBBLE_ASSIGN(const Model right, open_one_of_two(second, right_options, interrupt));
  NIBBLE_ASSIGN(const std::vector<int32_t> tokens, tokens_for(arguments, left, right));
  ProgressLine progress(Unit::kLayers, interrupt);
  NIBBLE_ASSIGN(std::vector<CompareRow> rows,
                compare(left, right, tokens, progress.callback("comparing")));
  progress.clear();
  sort_worst_first(rows);
  return finish(arguments.voice.json ? compare_json(rows) : compare_text(rows));
}

}  // namespace

Command compare_command() {
  const auto arguments = std::make_shared<Arguments>();
  Command command{"compare", "two models layer by layer, worst first"};
  command.about =
      "Compares layer by layer the weights, and the activations on the same tokens: two "
      "checkpoints, or one checkpoint under two sets of options. The error is ||left - right|| / "
      "||right||.";
  command.examples = {
      "nibble compare ./Llama-3-8B-AWQ ./Llama-3-8B",
      "nibble compare smollm2 --left \"--isa reference\" --right \"--isa avx2\"",
  };
  Option prompt{"-p,--prompt", "TEXT", "the text both run on", &arguments->prompt,
                "a few lines about a lighthouse"};
  prompt.idle = [arguments] { return arguments->tokens.empty() ? "" : "--tokens replaces it"; };
  command.groups = {
      {"arguments",
       {model_argument(arguments->left_model),
        {"MODEL2", "", "the model on the right; without it MODEL again", &arguments->right_model},
        {"--left", "TEXT", "options for the left model alone", &arguments->left},
        {"--right", "TEXT", "options for the right model alone", &arguments->right},
        prompt,
        {"--tokens", "IDS", "token ids like 1,2,3 instead", &arguments->tokens}}},
      idle(model_options(arguments->options), {"--ctx"},
           [] { return "both run on the tokens that are compared, no more"; }),
      voice_options(arguments->voice)};
  command.run = [arguments] { return compare_models(*arguments); };
  return command;
}

}  // namespace nibble::cli
