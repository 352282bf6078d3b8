// nibble inspect: the plan, from headers alone.
#include <fmt/format.h>

#include <memory>

#include "cli/command.h"
#include "cli/options.h"
#include "cli/plan_text.h"
#include "cli/report_json.h"
#include "cli/terminal.h"

namespace nibble::cli {
namespace {

struct Arguments {
  Voice voice;
  Options options;
  std::string model;
};

Result<int> inspect_model(const Arguments& arguments) {
  set_voice(arguments.voice);
  const std::string path = resolve_model(arguments.model);
  const Result<Plan> plan = [&]() -> Result<Plan> {
    NIBBLE_TRY(check(arguments.options));
    return inspect(path, arguments.options);
  }();
  if (!plan) {
    // There is no plan to show, but a reader of JSON gets its document all the same.
    if (arguments.voice.json) {
      Plan empty;
      empty.path = path;
      empty.problems = {plan.error().message};
      NIBBLE_TRY(Output{}.write(plan_json(empty)));
    }
    return fail(plan.error());
  }
  for (const std::string& warning : plan->warnings) warn(warning);
  for (const std::string& problem : plan->problems) say_error(problem);
  return finish(arguments.voice.json ? plan_json(*plan) : plan_text(*plan, arguments.voice.verbose),
                plan->problems.empty() ? 0 : 1);
}

}  // namespace

Command inspect_command() {
  const auto arguments = std::make_shared<Arguments>();
  Command command{"inspect", "what a checkpoint holds and which kernel runs each layer"};
  command.about =
      "Reads headers only, no weights. Says what the checkpoint claims and what its tensors prove, "
      "then for each layer the scheme, format, packing and kernel, and why other kernels were "
      "refused. Exit code 1 when the model could not run here; --device and --isa ask about other "
      "hardware instead. --verbose shows each layer on its own.";
  command.examples = {
      "nibble inspect smollm2",
      "nibble inspect ./Llama-3-8B-AWQ --isa avx512 --json",
      "nibble inspect ./Mistral-7B-GPTQ --tp 4",
  };
  command.groups = {{"arguments", {model_argument(arguments->model)}},
                    model_options(arguments->options),
                    voice_options(arguments->voice)};
  command.run = [arguments] { return inspect_model(*arguments); };
  return command;
}

}  // namespace nibble::cli
