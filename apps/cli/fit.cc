// nibble fit: does it fit, and how long a context fits with it.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "cli/command.h"
#include "cli/options.h"
#include "cli/report_json.h"
#include "cli/table.h"
#include "cli/terminal.h"

namespace nibble::cli {
namespace {

struct Arguments {
  Voice voice;
  Options options;
  std::string model;
  std::vector<int64_t> batch = {1, 4, 16};
};

// 512, 2048, 8192, ... below the model's own context, the one asked for, and the model's own.
std::vector<int64_t> contexts(const MemoryPlan& memory) {
  std::vector<int64_t> list;
  for (int64_t ctx = 512; ctx < memory.model_ctx; ctx *= 4) list.push_back(ctx);
  if (memory.ctx > 0) list.push_back(memory.ctx);
  if (memory.model_ctx > 0) list.push_back(memory.model_ctx);
  std::sort(list.begin(), list.end());
  list.erase(std::unique(list.begin(), list.end()), list.end());
  return list;
}

std::vector<FitRow> fit_rows(const MemoryPlan& memory, const std::vector<int64_t>& batches) {
  std::vector<FitRow> rows;
  for (const int64_t ctx : contexts(memory)) {
    for (const int64_t batch : batches) {
      FitRow row{ctx, batch};
      row.kv = memory.kv_per_token * static_cast<uint64_t>(ctx) * static_cast<uint64_t>(batch);
      row.total = memory.weights + memory.other + row.kv;
      row.fits = row.total <= memory.available;
      rows.push_back(row);
    }
  }
  return rows;
}

std::string fit_text(const Plan& plan, const std::vector<FitRow>& rows) {
  const MemoryPlan& memory = plan.memory;
  std::string text;
  const auto line = [&](const char* what, uint64_t bytes) {
    text += fmt::format("{:<28} {:>10}\n", what, human_bytes(bytes));
  };
  line("weights", memory.weights);
  line("embeddings, norms, scratch", memory.other);
  line("peak while loading", memory.peak_load);
  line("KV cache, each token", memory.kv_per_token);
  line("available", memory.available);
  text += fmt::format("{:<28} {}\n\n", "on", printable(plan.hardware));
  Table table({{"context", Align::kRight},
               {"sequences", Align::kRight},
               {"KV cache", Align::kRight},
               {"all", Align::kRight},
               {"fits"}});
  for (const FitRow& row : rows) {
    table.add({fmt::format("{}", row.ctx), fmt::format("{}", row.batch), human_bytes(row.kv),
               human_bytes(row.total), row.fits ? "yes" : "no"});
  }
  text += table.text();
  text +=
      fmt::format("\nlongest context of one sequence that fits: {} tokens (the model's own: {})\n",
                  memory.longest_ctx, memory.model_ctx);
  return text;
}

Result<int> fit(const Arguments& arguments) {
  set_voice(arguments.voice);
  NIBBLE_TRY(check(arguments.options));
  NIBBLE_ASSIGN(const Plan plan, inspect(resolve_model(arguments.model), arguments.options));
  for (const std::string& warning : plan.warnings) warn(warning);
  const MemoryPlan& memory = plan.memory;
  const uint64_t least = std::max(memory.peak_load, memory.weights + memory.other);
  const bool fits = least <= memory.available && memory.longest_ctx > 0;
  const std::vector<FitRow> rows = fit_rows(memory, arguments.batch);
  NIBBLE_TRY(
      Output{}.write(arguments.voice.json ? fit_json(plan, rows, fits) : fit_text(plan, rows)));
  for (const std::string& problem : plan.problems) say_error(problem);
  if (!fits) {
    say_error(
        fmt::format("{}: does not fit: it needs {} while loading and {} is available; use a "
                    "smaller checkpoint or free some memory.",
                    plan.path, human_bytes(least), human_bytes(memory.available)));
  }
  return fits && plan.problems.empty() ? 0 : 1;
}

}  // namespace

Command fit_command() {
  const auto arguments = std::make_shared<Arguments>();
  Command command{"fit", "the memory it needs, and the longest context that fits"};
  command.about =
      "Compares the memory a model needs (weights, the peak while loading, the KV cache by context "
      "and number of sequences) with this machine's. Reads headers only. Exit code 1 when it does "
      "not fit.";
  command.examples = {
      "nibble fit smollm2",
      "nibble fit ./Llama-3-8B-AWQ --ctx 32768 --batch 1,8 --kv-cache-dtype fp8_e4m3",
  };
  Option batch{"--batch", "N,N", "numbers of sequences at once", &arguments->batch};
  batch.low = 1;
  batch.high = 65536;
  command.groups = {{"arguments", {model_argument(arguments->model), batch}},
                    model_options(arguments->options),
                    voice_options(arguments->voice)};
  command.run = [arguments] { return fit(*arguments); };
  return command;
}

}  // namespace nibble::cli
