// nibble verify: reads every byte.
#include <fmt/format.h>

#include <memory>

#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/options.h"
#include "cli/progress.h"
#include "cli/report_json.h"
#include "cli/table.h"
#include "cli/terminal.h"

namespace nibble::cli {
namespace {

struct Arguments {
  Voice voice;
  Options options;
  std::string model;
};

std::string verify_text(const VerifyReport& report) {
  std::string text =
      fmt::format("read {} tensors, {}\n", report.tensors, human_bytes(report.bytes));
  for (const std::string& each : report.notes) text += printable(each) + "\n";
  for (const Finding& each : report.findings) {
    text += fmt::format("{}: {}\n", printable(each.where), printable(each.what));
  }
  text += report.findings.empty() ? "nothing is wrong\n"
                                  : fmt::format("{} findings\n", report.findings.size());
  return text;
}

Result<int> verify_model(const Arguments& arguments) {
  set_voice(arguments.voice);
  NIBBLE_TRY(check(arguments.options));
  const std::string path = resolve_model(arguments.model);
  const CatchInterrupt interrupt;
  ProgressLine progress(Unit::kBytes, interrupt);
  NIBBLE_ASSIGN(const VerifyReport report,
                verify(path, arguments.options, progress.callback("reading")));
  progress.clear();
  NIBBLE_TRY(Output{}.write(arguments.voice.json ? verify_json(report) : verify_text(report)));
  if (report.findings.empty()) return 0;
  const Finding& first = report.findings.front();
  return fail(ErrorCode::kCorrupt, fmt::format("{}: {} ({} of {} findings)", first.where,
                                               first.what, 1, report.findings.size()));
}

}  // namespace

Command verify_command() {
  const auto arguments = std::make_shared<Arguments>();
  Command command{"verify", "read every byte and say what is wrong"};
  command.about =
      "Reads every byte of a checkpoint: shapes, NaN and Inf in scales, codes out of range, "
      "duplicated or missing tensors, and checksums where an index has them. Exit code 1 when "
      "anything is wrong.";
  command.examples = {"nibble verify smollm2", "nibble verify ./Llama-3-8B-AWQ --json"};
  command.groups = {{"arguments", {model_argument(arguments->model)}},
                    idle(model_options(arguments->options),
                         {"--ctx", "--threads", "--load-format", "--load-strategy",
                          "--enforce-eager", "--tp", "--strict"},
                         [] { return "verify reads the files and runs nothing"; }),
                    voice_options(arguments->voice)};
  command.run = [arguments] { return verify_model(*arguments); };
  return command;
}

}  // namespace nibble::cli
