#include "cli/report_json.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace nibble::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string document(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

// JSON has no NaN and no infinity: null stands for them.
Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

// A name where one kernel serves every number of tokens, else a list; null where none does.
Json kernel_json(const std::vector<KernelRange>& kernels) {
  if (kernels.empty()) return nullptr;
  if (kernels.size() == 1 && kernels[0].m_min <= 1 && kernels[0].m_max == 0) {
    return kernels[0].kernel;
  }
  Json list = Json::array();
  for (const KernelRange& range : kernels) {
    list.push_back({{"m", range_text(range)}, {"kernel", range.kernel}});
  }
  return list;
}

Json layer_json(const LayerPlan& layer) {
  Json refused = Json::array();
  for (const RefusedKernel& each : layer.refused) {
    refused.push_back({{"kernel", each.kernel}, {"why", each.why}});
  }
  return {{"name", layer.name},
          {"scheme", layer.scheme},
          {"format", layer.format},
          {"activation", layer.activation},
          {"packing", layer.packing},
          {"kernel", kernel_json(layer.kernels)},
          {"refused", refused},
          {"n", layer.n},
          {"k", layer.k},
          {"bytes_disk", layer.bytes_disk},
          {"bytes_memory", layer.bytes_memory}};
}

Json memory_json(const MemoryPlan& memory) {
  return {{"weights", memory.weights},
          {"other", memory.other},
          {"kv_per_token", memory.kv_per_token},
          {"kv_at_ctx", memory.kv_at_ctx},
          {"peak_load", memory.peak_load},
          {"available", memory.available},
          {"ctx", memory.ctx},
          {"model_ctx", memory.model_ctx},
          {"longest_ctx", memory.longest_ctx}};
}

Json machine_json(const MachineReport& machine) {
  Json peaks = Json::object();
  for (const auto& [unit, gops] : machine.peak_gops) peaks[unit] = number(gops);
  return {{"cpu", machine.cpu},
          {"threads", machine.threads},
          {"read_gb_s", number(machine.read_gb_s)},
          {"peak_gops", peaks}};
}

// Tokens a second; null where nothing was timed.
Json rate(int64_t tokens, double seconds) {
  return seconds > 0 ? Json(static_cast<double>(tokens) / seconds) : Json(nullptr);
}

}  // namespace

std::string range_text(const KernelRange& range) {
  if (range.m_max == 0) return fmt::format("{}-", range.m_min);
  if (range.m_max == range.m_min) return fmt::format("{}", range.m_min);
  return fmt::format("{}-{}", range.m_min, range.m_max);
}

std::string plan_json(const Plan& plan) {
  Json layers = Json::array();
  for (const LayerPlan& layer : plan.layers) layers.push_back(layer_json(layer));
  Json kv = Json::array();
  for (const KvPlan& each : plan.kv) {
    kv.push_back({{"layer", each.layer},
                  {"type", each.type},
                  {"k", each.k ? number(*each.k) : Json(nullptr)},
                  {"v", each.v ? number(*each.v) : Json(nullptr)},
                  {"k_source", each.k_source},
                  {"v_source", each.v_source}});
  }
  Json unused = Json::array();
  for (const UnusedTensor& each : plan.unused) {
    unused.push_back({{"name", each.name}, {"reason", each.reason}});
  }
  return document(
      {{"path", plan.path},
       {"architecture", plan.architecture},
       {"scheme", plan.scheme},
       {"claims", plan.claims},
       {"proves", plan.proves},
       {"hardware", plan.hardware},
       {"parameters", plan.parameters},
       {"file_bytes", plan.file_bytes},
       {"layers", layers},
       {"kv", kv},
       {"tensors",
        {{"total", plan.tensors_total}, {"used", plan.tensors_used}, {"unused", unused}}},
       {"memory", memory_json(plan.memory)},
       {"legal_tp", plan.legal_tp},
       {"notes", plan.notes},
       {"warnings", plan.warnings},
       {"problems", plan.problems}});
}

std::string version_json(const VersionInfo& version) {
  return document({{"version", version.version},
                   {"commit", version.commit},
                   {"compiler", version.compiler},
                   {"isas_compiled", version.isas_compiled},
                   {"isas_found", version.isas_found},
                   {"devices_compiled", version.devices_compiled},
                   {"devices_found", version.devices_found}});
}

std::string verify_json(const VerifyReport& report) {
  Json findings = Json::array();
  for (const Finding& each : report.findings) {
    findings.push_back({{"where", each.where}, {"what", each.what}});
  }
  return document({{"tensors", report.tensors},
                   {"bytes", report.bytes},
                   {"findings", findings},
                   {"notes", report.notes}});
}

std::string generated_json(const Generated& generated) {
  const Timings& t = generated.timings;
  return document(
      {{"text", generated.text},
       {"tokens", generated.tokens},
       {"finish", generated.finish},
       {"timings",
        {{"prompt_tokens", t.prompt_tokens},
         {"prompt_seconds", t.prompt_seconds},
         {"prompt_tokens_per_second", rate(t.prompt_tokens, t.prompt_seconds)},
         {"generated_tokens", t.generated_tokens},
         {"generate_seconds", t.generate_seconds},
         {"generated_tokens_per_second", rate(t.generated_tokens, t.generate_seconds)}}}});
}

std::string tokens_json(const std::vector<int32_t>& tokens) { return Json(tokens).dump() + "\n"; }

std::string eval_json(const EvalReport& report, int64_t ctx) {
  Json json = {
      {"ctx", ctx}, {"predictions", report.predictions}, {"perplexity", number(report.perplexity)}};
  if (report.has_reference) {
    Json worst = Json::array();
    for (const EvalPosition& each : report.worst) {
      worst.push_back({{"window", each.window},
                       {"position", each.position},
                       {"token", each.token},
                       {"nll", number(each.nll)},
                       {"kl", number(each.kl)}});
    }
    json["reference"] = {{"perplexity", number(report.reference_perplexity)},
                         {"mean_kl", number(report.mean_kl)},
                         {"top1_agreement", number(report.top1_agreement)},
                         {"worst", worst}};
  }
  return document(json);
}

std::string compare_json(const std::vector<CompareRow>& rows) {
  Json layers = Json::array();
  for (const CompareRow& row : rows) {
    layers.push_back({{"name", row.name},
                      {"weight_error", number(row.weight_error)},
                      {"activation_error", number(row.activation_error)}});
  }
  return document({{"layers", layers}});
}

std::string bench_json(const MachineReport& machine, const std::vector<BenchRow>& rows) {
  Json results = Json::array();
  for (const BenchRow& row : rows) {
    results.push_back({{"test", row.test},
                       {"tokens_per_second", number(row.tokens_per_second)},
                       {"stddev", number(row.stddev)},
                       {"threads", row.threads},
                       {"kernel", row.kernel},
                       {"of_limit", number(row.of_limit)}});
  }
  return document({{"machine", machine_json(machine)}, {"results", results}});
}

std::string kernel_bench_json(const MachineReport& machine,
                              const std::vector<KernelBenchRow>& rows) {
  Json results = Json::array();
  for (const KernelBenchRow& row : rows) {
    results.push_back({{"kernel", row.kernel},
                       {"m", row.m},
                       {"n", row.n},
                       {"k", row.k},
                       {"us", number(row.us)},
                       {"of_limit", number(row.of_limit)}});
  }
  return document({{"machine", machine_json(machine)}, {"results", results}});
}

std::string fit_json(const Plan& plan, const std::vector<FitRow>& rows, bool fits) {
  Json table = Json::array();
  for (const FitRow& row : rows) {
    table.push_back({{"ctx", row.ctx},
                     {"batch", row.batch},
                     {"kv", row.kv},
                     {"total", row.total},
                     {"fits", row.fits}});
  }
  Json json = memory_json(plan.memory);
  json["fits"] = fits;
  json["table"] = table;
  json["warnings"] = plan.warnings;
  json["problems"] = plan.problems;
  return document(json);
}

std::string weights_json(const WeightSummary& summary) {
  Json json = {{"module", summary.module},      {"shape", {summary.rows, summary.columns}},
               {"min", number(summary.min)},    {"max", number(summary.max)},
               {"mean", number(summary.mean)},  {"not_finite", summary.not_finite},
               {"histogram", summary.histogram}};
  if (!summary.out.empty()) json["out"] = summary.out;
  return document(json);
}

std::string logits_json(int64_t vocab_size, const std::vector<LogitsRow>& rows,
                        const std::string& out) {
  Json positions = Json::array();
  for (size_t i = 0; i < rows.size(); ++i) {
    Json top = Json::array();
    for (const TopToken& each : rows[i].top) {
      top.push_back({{"id", each.id}, {"piece", each.piece}, {"logit", number(each.logit)}});
    }
    positions.push_back({{"position", i}, {"token", rows[i].token}, {"top", top}});
  }
  Json json = {{"shape", {rows.size(), vocab_size}}, {"positions", positions}};
  if (!out.empty()) json["out"] = out;
  return document(json);
}

std::string messages_json(const std::vector<ChatMessage>& messages) {
  Json list = Json::array();
  for (const ChatMessage& each : messages) {
    list.push_back({{"role", each.role}, {"content", each.content}});
  }
  return document(list);
}

Result<MessagesFile> split_messages_file(const std::string& text, const std::string& path) {
  // ordered_json keeps the keys of a tool in the order the template will print them.
  const Json json = Json::parse(text, nullptr, false);
  MessagesFile file;
  if (json.is_array()) {
    file.messages = text;
  } else if (json.is_object() && json.contains("messages") && json["messages"].is_array()) {
    file.messages = json["messages"].dump();
    if (json.contains("tools") && !json["tools"].is_null()) file.tools = json["tools"].dump();
  } else {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: expected a JSON list of {{role, content}}, or {{\"messages\": "
                            "[...], \"tools\": [...]}}, found {}.",
                            path, json.is_discarded() ? "no valid JSON" : json.type_name()));
  }
  return file;
}

}  // namespace nibble::cli
