// nibble fit: does it fit, and how long a context fits with it.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>

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
  std::vector<int64_t> batch;  // {}: one sequence is asked for, more are shown
};

// The one asked for; else 512, 2048, 8192, ... below the model's own, the longest that fits, and
// the model's own.
std::vector<int64_t> contexts(const MemoryPlan& memory, int64_t asked) {
  if (asked > 0) return {asked};
  std::vector<int64_t> list;
  for (int64_t ctx = 512; ctx < memory.model_ctx; ctx *= 4) list.push_back(ctx);
  if (memory.ctx > 0) list.push_back(memory.ctx);
  if (memory.model_ctx > 0) list.push_back(memory.model_ctx);
  std::sort(list.begin(), list.end());
  list.erase(std::unique(list.begin(), list.end()), list.end());
  return list;
}

// a * b, or the largest number there is.
uint64_t product(uint64_t a, uint64_t b) {
  uint64_t out = 0;
  return __builtin_mul_overflow(a, b, &out) ? UINT64_MAX : out;
}

std::vector<FitRow> fit_rows(const Plan& plan, const Arguments& arguments) {
  const MemoryPlan& memory = plan.memory;
  std::vector<int64_t> batches = arguments.batch;
  if (batches.empty()) batches = {1, 4, 16};
  std::vector<FitRow> rows;
  for (const int64_t ctx : contexts(memory, arguments.options.ctx)) {
    for (const int64_t batch : batches) {
      FitRow row{ctx, batch};
      row.kv = product(memory.kv_per_token,
                       product(static_cast<uint64_t>(ctx), static_cast<uint64_t>(batch)));
      const uint64_t fixed = memory.weights + memory.other;
      row.total = row.kv > UINT64_MAX - fixed ? UINT64_MAX : fixed + row.kv;
      // With a problem the sum is not known: modules without a kernel are missing from it.
      row.fits = plan.problems.empty() && std::max(row.total, memory.peak_load) <= memory.available;
      rows.push_back(row);
    }
  }
  return rows;
}

// What was asked for: each number of sequences, at the context given or else at any in the table.
// Returns the first that does not fit.
std::optional<FitRow> first_misfit(const std::vector<FitRow>& rows, const Arguments& arguments) {
  std::vector<int64_t> asked = arguments.batch;
  if (asked.empty()) asked = {1};
  for (const int64_t batch : asked) {
    const FitRow* least = nullptr;
    bool fits = false;
    for (const FitRow& row : rows) {
      if (row.batch != batch) continue;
      if (least == nullptr || row.total < least->total) least = &row;
      fits = fits || row.fits;
    }
    if (!fits) return least == nullptr ? FitRow{} : *least;
  }
  return std::nullopt;
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
  if (arguments.options.tp != 1) {
    return fail(
        ErrorCode::kUnsupported,
        fmt::format("--tp {}: this version runs on one rank only, and fit counts the memory "
                    "of one; `nibble inspect --tp` says which splits are legal.",
                    arguments.options.tp));
  }
  NIBBLE_ASSIGN(const Plan plan, inspect(resolve_model(arguments.model), arguments.options));
  for (const std::string& warning : plan.warnings) warn(warning);
  const std::vector<FitRow> rows = fit_rows(plan, arguments);
  const std::optional<FitRow> misfit = first_misfit(rows, arguments);
  NIBBLE_TRY(
      Output{}.write(arguments.voice.json ? fit_json(plan, rows, !misfit) : fit_text(plan, rows)));
  for (const std::string& problem : plan.problems) say_error(problem);
  if (misfit && plan.problems.empty()) {
    const uint64_t needed = std::max(misfit->total, plan.memory.peak_load);
    say_error(fmt::format(
        "{}: {} of {} tokens {} {} and {} is available; a shorter --ctx, fewer "
        "sequences or a smaller --kv-cache-dtype needs less.",
        plan.path, misfit->batch == 1 ? "1 sequence" : fmt::format("{} sequences", misfit->batch),
        misfit->ctx, misfit->batch == 1 ? "needs" : "need", human_bytes(needed),
        human_bytes(plan.memory.available)));
  }
  return misfit ? 1 : 0;
}

}  // namespace

Command fit_command() {
  const auto arguments = std::make_shared<Arguments>();
  Command command{"fit", "the memory it needs, and the longest context that fits"};
  command.about =
      "Compares the memory a model needs (weights, the peak while loading, the KV cache by context "
      "and number of sequences) with this machine's. Reads headers only. Exit code 1 when what was "
      "asked for does not fit: each --batch (one sequence without it) at --ctx tokens, or without "
      "--ctx at any context of the table.";
  command.examples = {
      "nibble fit smollm2",
      "nibble fit ./Llama-3-8B-AWQ --ctx 32768 --batch 1,8 --kv-cache-dtype fp8_e4m3",
  };
  Option batch{"--batch", "N,N", "numbers of sequences at once", &arguments->batch,
               "1; 4 and 16 are shown"};
  batch.low = 1;
  batch.high = 65536;
  command.groups = {{"arguments", {model_argument(arguments->model), batch}},
                    model_options(arguments->options),
                    voice_options(arguments->voice)};
  command.run = [arguments] { return fit(*arguments); };
  return command;
}

}  // namespace nibble::cli
