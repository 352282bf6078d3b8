// nibble: open a quantized checkpoint as it was downloaded, see what every layer holds and which
// kernel runs it, and run it.
//
//   nibble::Options options;                              // defaults: this CPU, fast
//   auto plan = nibble::inspect("SmolLM2.gguf", options); // headers only
//   auto model = nibble::Model::load("SmolLM2.gguf", options);
//   if (!model) { report(model.error().message); return; }
//   nibble::Session session(*model);
//   auto done = session.generate(*model->tokenizer().encode("The capital of France is"),
//                                {.max_tokens = 20},
//                                [](std::string_view text) { show(text); return true; });
//
// Nothing here prints, exits or throws. Every failure is a Result whose error is one sentence.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nibble/result.h"

#if defined(__GNUC__)
#define NIBBLE_API __attribute__((visibility("default")))
#else
#define NIBBLE_API
#endif

namespace nibble {

// ---------------------------------------------------------------------------------------------
// What to open and how to run it: the options that the commands share (docs/cli.md). The strings
// are the words a user types; a word that is not known is an error that lists the known ones.

struct Options {
  std::string device = "auto";            // auto | cpu | cuda | cuda:N
  std::string isa = "auto";               // auto | reference | avx2 | avx512 | amx
  std::string kernel = "*";               // a glob over kernel names
  std::string precision = "fast";         // fast | exact
  std::string dtype = "auto";             // auto | bf16 | f16 | f32
  std::string activation_dtype = "auto";  // auto | float | fp8 | int8
  std::string kv_cache_dtype = "auto";    // auto | f32 | bf16 | f16 | fp8_e4m3 | fp8_e5m2 | int8
  std::string quantization;               // a scheme's name; "" is what the checkpoint says
  std::string quantization_config;        // JSON text or a file's name
  std::vector<std::pair<std::string, std::string>> overrides;  // KEY=VALUE of config.json
  std::string load_format = "auto";                            // auto | dummy
  std::string load_strategy = "lazy";                          // lazy | eager | prefetch
  bool mmap = true;
  int threads = 0;      // 0: the physical cores this process may use
  int64_t ctx = 0;      // tokens; 0: the model's own, cut to what fits
  int tp = 1;           // ranks that each layer is cut for
  int ep = 1;           // ranks that experts are spread over
  bool strict = false;  // warnings become errors
  bool enforce_eager = false;
};

// ---------------------------------------------------------------------------------------------
// inspect: headers only, no weights read.

struct RefusedKernel {
  std::string kernel;
  std::string why;
};

// For M tokens in [m_min, m_max] (0: no upper end) `kernel` runs.
struct KernelRange {
  int64_t m_min = 1;
  int64_t m_max = 0;
  std::string kernel;
};

struct LayerPlan {
  std::string name;        // the module's name in the checkpoint
  std::string scheme;      // of this layer: "unquantized" where the checkpoint leaves it alone
  std::string format;      // "u4g128+zp"
  std::string activation;  // "float", "s8 token", "e4m3 tensor static"
  std::string packing;
  std::vector<KernelRange> kernels;
  std::vector<RefusedKernel> refused;
  int64_t n = 0, k = 0;  // outputs, inputs
  uint64_t bytes_disk = 0;
  uint64_t bytes_memory = 0;
};

struct KvPlan {
  std::string layer;  // the attention module
  std::string type;   // the cache's: "f16", "fp8_e4m3"
  // The scales, and where each comes from: a tensor (which a cache of floats does not use),
  // "default", or "each token" when they are computed. Nothing: one for each head or token.
  std::optional<double> k, v;
  std::string k_source, v_source;
};

struct UnusedTensor {
  std::string name;
  std::string reason;
};

struct MemoryPlan {      // bytes
  uint64_t weights = 0;  // packed
  uint64_t other = 0;    // embeddings, norms, scratch
  uint64_t kv_per_token = 0;
  uint64_t kv_at_ctx = 0;   // for `ctx` tokens and one sequence
  uint64_t peak_load = 0;   // the highest during loading
  uint64_t available = 0;   // of the machine that was asked about
  int64_t ctx = 0;          // context used for kv_at_ctx
  int64_t model_ctx = 0;    // what the model was trained for
  int64_t longest_ctx = 0;  // that fits
};

struct Plan {
  std::string path;
  std::string architecture;  // "LlamaForCausalLM"
  std::string scheme;        // "gptq"; "unquantized"
  std::string claims;        // what the checkpoint claims, in a line
  std::string proves;        // what its tensors prove, in a line
  std::string hardware;      // the machine this plan is for, in a line
  int64_t parameters = 0;
  uint64_t file_bytes = 0;
  std::vector<LayerPlan> layers;
  std::vector<KvPlan> kv;
  int64_t tensors_total = 0;
  int64_t tensors_used = 0;
  std::vector<UnusedTensor> unused;
  MemoryPlan memory;
  std::vector<int> legal_tp;  // numbers of ranks the layers can be cut for
  std::vector<std::string> notes;
  std::vector<std::string> warnings;
  std::vector<std::string> problems;  // it runs exactly when this is empty
};

// The plan for the machine (or the device and ISA named in the options). An error only when there
// is no plan to show; what keeps a readable checkpoint from running stands in Plan::problems.
NIBBLE_API Result<Plan> inspect(const std::string& path, const Options& options);

// ---------------------------------------------------------------------------------------------
// verify: reads every byte.

struct Finding {
  std::string where;  // file and tensor
  std::string what;
};
struct VerifyReport {
  int64_t tensors = 0;
  uint64_t bytes = 0;
  std::vector<Finding> findings;  // empty: nothing wrong
  std::vector<std::string> notes;
};

// Progress of long work: bytes done of `total`. Return false to cancel.
using Progress = std::function<bool(std::string_view what, uint64_t done, uint64_t total)>;

NIBBLE_API Result<VerifyReport> verify(const std::string& path, const Options& options,
                                       const Progress& progress = {});

// One module's weight exactly as the engine uses it, float32 (rows, columns), in the checkpoint's
// own order.
struct Matrix {
  int64_t rows = 0, columns = 0;
  std::vector<float> values;  // row-major
};
NIBBLE_API Result<Matrix> weights(const std::string& path, const std::string& module,
                                  const Options& options);

// ---------------------------------------------------------------------------------------------
// Text without weights.

class NIBBLE_API Tokenizer {
 public:
  static Result<Tokenizer> load(const std::string& path, const Options& options = {});
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // As transformers' encode: with special tokens as the tokenizer adds them, or without.
  Result<std::vector<int32_t>> encode(std::string_view text, bool add_special = true) const;
  std::string decode(std::span<const int32_t> ids, bool skip_special = true) const;
  std::string piece(int32_t id) const;  // the vocabulary's own spelling
  int64_t vocab_size() const;

  // Renders the chat template over a JSON list of {role, content}; `tools_json` may be "".
  Result<std::string> render_chat(std::string_view messages_json, std::string_view tools_json = "",
                                  bool add_generation_prompt = true) const;
  // Ids of a rendered chat text: control tokens in it are recognised, nothing is added.
  Result<std::vector<int32_t>> encode_rendered(std::string_view text) const;

  struct Impl;
  const Impl& impl() const { return *impl_; }

 private:
  friend class Model;
  explicit Tokenizer(std::shared_ptr<const Impl> impl);
  std::shared_ptr<const Impl> impl_;
};

// ---------------------------------------------------------------------------------------------
// A loaded model.

class NIBBLE_API Model {
 public:
  static Result<Model> load(const std::string& path, const Options& options,
                            const Progress& progress = {});
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;
  ~Model();

  const Plan& plan() const;
  bool has_tokenizer() const;
  // Precondition: has_tokenizer(). Without one, tokenizer_error() says why.
  const Tokenizer& tokenizer() const;
  std::string tokenizer_error() const;
  int64_t vocab_size() const;
  int64_t ctx() const;  // tokens a session may hold
  std::vector<int32_t> eos_ids() const;
  std::vector<std::string> load_notes() const;

  struct Impl;
  const std::shared_ptr<Impl>& shared() const { return impl_; }  // for the library itself

 private:
  explicit Model(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

struct GenerateOptions {
  int64_t max_tokens = -1;    // -1: until the model stops or the context ends
  float temperature = -1;     // -1: the checkpoint's generation_config, else 0.8; 0 is greedy
  int top_k = -1;             // -1: as above, else 40; 0 switches it off
  float top_p = -1;           // -1: as above, else 0.95; 1 switches it off
  float min_p = -1;           // -1: 0
  float repeat_penalty = -1;  // -1: as above, else 1
  uint64_t seed = 0;
  std::vector<std::string> stop;  // ends before the first of them
  bool ignore_eos = false;
};

struct Timings {
  int64_t prompt_tokens = 0;
  int64_t generated_tokens = 0;
  double prompt_seconds = 0;    // until the first logits
  double generate_seconds = 0;  // from there to the end
};

struct Generated {
  std::string text;
  std::vector<int32_t> tokens;
  std::string finish;  // "stop" | "stop string" | "length" | "context" | "cancelled"
  Timings timings;
};

// A conversation's state: the tokens so far and their keys and values.
class NIBBLE_API Session {
 public:
  explicit Session(const Model& model);
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;
  ~Session();

  // Called with each piece of text as it becomes final; return false to stop.
  using OnText = std::function<bool(std::string_view text)>;

  // Appends the ids to the context and generates. Long prompts report progress in tokens.
  Result<Generated> generate(std::span<const int32_t> prompt, const GenerateOptions& options,
                             const OnText& on_text = {}, const Progress& progress = {});

  // Appends the ids and returns the logits of each of them: (ids, vocab) row-major.
  Result<Matrix> logits(std::span<const int32_t> ids);

  // The same without keeping them all: called with each position's row.
  using OnRow = std::function<bool(int64_t position, std::span<const float> row)>;
  Result<void> logits(std::span<const int32_t> ids, const OnRow& on_row);

  int64_t position() const;       // tokens in the context
  void truncate(int64_t tokens);  // forgets everything after the first `tokens`
  const std::vector<int32_t>& tokens() const;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

// ---------------------------------------------------------------------------------------------
// eval, compare, bench.

struct EvalPosition {
  int64_t window = 0, position = 0;
  int32_t token = 0;
  double nll = 0, kl = 0;
};
struct EvalReport {
  int64_t predictions = 0;
  double perplexity = 0;
  bool has_reference = false;
  double reference_perplexity = 0;
  double mean_kl = 0;  // KL(reference || model), nats
  double top1_agreement = 0;
  std::vector<EvalPosition> worst;  // by KL, at most 10
};
NIBBLE_API Result<EvalReport> evaluate(const Model& model, std::string_view text, int64_t ctx,
                                       const Model* reference = nullptr,
                                       const Progress& progress = {});

struct CompareRow {
  std::string name;
  double weight_error = 0;      // ||a - b|| / ||b||
  double activation_error = 0;  // of the layer's output, on the same tokens
};
NIBBLE_API Result<std::vector<CompareRow>> compare(const Model& left, const Model& right,
                                                   std::span<const int32_t> tokens,
                                                   const Progress& progress = {});

struct MachineReport {
  std::string cpu;  // or the card
  int threads = 0;
  double read_gb_s = 0;
  std::vector<std::pair<std::string, double>> peak_gops;  // by unit: "f32", "s8", "bf16"
};
struct BenchOptions {
  std::vector<int64_t> prompt = {512};
  std::vector<int64_t> generate = {128};
  int repetitions = 5;
};
struct BenchRow {
  std::string test;  // "pp512", "tg128"
  double tokens_per_second = 0;
  double stddev = 0;
  int threads = 0;
  std::string kernel;
  double of_limit = 0;  // of what this machine's measured bandwidth or peak allows
};
struct KernelBenchRow {
  std::string kernel;
  int64_t m = 0, n = 0, k = 0;
  double us = 0;
  double of_limit = 0;
};
// Measured in this call: random data, best of several.
NIBBLE_API MachineReport measure_machine(int threads);
// Of what the model runs on: this CPU, or the card.
NIBBLE_API MachineReport measure_machine(const Model& model);
NIBBLE_API Result<std::vector<BenchRow>> bench(const Model& model, const BenchOptions& options,
                                               const MachineReport& machine);
NIBBLE_API Result<std::vector<KernelBenchRow>> bench_kernels(const Options& options,
                                                             const MachineReport& machine);

// ---------------------------------------------------------------------------------------------

struct VersionInfo {
  std::string version, commit, compiler;
  std::vector<std::string> isas_compiled, isas_found;
  std::vector<std::string> devices_compiled, devices_found;
};
NIBBLE_API VersionInfo version();

// Where packaged models lie that a user may call by name ("smollm2"); nullopt when there is none of
// that name. The quick start fetches them to $NIBBLE_MODELS, else ~/.cache/nibble/models.
NIBBLE_API std::optional<std::string> find_packaged_model(std::string_view name);

// Replaces the sink for what the library wants to say (default: nothing is said).
enum class LogLevel { kDebug, kInfo, kWarning };
NIBBLE_API void set_log(std::function<void(LogLevel, std::string_view)> sink);

}  // namespace nibble
