#include "api/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <initializer_list>
#include <optional>
#include <sstream>
#include <utility>

#include "device/cuda.h"
#include "device/other_cards.h"

namespace nibble::api {
namespace {

template <class T>
using Words = std::initializer_list<std::pair<std::string_view, T>>;

// The value of a word; the error lists the words that are known.
template <class T>
Result<T> value_of(std::string_view option, std::string_view word, Words<T> words) {
  for (const auto& [known, value] : words) {
    if (known == word) return value;
  }
  std::string list;
  for (const auto& [known, value] : words) {
    if (!list.empty()) list += ", ";
    list += known;
  }
  return fail(ErrorCode::kUsage,
              fmt::format("{}: \"{}\" is not known; expected one of {}", option, word, list));
}

// The number of the card that --device names; nothing for the CPU. Error: it names neither.
Result<std::optional<int>> card_of(std::string_view device) {
  if (device == "auto" || device == "cpu") return std::optional<int>();
  if (device == "cuda") return std::optional<int>(0);
  const std::string_view number = device.substr(std::min<size_t>(device.size(), 5));
  const bool digits =
      !number.empty() && number.size() < 4 && number.find_first_not_of("0123456789") == number.npos;
  if (device.starts_with("cuda:") && digits) {
    return std::optional<int>(std::stoi(std::string(number)));
  }
  return fail(ErrorCode::kUsage,
              fmt::format("--device: \"{}\" is not known; expected cpu, cuda or cuda:N", device));
}

// How much memory of the chosen card is free.
Result<void> measure_card(const Options& options, ParsedOptions& out) {
  auto ok = device::ask_free_memory(out.card, *out.plan.hardware.gpu);
  if (ok) return ok;
  return fail(ok.error().code, fmt::format("--device {}: {}; --device cpu does without it",
                                           options.device, ok.error().message));
}

// Sets hardware.gpu when the model is to run on a card: the one that is asked for or, with auto and
// no wish that only a CPU can meet, the first supported one.
Result<void> resolve_device(const Options& options, bool for_run, ParsedOptions& out) {
  NIBBLE_ASSIGN(const std::optional<int> asked, card_of(options.device));
  const bool auto_cpu =
      options.device == "auto" && (options.isa != "auto" || options.kernel != "*");
  if (options.device == "cpu" || auto_cpu) return {};
  const auto cards = device::cuda_cards();
  if (const std::string trouble = device::cuda_library_trouble(); !trouble.empty()) {
    out.warnings.push_back("the cards of this machine were not looked for: " + trouble);
  }
  if (!asked) {
    if (!cards) return {};
    for (size_t i = 0; i < cards->size(); ++i) {
      if (!device::check_supported((*cards)[i])) continue;
      out.card = static_cast<int>(i);
      out.plan.hardware.gpu = (*cards)[i];
      return measure_card(options, out);
    }
    return {};
  }
  out.card = *asked;
  const bool there = cards && static_cast<size_t>(*asked) < cards->size();
  if (there) {
    out.plan.hardware.gpu = (*cards)[static_cast<size_t>(*asked)];
  } else if (!for_run && (!cards || cards->empty())) {
    out.plan.hardware.gpu = device::gpu_h200();
  } else if (!cards) {
    return fail(cards.error().code,
                fmt::format("--device {}: {}", options.device, cards.error().message));
  } else {
    return fail(ErrorCode::kUnsupported,
                cards->empty()
                    ? fmt::format("--device {}: this machine has no NVIDIA card{}", options.device,
                                  device::other_cards_clause("/"))
                    : fmt::format("--device {}: the last card of this machine is cuda:{}",
                                  options.device, cards->size() - 1));
  }
  if (auto ok = device::check_supported(*out.plan.hardware.gpu); !ok) {
    return fail(ok.error().code,
                fmt::format("--device {}: {}", options.device, ok.error().message));
  }
  return there ? measure_card(options, out) : Result<void>();
}

Result<void> resolve_isa(const Options& options, bool for_run, load::PlanOptions& plan) {
  using device::Isa;
  plan.hardware = device::detect_hardware();
  plan.policy.isa = plan.hardware.best_isa();
  if (options.isa == "auto") return {};
  NIBBLE_ASSIGN(Isa isa, value_of<Isa>("--isa", options.isa,
                                       {{"reference", Isa::kReference},
                                        {"avx2", Isa::kAvx2},
                                        {"avx512", Isa::kAvx512},
                                        {"amx", Isa::kAmx}}));
  plan.policy.isa = isa;
  if (plan.hardware.has(isa)) return {};
  if (for_run) {
    return fail(
        ErrorCode::kUnsupported,
        fmt::format("--isa {}: this machine ({}) does not have it; its best is {}", options.isa,
                    plan.hardware.cpu_model, device::name(plan.hardware.best_isa())));
  }
  const int64_t memory = plan.hardware.memory_bytes;
  plan.hardware = device::hardware_with(isa);
  plan.hardware.memory_bytes = memory;
  return {};
}

// Letters that two words have in common, in one piece.
size_t common_letters(std::string_view a, std::string_view b) {
  size_t longest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    while (i + longest < a.size() && b.find(a.substr(i, longest + 1)) != b.npos) ++longest;
  }
  return longest;
}

Result<void> check_kernel(const std::string& glob) {
  if (!kernels::kernel_names(glob).empty()) return {};
  std::vector<std::string_view> names = kernels::kernel_names("*");
  const size_t all = names.size();
  std::stable_sort(names.begin(), names.end(), [&](std::string_view a, std::string_view b) {
    return common_letters(a, glob) > common_letters(b, glob);
  });
  names.resize(std::min<size_t>(names.size(), 3));
  return fail(ErrorCode::kUnsupported,
              fmt::format("--kernel {}: none of the {} kernels has such a name; the nearest are {}",
                          glob.substr(0, 80), all, fmt::join(names, ", ")));
}

// --quantization-config: JSON, or the name of a file with it.
Result<std::optional<base::Json>> quantization_config_of(const std::string& option) {
  if (option.empty()) return std::optional<base::Json>();
  std::string text = option;
  std::string where = "--quantization-config";
  if (option.find('{') == option.npos) {
    where = option;
    std::ifstream file(option, std::ios::binary);
    std::ostringstream bytes;
    if (file) bytes << file.rdbuf();
    if (!file || !bytes) {
      return fail(ErrorCode::kNotFound,
                  fmt::format("--quantization-config {}: the file cannot be read", option));
    }
    text = bytes.str();
  }
  NIBBLE_ASSIGN(base::Json json, base::parse_json(text, where));
  if (!json.is_object()) {
    return fail(ErrorCode::kUsage,
                fmt::format("{}: expected an object, found {}", where, json.describe()));
  }
  return std::optional<base::Json>(std::move(json));
}

// Options that change nothing on the device, or of the files, that the others have chosen.
void warn_of_idle_options(const Options& options, ParsedOptions& out) {
  const auto idle = [&](std::string_view option, std::string_view why) {
    out.warnings.push_back(fmt::format("{} has no effect: {}", option, why));
  };
  if (const std::optional<device::Gpu>& gpu = out.plan.hardware.gpu; !gpu) {
    if (options.enforce_eager) idle("--enforce-eager", "only on a card are steps recorded");
  } else if (options.isa != "auto") {
    idle("--isa " + options.isa, "it is about CPUs, and this is for " + gpu->name);
  }
  if (out.dummy && (out.eager || out.prefetch)) {
    idle("--load-strategy " + options.load_strategy, "dummy weights are not read from files");
  }
}

Result<void> refuse_what_is_not_there(const Options& options, bool for_run) {
  for (const auto& [option, ranks] : {std::pair{"--tp", options.tp}, {"--ep", options.ep}}) {
    if (ranks < 1) {
      return fail(ErrorCode::kUsage,
                  fmt::format("{}: expected a number of ranks, found {}", option, ranks));
    }
  }
  if (options.ep != 1) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("--ep {}: this version knows no model with experts", options.ep));
  }
  if (options.tp != 1 && for_run) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("--tp {}: this version runs on one rank only", options.tp));
  }
  return {};
}

}  // namespace

Result<ParsedOptions> parse_options(const Options& options, bool for_run) {
  using kernels::ActivationChoice;
  using kernels::KvType;
  using kernels::Precision;
  ParsedOptions out;
  NIBBLE_TRY(resolve_isa(options, for_run, out.plan));
  NIBBLE_TRY(resolve_device(options, for_run, out));
  NIBBLE_TRY(refuse_what_is_not_there(options, for_run));
  NIBBLE_TRY(check_kernel(options.kernel));
  NIBBLE_ASSIGN(out.plan.quantization_config, quantization_config_of(options.quantization_config));
  out.plan.policy.kernel_glob = options.kernel;
  NIBBLE_ASSIGN(out.plan.policy.precision,
                value_of<Precision>("--precision", options.precision,
                                    {{"fast", Precision::kFast}, {"exact", Precision::kExact}}));
  NIBBLE_ASSIGN(out.plan.policy.activation,
                value_of<ActivationChoice>("--activation-dtype", options.activation_dtype,
                                           {{"auto", ActivationChoice::kAuto},
                                            {"float", ActivationChoice::kFloat},
                                            {"int8", ActivationChoice::kS8},
                                            {"fp8", ActivationChoice::kE4M3}}));
  NIBBLE_ASSIGN(const int dtype,
                value_of<int>("--dtype", options.dtype,
                              {{"auto", 32}, {"f32", 32}, {"bf16", 16}, {"f16", 16}}));
  if (dtype != 32) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("--dtype {}: activations between layers are f32; leave the option out",
                            options.dtype));
  }
  using Kv = std::optional<KvType>;
  NIBBLE_ASSIGN(out.plan.kv_type, value_of<Kv>("--kv-cache-dtype", options.kv_cache_dtype,
                                               {{"auto", std::nullopt},
                                                {"f32", KvType::kF32},
                                                {"bf16", KvType::kBf16},
                                                {"f16", KvType::kF16},
                                                {"fp8_e4m3", KvType::kE4M3},
                                                {"fp8_e5m2", KvType::kE5M2},
                                                {"int8", KvType::kS8}}));
  const bool exact = out.plan.policy.precision == Precision::kExact;
  out.plan.kv_left_alone = exact ? KvType::kF32 : KvType::kF16;
  out.plan.quantization = options.quantization;
  out.plan.overrides = options.overrides;
  if (options.threads < 0 || options.threads > 4096) {
    return fail(ErrorCode::kUsage,
                fmt::format("--threads: expected 1 to 4096, found {}", options.threads));
  }
  out.threads = options.threads > 0 ? options.threads : std::max(1, out.plan.hardware.cores);
  NIBBLE_ASSIGN(out.dummy, value_of<bool>("--load-format", options.load_format,
                                          {{"auto", false}, {"dummy", true}}));
  NIBBLE_ASSIGN(const int strategy, value_of<int>("--load-strategy", options.load_strategy,
                                                  {{"lazy", 0}, {"eager", 1}, {"prefetch", 2}}));
  out.enforce_eager = options.enforce_eager;
  out.eager = strategy == 1;
  out.prefetch = strategy == 2;
  constexpr int64_t kLongest = int64_t{1} << 30;
  if (options.ctx < 0 || options.ctx > kLongest) {
    return fail(ErrorCode::kUsage,
                fmt::format("--ctx: expected a number of tokens, found {}", options.ctx));
  }
  warn_of_idle_options(options, out);
  return out;
}

}  // namespace nibble::api
