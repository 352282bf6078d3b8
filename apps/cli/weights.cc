// nibble weights: one module's weight as the engine uses it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>

#include "cli/command.h"
#include "cli/input.h"
#include "cli/interrupt.h"
#include "cli/npy.h"
#include "cli/options.h"
#include "cli/report_json.h"
#include "cli/table.h"
#include "cli/terminal.h"

namespace nibble::cli {
namespace {

constexpr size_t kBins = 16;

struct Arguments {
  Voice voice;
  Options options;
  std::string model;
  std::string module;
  std::string out;
};

WeightSummary summarize(const Matrix& matrix, const Arguments& arguments) {
  WeightSummary summary{arguments.module, matrix.rows, matrix.columns};
  summary.out = arguments.out;
  summary.histogram.assign(kBins, 0);
  double sum = 0, low = 0, high = 0;
  int64_t finite = 0;
  for (const float value : matrix.values) {
    if (!std::isfinite(value)) {
      ++summary.not_finite;
      continue;
    }
    low = finite == 0 ? value : std::min<double>(low, value);
    high = finite == 0 ? value : std::max<double>(high, value);
    sum += value;
    ++finite;
  }
  summary.min = low;
  summary.max = high;
  summary.mean = finite == 0 ? 0 : sum / static_cast<double>(finite);
  const double step = (high - low) / static_cast<double>(kBins);
  for (const float value : matrix.values) {
    if (!std::isfinite(value)) continue;
    const size_t bin = step > 0 ? static_cast<size_t>((value - low) / step) : 0;
    ++summary.histogram[std::min(bin, kBins - 1)];
  }
  return summary;
}

std::string summary_text(const WeightSummary& summary) {
  std::string text = fmt::format("{}  ({}, {}) float32\n", printable(summary.module), summary.rows,
                                 summary.columns);
  text +=
      fmt::format("min {:.9g}  max {:.9g}  mean {:.9g}", summary.min, summary.max, summary.mean);
  if (summary.not_finite > 0) text += fmt::format("  not finite {}", summary.not_finite);
  text += "\n";
  const int64_t most = *std::max_element(summary.histogram.begin(), summary.histogram.end());
  const double step = (summary.max - summary.min) / static_cast<double>(kBins);
  Table table({{"from", Align::kRight}, {"count", Align::kRight}, {""}});
  for (size_t i = 0; i < kBins; ++i) {
    const int64_t count = summary.histogram[i];
    const auto bar = static_cast<size_t>(most == 0 ? 0 : count * 40 / most);
    table.add({fmt::format("{:.4g}", summary.min + step * static_cast<double>(i)),
               fmt::format("{}", count), std::string(bar, '#')});
  }
  return text + table.text();
}

Result<int> show_weights(const Arguments& arguments) {
  set_voice(arguments.voice);
  NIBBLE_TRY(check_out(arguments.out, arguments.voice.json));
  NIBBLE_TRY(check(arguments.options));
  NIBBLE_ASSIGN(const Matrix matrix,
                weights(resolve_model(arguments.model), arguments.module, arguments.options));
  if (!arguments.out.empty()) {
    const CatchInterrupt interrupt;  // so that nothing half-written stays
    NIBBLE_ASSIGN(NpyWriter writer, NpyWriter::create(arguments.out, matrix.rows, matrix.columns));
    for (int64_t row = 0; row < matrix.rows; ++row) {
      if (interrupt.requested()) return kInterrupted;
      NIBBLE_TRY(writer.append(std::span(matrix.values)
                                   .subspan(static_cast<size_t>(row * matrix.columns),
                                            static_cast<size_t>(matrix.columns))));
    }
    NIBBLE_TRY(writer.finish());
    note(fmt::format("wrote {}: float32 ({}, {})", arguments.out == "-" ? "stdout" : arguments.out,
                     matrix.rows, matrix.columns));
    if (!arguments.voice.json) return 0;
  }
  const WeightSummary summary = summarize(matrix, arguments);
  return finish(arguments.voice.json ? weights_json(summary) : summary_text(summary));
}

}  // namespace

Command weights_command() {
  const auto arguments = std::make_shared<Arguments>();
  Command command{"weights", "one module's weight as the engine uses it"};
  command.about =
      "Gives one module's weight exactly as the engine uses it, float32 of shape (out, in): into a "
      ".npy file with --out, else as a summary.";
  command.examples = {
      "nibble weights smollm2 blk.0.attn_q --out w.npy",
      "nibble weights ./Llama-3-8B-AWQ model.layers.0.self_attn.q_proj",
  };
  Option module{"MODULE", "", "its name in the checkpoint, as `inspect` shows it",
                &arguments->module};
  module.required = true;
  command.groups = {{"arguments",
                     {model_argument(arguments->model),
                      module,
                      {"-o,--out", "FILE", "write a .npy file; - is stdout", &arguments->out}}},
                    idle(model_options(arguments->options),
                         {"--ctx", "--threads", "--device", "--isa", "--kernel", "--precision",
                          "--activation-dtype", "--kv-cache-dtype", "--load-format",
                          "--load-strategy", "--enforce-eager", "--tp", "--strict"},
                         [] { return "a weight is the same however the model is run"; }),
                    voice_options(arguments->voice)};
  command.run = [arguments] { return show_weights(*arguments); };
  return command;
}

}  // namespace nibble::cli
