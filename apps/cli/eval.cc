// nibble eval: perplexity, and the divergence from a reference.
#include <fmt/format.h>

#include <memory>
#include <optional>

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

struct Arguments {
  Arguments() { options.ctx = 512; }
  Voice voice;
  Options options;  // ctx is the window
  std::string model;
  std::string file;
  std::string reference;
  std::string reference_options;
};

std::string eval_text(const Model& model, const EvalReport& report) {
  std::string text = fmt::format("predictions           {}\nperplexity            {:.4f}\n",
                                 report.predictions, report.perplexity);
  if (!report.has_reference) return text;
  text += fmt::format("reference perplexity  {:.4f}\n", report.reference_perplexity);
  text += fmt::format("mean KL divergence    {:.3g} nats\n", report.mean_kl);
  text += fmt::format("top-1 agreement       {:.2f}%\n", report.top1_agreement * 100);
  if (report.worst.empty()) return text;
  Table table({{"window", Align::kRight},
               {"position", Align::kRight},
               {"token", Align::kRight},
               {"piece"},
               {"nll", Align::kRight},
               {"KL", Align::kRight}});
  for (const EvalPosition& each : report.worst) {
    table.add({fmt::format("{}", each.window), fmt::format("{}", each.position),
               fmt::format("{}", each.token), printable(model.tokenizer().piece(each.token)),
               fmt::format("{:.4f}", each.nll), fmt::format("{:.3g}", each.kl)});
  }
  return text + "\nthe worst positions\n" + table.text();
}

Result<int> eval(const Arguments& arguments) {
  set_voice(arguments.voice);
  NIBBLE_ASSIGN(const std::string text, read_text_file(arguments.file));
  Options reference_options = arguments.options;
  if (!arguments.reference_options.empty() && arguments.reference.empty()) {
    return fail(ErrorCode::kUsage, "--reference-options needs --reference MODEL2.");
  }
  NIBBLE_TRY(
      apply_option_string("--reference-options", arguments.reference_options, reference_options));
  const CatchInterrupt interrupt;
  const auto open = arguments.reference.empty() ? open_model : open_one_of_two;
  NIBBLE_ASSIGN(const Model model, open(arguments.model, arguments.options, interrupt));
  NIBBLE_TRY(tokenizer_of(model));
  std::optional<Model> reference;
  if (!arguments.reference.empty()) {
    NIBBLE_ASSIGN(reference, open(arguments.reference, reference_options, interrupt));
  }
  ProgressLine progress(Unit::kTokens, interrupt);
  NIBBLE_ASSIGN(const EvalReport report,
                evaluate(model, text, arguments.options.ctx, reference ? &*reference : nullptr,
                         progress.callback()));
  progress.clear();
  return finish(arguments.voice.json ? eval_json(report, arguments.options.ctx)
                                     : eval_text(model, report));
}

}  // namespace

Command eval_command() {
  const auto arguments = std::make_shared<Arguments>();
  Command command{"eval", "perplexity over a text file"};
  command.about =
      "Perplexity over a text: windows of --ctx tokens that do not overlap, BOS as the tokenizer "
      "says, every prediction counted. --reference adds the KL divergence from another model, how "
      "often both like the same token best, and the positions where they differ most.";
  command.examples = {
      "nibble eval smollm2 text.txt",
      "nibble eval ./Llama-3-8B-AWQ text.txt --reference ./Llama-3-8B",
      "nibble eval smollm2 text.txt --reference smollm2 --reference-options \"--precision exact\"",
  };
  Option file{"FILE", "", "the text; - reads stdin", &arguments->file};
  file.required = true;
  OptionGroup model = model_options(arguments->options);
  for (Option& option : model.options) {
    if (option.name() == "--ctx") option.help = "tokens in a window";
  }
  command.groups = {
      {"arguments",
       {model_argument(arguments->model),
        file,
        {"--reference", "MODEL2", "compare with this model", &arguments->reference},
        {"--reference-options", "TEXT", "options for MODEL2 alone; else it has the same",
         &arguments->reference_options}}},
      model,
      voice_options(arguments->voice)};
  command.run = [arguments] { return eval(*arguments); };
  return command;
}

}  // namespace nibble::cli
