// Every JSON document the program prints, in one place: the shapes are a contract (docs/cli.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nibble/nibble.h"

namespace nibble::cli {

// Each is one document that ends with a newline. Bytes that are no UTF-8 become U+FFFD.
std::string plan_json(const Plan& plan);
std::string version_json(const VersionInfo& version);
std::string verify_json(const VerifyReport& report);
std::string generated_json(const Generated& generated);
std::string tokens_json(const std::vector<int32_t>& tokens);
std::string eval_json(const EvalReport& report, int64_t ctx);
std::string compare_json(const std::vector<CompareRow>& rows);
std::string bench_json(const MachineReport& machine, const std::vector<BenchRow>& rows);
std::string kernel_bench_json(const MachineReport& machine,
                              const std::vector<KernelBenchRow>& rows);

struct FitRow {
  int64_t ctx = 0, batch = 0;
  uint64_t kv = 0;     // bytes of the cache
  uint64_t total = 0;  // with weights and the rest
  bool fits = false;
};
std::string fit_json(const Plan& plan, const std::vector<FitRow>& rows, bool fits);

struct WeightSummary {
  std::string module;
  int64_t rows = 0, columns = 0;
  double min = 0, max = 0, mean = 0;  // of the finite values
  int64_t not_finite = 0;
  std::vector<int64_t> histogram;  // equal steps from min to max
  std::string out;                 // the file it was written to, if any
};
std::string weights_json(const WeightSummary& summary);

struct TopToken {
  int32_t id = 0;
  std::string piece;
  float logit = 0;
};
struct LogitsRow {
  int32_t token = 0;
  std::vector<TopToken> top;
};
std::string logits_json(int64_t vocab_size, const std::vector<LogitsRow>& rows,
                        const std::string& out);

// The list of {role, content} that a conversation is, for the chat template and for /save.
struct ChatMessage {
  std::string role, content;
};
std::string messages_json(const std::vector<ChatMessage>& messages);

// What stands in a --messages file: the list itself, or {"messages": [...], "tools": [...]}.
struct MessagesFile {
  std::string messages, tools;  // JSON; tools is "" when there are none
};
Result<MessagesFile> split_messages_file(const std::string& text, const std::string& path);

// "1-16"; "17-" where there is no upper end.
std::string range_text(const KernelRange& range);

}  // namespace nibble::cli
