// A stand-in for the library, so that the program itself can be tested without a model: ids are
// bytes (257 is BOS), an answer is "word0 word1 ...", and a model's name says how it behaves:
//
//   fake           well
//   fake-problem   its plan has a problem
//   fake-slow      an answer of 20 seconds, a verify of 2
//   fake-broken    does not open
//   fake-warns     has warnings and notes
#include <chrono>
#include <cmath>
#include <thread>

#include "nibble/nibble.h"

namespace nibble {
namespace {

constexpr int64_t kVocab = 258;
constexpr int32_t kBos = 257;
constexpr int64_t kCtx = 512;

Result<void> check_opens(const std::string& path, const Options& options) {
  if (path.rfind("fake", 0) != 0) {
    return fail(ErrorCode::kNotFound, path + ": there is no such file or folder.");
  }
  if (path == "fake-broken") {
    return fail(ErrorCode::kCorrupt, path + ": the header\nis \x1b[31mbroken.");
  }
  if (options.isa == "amx") {
    return fail(ErrorCode::kUnsupported, "--isa amx: this machine has no AMX.");
  }
  return {};
}

LayerPlan layer(int block, const std::string& module, int64_t n) {
  LayerPlan plan;
  plan.name = "model.layers." + std::to_string(block) + "." + module;
  plan.scheme = "gptq";
  plan.format = "s4g128";
  plan.activation = "float";
  plan.packing = "n32k4";
  plan.kernels = {{1, 16, "matmul_f32_s4g128_f32_avx2"}, {17, 0, "matmul_bf16_s4g128_f32_avx2"}};
  plan.refused = {{"matmul_f32_s4g128_f32_amx", "needs AMX; this machine has none"}};
  plan.n = n;
  plan.k = 64;
  plan.bytes_disk = 1000;
  plan.bytes_memory = 1100;
  return plan;
}

Plan fake_plan(const std::string& path) {
  Plan plan;
  plan.path = path;
  plan.architecture = "LlamaForCausalLM";
  plan.scheme = "gptq";
  plan.claims = "gptq, 4 bit, groups of 128";
  plan.proves = "gptq, 4 bit, groups of 128";
  plan.hardware = "a fake machine";
  plan.parameters = 134'500'000;
  plan.file_bytes = 98'000'000;
  for (int block = 0; block < 3; ++block) {
    plan.layers.push_back(layer(block, "self_attn.q_proj", 64));
    plan.layers.push_back(layer(block, "mlp.down_proj", 128));
    plan.kv.push_back(
        {"model.layers." + std::to_string(block), "f16", 1.0, 1.0, "default", "default"});
  }
  LayerPlan head;
  head.name = "lm_head";
  head.scheme = "unquantized";
  head.format = "bf16";
  head.activation = "float";
  head.kernels = {{1, 0, "matmul_f32_bf16_f32_avx2"}};
  plan.layers.push_back(head);
  plan.tensors_total = 20;
  plan.tensors_used = 19;
  plan.unused = {{"model.layers.0.self_attn.rotary_emb.inv_freq", "computed from the config"}};
  plan.memory = {1000, 200, 10, 5120, 3000, 1'000'000, 512, 2048, 2048};
  plan.legal_tp = {1, 2, 4};
  if (path == "fake-problem") plan.problems = {"lm_head: no kernel takes it"};
  if (path == "fake-warns") {
    plan.warnings = {"config.json: the key \"oddity\" is not known"};
    plan.notes = {"tied embeddings"};
  }
  return plan;
}

}  // namespace

Result<Plan> inspect(const std::string& path, const Options& options) {
  NIBBLE_TRY(check_opens(path, options));
  return fake_plan(path);
}

Result<VerifyReport> verify(const std::string& path, const Options& options,
                            const Progress& progress) {
  NIBBLE_TRY(check_opens(path, options));
  for (uint64_t i = 1; i <= 20; ++i) {
    if (path == "fake-slow") std::this_thread::sleep_for(std::chrono::milliseconds(100));
    if (progress && !progress("reading", i, 20)) return fail(ErrorCode::kCancelled, "cancelled");
  }
  VerifyReport report{20, 98'000'000, {}, {}};
  if (path == "fake-problem") {
    report.findings = {{"model.safetensors, a.scales", "holds 3 NaN"}};
  }
  return report;
}

Result<Matrix> weights(const std::string& path, const std::string& module, const Options& options) {
  NIBBLE_TRY(check_opens(path, options));
  if (module != "lm_head") {
    return fail(ErrorCode::kNotFound, path + ": there is no module \"" + module + "\".");
  }
  return Matrix{2, 3, {-1.0F, 0.5F, 0.25F, 1.0F, 0.0F, 0.125F}};
}

struct Tokenizer::Impl {};
Tokenizer::Tokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::load(const std::string& path, const Options& options) {
  NIBBLE_TRY(check_opens(path, options));
  return Tokenizer(std::make_shared<Impl>());
}
Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text, bool add_special) const {
  std::vector<int32_t> ids;
  if (add_special) ids.push_back(kBos);
  for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
  return ids;
}
std::string Tokenizer::decode(std::span<const int32_t> ids, bool) const {
  std::string text;
  for (const int32_t id : ids) text += piece(id);
  return text;
}
std::string Tokenizer::piece(int32_t id) const {
  return id == kBos ? "<s>" : std::string(1, static_cast<char>(id));
}
int64_t Tokenizer::vocab_size() const { return kVocab; }
Result<std::string> Tokenizer::render_chat(std::string_view messages_json,
                                           std::string_view tools_json, bool) const {
  return std::string(messages_json) + std::string(tools_json);
}
Result<std::vector<int32_t>> Tokenizer::encode_rendered(std::string_view text) const {
  return encode(text, false);
}

struct Model::Impl {
  Plan plan;
  Tokenizer tokenizer;
};
Model::Model(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;
Model::~Model() = default;

Result<Model> Model::load(const std::string& path, const Options& options,
                          const Progress& progress) {
  NIBBLE_ASSIGN(Tokenizer tokenizer, Tokenizer::load(path, options));
  if (progress && !progress("loading", 98, 98)) return fail(ErrorCode::kCancelled, "cancelled");
  return Model(std::make_shared<Impl>(Impl{fake_plan(path), std::move(tokenizer)}));
}
const Plan& Model::plan() const { return impl_->plan; }
bool Model::has_tokenizer() const { return impl_->plan.path != "fake-without-tokenizer"; }
const Tokenizer& Model::tokenizer() const { return impl_->tokenizer; }
std::string Model::tokenizer_error() const { return ""; }
int64_t Model::vocab_size() const { return kVocab; }
int64_t Model::ctx() const { return kCtx; }
std::vector<int32_t> Model::eos_ids() const { return {}; }
std::vector<std::string> Model::load_notes() const { return {}; }

struct Session::Impl {
  bool slow, has_text;
  std::vector<int32_t> tokens;
};
Session::Session(const Model& model)
    : impl_(std::make_unique<Impl>(
          Impl{model.plan().path == "fake-slow", model.has_tokenizer(), {}})) {}
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;
Session::~Session() = default;

Result<Generated> Session::generate(std::span<const int32_t> prompt, const GenerateOptions& options,
                                    const OnText& on_text, const Progress& progress) {
  impl_->tokens.insert(impl_->tokens.end(), prompt.begin(), prompt.end());
  if (progress && !progress("prompt", prompt.size(), prompt.size())) {
    return fail(ErrorCode::kCancelled, "cancelled");
  }
  Generated generated;
  generated.finish = "stop";
  generated.timings.prompt_tokens = static_cast<int64_t>(prompt.size());
  generated.timings.prompt_seconds = 0.5;
  generated.timings.generate_seconds = 2;
  const int64_t count = options.max_tokens >= 0 ? options.max_tokens : impl_->slow ? 2000 : 5;
  for (int64_t i = 0; i < count; ++i) {
    if (impl_->slow) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    const std::string word = (i == 0 ? "word" : " word") + std::to_string(i);
    if (impl_->has_text) generated.text += word;
    generated.tokens.push_back(static_cast<int32_t>(i));
    impl_->tokens.push_back(static_cast<int32_t>(i));
    if (impl_->has_text && on_text && !on_text(word)) {
      generated.finish = "cancelled";
      break;
    }
  }
  for (const std::string& stop : options.stop) generated.text += "|" + stop;
  generated.timings.generated_tokens = static_cast<int64_t>(generated.tokens.size());
  return generated;
}

Result<void> Session::logits(std::span<const int32_t> ids, const OnRow& on_row) {
  std::vector<float> row(kVocab);
  for (size_t i = 0; i < ids.size(); ++i) {
    for (size_t j = 0; j < row.size(); ++j) row[j] = -std::abs(static_cast<float>(j) - ids[i]);
    if (!on_row(static_cast<int64_t>(i), row)) break;
  }
  return {};
}
Result<Matrix> Session::logits(std::span<const int32_t>) { return Matrix{}; }
int64_t Session::position() const { return static_cast<int64_t>(impl_->tokens.size()); }
void Session::truncate(int64_t tokens) { impl_->tokens.resize(static_cast<size_t>(tokens)); }
const std::vector<int32_t>& Session::tokens() const { return impl_->tokens; }

Result<EvalReport> evaluate(const Model&, std::string_view text, int64_t ctx,
                            const Model* reference, const Progress&) {
  EvalReport report;
  report.predictions = static_cast<int64_t>(text.size()) + ctx;
  report.perplexity = 12.5;
  report.has_reference = reference != nullptr;
  report.reference_perplexity = 12.25;
  report.mean_kl = 1e-4;
  report.top1_agreement = 0.99;
  report.worst = {{1, 2, 65, 3.5, 0.25}};
  return report;
}

Result<std::vector<CompareRow>> compare(const Model&, const Model&, std::span<const int32_t>,
                                        const Progress&) {
  return std::vector<CompareRow>{{"good", 0, 0.001}, {"bad", 0.5, 0.1}, {"broken", NAN, 0}};
}

MachineReport measure_machine(int threads) {
  return {"a fake CPU", threads == 0 ? 2 : threads, 20.5, {{"f32", 100}, {"s8", 400}}};
}
MachineReport measure_machine(const Model&) { return measure_machine(0); }
Result<std::vector<BenchRow>> bench(const Model&, const BenchOptions& options,
                                    const MachineReport& machine) {
  std::vector<BenchRow> rows;
  for (const int64_t n : options.prompt) {
    rows.push_back(
        {"pp" + std::to_string(n), 300.5, 1.25, machine.threads, "kernel_a", n == 7 ? 1.5 : 0.5});
  }
  for (const int64_t n : options.generate) {
    rows.push_back({"tg" + std::to_string(n), 100.25, 0.5, machine.threads, "kernel_b", 0.75});
  }
  return rows;
}
Result<std::vector<KernelBenchRow>> bench_kernels(const Options&, const MachineReport&) {
  return std::vector<KernelBenchRow>{{"kernel_a", 1, 64, 128, 12.5, 0.5}};
}

VersionInfo version() {
  return {"0.1.0", "0123456", "a fake compiler", {"reference", "avx2"}, {"reference"},
          {"cpu"}, {"cpu"}};
}
std::optional<std::string> find_packaged_model(std::string_view name) {
  if (name == "packaged") return "fake";
  return std::nullopt;
}
void set_log(std::function<void(LogLevel, std::string_view)>) {}

}  // namespace nibble
