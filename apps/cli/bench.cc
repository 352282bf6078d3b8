// nibble bench: kernels against the machine's limits, or a model with the tests that llama-bench
// made common (pp512, tg128).
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/open.h"
#include "cli/options.h"
#include "cli/report_json.h"
#include "cli/table.h"
#include "cli/terminal.h"

namespace nibble::cli {
namespace {

struct Arguments {
  Voice voice;
  Options options;
  BenchOptions bench;
  std::vector<int64_t> threads;
  std::string model;
  std::string output = "md";
};

std::string percent(double share) { return fmt::format("{:.0f}%", share * 100); }

std::string machine_text(const MachineReport& machine) {
  std::string text = fmt::format("{}, {} threads: reads {:.1f} GB/s", printable(machine.cpu),
                                 machine.threads, machine.read_gb_s);
  for (const auto& [unit, gops] : machine.peak_gops) {
    text += fmt::format(", {} {:.0f} GOPS", unit, gops);
  }
  return text;
}

// "CPU" or "CUDA": where --device sends the model.
std::string backend(const Options& options) {
  if (options.device == "cpu") return "CPU";
  if (options.device != "auto") return "CUDA";
  const std::vector<std::string> devices = version().devices_found;
  const bool cuda = std::any_of(devices.begin(), devices.end(), [](const std::string& device) {
    return device.rfind("cuda", 0) == 0;
  });
  return cuda ? "CUDA" : "CPU";
}

// The limit is that of main memory. What the cache holds is read faster, and its share is above 1:
// better said than cut off.
template <class Row>
void note_above_limit(const std::vector<Row>& rows) {
  if (std::any_of(rows.begin(), rows.end(), [](const Row& row) { return row.of_limit > 1; })) {
    note(
        "above 100 % of the limit: what is read lies in the processor's cache, and the limit is "
        "that of main memory");
  }
}

// Every row of one model has the same first columns, as users of llama-bench know them.
std::string markdown_text(const Plan& plan, const std::vector<BenchRow>& rows,
                          const std::string& where) {
  Table table({{"model"},
               {"size", Align::kRight},
               {"params", Align::kRight},
               {"backend"},
               {"threads", Align::kRight},
               {"test", Align::kRight},
               {"t/s", Align::kRight},
               {"kernel"},
               {"of limit", Align::kRight}});
  for (const BenchRow& row : rows) {
    table.add({printable(plan.architecture + " " + plan.scheme), human_bytes(plan.file_bytes),
               human_count(plan.parameters), where, fmt::format("{}", row.threads), row.test,
               fmt::format("{:.2f} ± {:.2f}", row.tokens_per_second, row.stddev), row.kernel,
               percent(row.of_limit)});
  }
  return table.markdown();
}

std::string csv_text(const Plan& plan, const std::vector<BenchRow>& rows) {
  Table table({{"model"},
               {"size_bytes"},
               {"params"},
               {"threads"},
               {"test"},
               {"tokens_per_second"},
               {"stddev"},
               {"kernel"},
               {"of_limit"}});
  for (const BenchRow& row : rows) {
    table.add({plan.architecture + " " + plan.scheme, fmt::format("{}", plan.file_bytes),
               fmt::format("{}", plan.parameters), fmt::format("{}", row.threads), row.test,
               fmt::format("{}", row.tokens_per_second), fmt::format("{}", row.stddev), row.kernel,
               fmt::format("{}", row.of_limit)});
  }
  return table.csv();
}

Result<int> bench_model(const Arguments& arguments, const std::vector<int64_t>& threads) {
  std::vector<BenchRow> rows;
  MachineReport machine;
  Plan plan;
  for (const int64_t count : threads) {
    Options options = arguments.options;
    options.threads = static_cast<int>(count);
    const CatchInterrupt interrupt;
    NIBBLE_ASSIGN(const Model model, open_model(arguments.model, options, interrupt));
    machine = measure_machine(model);
    note(machine_text(machine));
    NIBBLE_ASSIGN(const std::vector<BenchRow> measured, bench(model, arguments.bench, machine));
    rows.insert(rows.end(), measured.begin(), measured.end());
    plan = model.plan();
    if (interrupt.requested()) return kInterrupted;
  }
  note_above_limit(rows);
  if (arguments.output == "json") return finish(bench_json(machine, rows));
  if (arguments.output == "csv") return finish(csv_text(plan, rows));
  return finish(markdown_text(plan, rows, backend(arguments.options)));
}

Result<int> bench_all_kernels(const Arguments& arguments, const std::vector<int64_t>& threads) {
  if (threads.size() > 1) {
    return fail(ErrorCode::kUsage, "bench without a MODEL takes one number of threads.");
  }
  if (arguments.options.device.starts_with("cuda")) {  // before seconds are spent on the machine
    return fail(ErrorCode::kUnsupported,
                fmt::format("--device {}: without a MODEL only the CPU's kernels are measured; "
                            "name a model, or say --device cpu.",
                            arguments.options.device));
  }
  Options options = arguments.options;
  options.threads = static_cast<int>(threads.front());
  const MachineReport machine = measure_machine(options.threads);
  note(machine_text(machine));
  NIBBLE_ASSIGN(const std::vector<KernelBenchRow> rows, bench_kernels(options, machine));
  note_above_limit(rows);
  if (arguments.output == "json") return finish(kernel_bench_json(machine, rows));
  const bool csv = arguments.output == "csv";
  Table table({{"kernel"},
               {"m", Align::kRight},
               {"n", Align::kRight},
               {"k", Align::kRight},
               {"us", Align::kRight},
               {csv ? "of_limit" : "of limit", Align::kRight}});
  for (const KernelBenchRow& row : rows) {
    table.add({row.kernel, fmt::format("{}", row.m), fmt::format("{}", row.n),
               fmt::format("{}", row.k),
               csv ? fmt::format("{}", row.us) : fmt::format("{:.1f}", row.us),
               csv ? fmt::format("{}", row.of_limit) : percent(row.of_limit)});
  }
  return finish(csv ? table.csv() : table.markdown());
}

Result<int> run_bench(Arguments arguments) {
  set_voice(arguments.voice);
  if (arguments.voice.json) arguments.output = "json";
  NIBBLE_TRY(check(arguments.options));
  std::vector<int64_t> threads = arguments.threads;
  if (threads.empty()) threads = {0};
  // A test of no tokens is how llama-bench leaves a kind of test out.
  std::erase(arguments.bench.prompt, 0);
  std::erase(arguments.bench.generate, 0);
  if (arguments.bench.prompt.empty() && arguments.bench.generate.empty()) {
    return fail(ErrorCode::kUsage, "bench has nothing to measure: -p and -n are both 0.");
  }
  return arguments.model.empty() ? bench_all_kernels(arguments, threads)
                                 : bench_model(arguments, threads);
}

}  // namespace

Command bench_command() {
  const auto arguments = std::make_shared<Arguments>();
  Command command{"bench", "the speed of a model, or of the kernels"};
  command.about =
      "With a MODEL: prompt processing (pp) and text generation (tg) in tokens a second, mean and "
      "standard deviation. Without: each kernel. Both as a share of what this machine's measured "
      "read bandwidth and arithmetic peak allow. Lists are written with commas; 0 leaves a kind of "
      "test out.";
  command.examples = {
      "nibble bench smollm2 -p 512 -n 128 -t 2 -r 5",
      "nibble bench smollm2 -p 128,512 -n 0 -t 1,2 -o csv",
      "nibble bench --json",
  };
  Option prompt{"-p,--n-prompt", "N,N", "prompt lengths", &arguments->bench.prompt};
  Option generate{"-n,--n-gen", "N,N", "generated lengths", &arguments->bench.generate};
  Option threads{"-t,--threads", "N,N", "numbers of threads", &arguments->threads,
                 "the physical cores this process may use"};
  Option repetitions{"-r,--repetitions", "N", "of each test", &arguments->bench.repetitions};
  prompt.low = generate.low = 0;
  threads.low = repetitions.low = 1;
  threads.high = 4096;
  const auto of_models = [arguments] {
    return arguments->model.empty() ? "it is about a MODEL, and none was named" : "";
  };
  prompt.idle = generate.idle = repetitions.idle = of_models;
  Option output{
      "-o,--output",        "md|csv|json", "how the results are written", &arguments->output, "",
      {"md", "csv", "json"}};
  output.idle = [arguments] {
    return arguments->voice.json && arguments->output != "json" ? "--json replaces it" : "";
  };
  OptionGroup shared = without(model_options(arguments->options), "--threads");
  shared = idle(
      std::move(shared),
      {"--kv-cache-dtype", "--quantization", "--quantization-config", "--override", "--load-format",
       "--load-strategy", "--no-mmap", "--enforce-eager", "--tp", "--ep", "--strict"},
      of_models);
  shared = idle(std::move(shared), {"--ctx"}, [] { return "each test has its own length"; });
  Option model = model_argument(arguments->model);
  model.required = false;
  command.groups = {{"arguments", {model, prompt, generate, threads, repetitions, output}},
                    shared,
                    voice_options(arguments->voice)};
  command.run = [arguments] { return run_bench(*arguments); };
  return command;
}

}  // namespace nibble::cli
