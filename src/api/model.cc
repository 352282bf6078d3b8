// nibble::Model and nibble::Session.
#include "api/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "api/inspect.h"
#include "base/check.h"
#include "device/cuda.h"
#include "device/threads_ran_out.h"
#include "generate/generate.h"
#include "kernels/cuda/abi.h"
#include "load/fill.h"

namespace nibble {
namespace {

using checkpoint::Checkpoint;

std::string joined(const std::vector<std::string>& lines) {
  constexpr size_t kShown = 5;
  std::string out;
  for (size_t i = 0; i < lines.size() && i < kShown; ++i) out += (i == 0 ? "" : "; ") + lines[i];
  if (lines.size() > kShown) out += fmt::format("; and {} more", lines.size() - kShown);
  return out;
}

// The context: what was asked for, else the model's own, cut to what fits in memory.
Result<int64_t> context_of(const Plan& plan, int64_t asked, std::vector<std::string>& notes) {
  const MemoryPlan& memory = plan.memory;
  if (asked > 0) return asked;
  if (memory.longest_ctx < 1) {
    return fail(ErrorCode::kOutOfMemory,
                fmt::format("no memory is left for a context: the weights take {} MiB of {} MiB",
                            memory.weights >> 20, memory.available >> 20));
  }
  if (memory.longest_ctx < memory.model_ctx) {
    notes.push_back(fmt::format("context cut from {} to the {} tokens that fit in memory",
                                memory.model_ctx, memory.longest_ctx));
  }
  return memory.longest_ctx;
}

// Threads, and the card that was asked for, ready to run.
Result<std::unique_ptr<device::Stream>> make_stream(const api::ParsedOptions& options) {
  if (!options.plan.hardware.gpu) return std::make_unique<device::Stream>(options.threads);
  NIBBLE_ASSIGN(std::shared_ptr<device::Cuda> cuda, device::Cuda::open(options.card));
  if (const char* missing = cuda->kernels().missing(cuda->context()); missing != nullptr) {
    return fail(ErrorCode::kUnsupported, fmt::format("{}: {}", cuda->gpu().name, missing));
  }
  cuda->set_records(!options.enforce_eager);
  return std::make_unique<device::Stream>(options.threads, std::move(cuda));
}

Result<std::shared_ptr<Model::Impl>> load_impl(const std::string& path, const Options& options,
                                               const Progress& progress) {
  NIBBLE_ASSIGN(api::ParsedOptions parsed, api::parse_options(options, true));
  NIBBLE_ASSIGN(Checkpoint opened, Checkpoint::open(path, {.mmap = options.mmap && !parsed.eager}));
  auto impl = std::make_shared<Model::Impl>(Model::Impl{.checkpoint = std::move(opened)});
  NIBBLE_ASSIGN(load::LoadPlan plan, load::make_plan(impl->checkpoint, parsed.plan));
  impl->plan = api::to_plan(path, impl->checkpoint, plan, parsed, options.ctx);
  if (options.strict && !impl->plan.warnings.empty()) {
    return fail(ErrorCode::kUnsupported, "--strict: " + joined(impl->plan.warnings));
  }
  if (!impl->plan.problems.empty()) {
    return fail(ErrorCode::kCorrupt, joined(impl->plan.problems));
  }
  NIBBLE_ASSIGN(impl->ctx, context_of(impl->plan, options.ctx, impl->notes));
  NIBBLE_ASSIGN(impl->stream, make_stream(parsed));
  impl->ops = kernels::ops_for(parsed.plan.policy.isa);

  if (auto tokenizer = api::load_tokenizer(impl->checkpoint); tokenizer) {
    impl->tokenizer_impl = std::move(*tokenizer);
  } else {
    impl->tokenizer_error = tokenizer.error().message;
  }
  NIBBLE_ASSIGN(impl->eos, api::eos_ids(impl->checkpoint, plan.config, impl->tokenizer_impl.get()));

  load::FillProgress on_module;
  if (progress) {
    on_module = [&progress](std::string_view module, uint64_t done, uint64_t total) {
      return progress(module, done, total);
    };
  }
  NIBBLE_ASSIGN(impl->decoder, load::fill(impl->checkpoint, plan,
                                          {.dummy = parsed.dummy, .prefetch = parsed.prefetch},
                                          *impl->stream, on_module));
  impl->decoder.exact = parsed.plan.policy.precision == kernels::Precision::kExact;
  impl->options = std::move(parsed);
  return impl;
}

}  // namespace

Model::Model(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {
  if (impl_->tokenizer_impl) {
    impl_->tokenizer.reset(new Tokenizer(impl_->tokenizer_impl));
  }
}
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;
Model::~Model() = default;

Result<Model> Model::load(const std::string& path, const Options& options,
                          const Progress& progress) {
  try {
    NIBBLE_ASSIGN(std::shared_ptr<Impl> impl, load_impl(path, options, progress));
    return Model(std::move(impl));
  } catch (const device::CardMemoryRanOut& error) {
    return fail(ErrorCode::kOutOfMemory, fmt::format("{}: {}", path, error.what()));
  } catch (const device::ThreadsRanOut& error) {
    return fail(ErrorCode::kOutOfMemory, error.what());
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kOutOfMemory, fmt::format("{}: the memory ran out while loading", path));
  }
}

const Plan& Model::plan() const { return impl_->plan; }
bool Model::has_tokenizer() const { return impl_->tokenizer != nullptr; }
const Tokenizer& Model::tokenizer() const {
  NIBBLE_CHECK(has_tokenizer());
  return *impl_->tokenizer;
}
std::string Model::tokenizer_error() const { return impl_->tokenizer_error; }
int64_t Model::vocab_size() const { return impl_->decoder.spec.vocab; }
int64_t Model::ctx() const { return impl_->ctx; }
std::vector<int32_t> Model::eos_ids() const { return impl_->eos; }
std::vector<std::string> Model::load_notes() const { return impl_->notes; }

struct Session::Impl {
  std::shared_ptr<Model::Impl> model;
  std::optional<generate::Sequence> sequence;
  std::optional<Error> error;  // of creation, told at first use

  Result<generate::Sequence*> ready() {
    if (error) return fail(*error);
    return &*sequence;
  }
};

Session::Session(const Model& model) : impl_(std::make_unique<Impl>()) {
  impl_->model = model.shared();
  Model::Impl& m = *impl_->model;
  auto sequence = generate::Sequence::create(m.decoder, *m.stream, m.ops, m.ctx);
  if (sequence) {
    impl_->sequence.emplace(std::move(*sequence));
  } else {
    impl_->error = std::move(sequence).error();
  }
}
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;
Session::~Session() = default;

namespace {

// Explicit options win; then what the checkpoint's generation_config.json says; then nibble's own.
template <class T>
T pick(T asked, const base::Json* config, std::string_view key, T fallback) {
  if (asked >= 0) return asked;
  const base::Json* v = config == nullptr ? nullptr : config->find_set(key);
  if (v == nullptr || !v->is_number()) return fallback;
  constexpr double kMost = 1e9;  // what makes no sense is refused by kernels::check
  return static_cast<T>(std::clamp(v->as_double(), -kMost, kMost));
}

generate::GenerateSettings settings_of(const Model::Impl& model, const GenerateOptions& o) {
  const base::Json* config = model.checkpoint.generation_config();
  generate::GenerateSettings out;
  out.max_tokens = o.max_tokens;
  out.sample.temperature = pick(o.temperature, config, "temperature", 0.8f);
  const base::Json* do_sample = config == nullptr ? nullptr : config->find_set("do_sample");
  if (o.temperature < 0 && do_sample != nullptr && do_sample->is_bool() && !do_sample->as_bool()) {
    out.sample.temperature = 0;
  }
  out.sample.top_k = api::top_k_said(pick(o.top_k, config, "top_k", 40));
  out.sample.top_p = pick(o.top_p, config, "top_p", 0.95f);
  out.sample.min_p = pick(o.min_p, config, "min_p", 0.0f);
  out.sample.repeat_penalty = pick(o.repeat_penalty, config, "repetition_penalty", 1.0f);
  out.sample.seed = o.seed;
  if (!o.ignore_eos) out.eos = model.eos;
  out.stop = o.stop;
  return out;
}

// A value that makes no sense is the caller's, or else generation_config.json's.
Result<void> check_sampling(const kernels::SampleSettings& sample, const GenerateOptions& o) {
  auto ok = kernels::check(sample);
  if (ok) return ok;
  kernels::SampleSettings asked;
  if (o.temperature >= 0) asked.temperature = o.temperature;
  if (o.top_k >= 0) asked.top_k = o.top_k;
  if (o.top_p >= 0) asked.top_p = o.top_p;
  if (o.min_p >= 0) asked.min_p = o.min_p;
  if (o.repeat_penalty >= 0) asked.repeat_penalty = o.repeat_penalty;
  NIBBLE_TRY(kernels::check(asked));
  return fail(ErrorCode::kCorrupt, fmt::format("generation_config.json: {}; the option replaces it",
                                               ok.error().message));
}

const char* word(generate::Finish finish) {
  switch (finish) {
    case generate::Finish::kEos:
      return "stop";
    case generate::Finish::kStopString:
      return "stop string";
    case generate::Finish::kLength:
      return "length";
    case generate::Finish::kContext:
      return "context";
    case generate::Finish::kCancelled:
      return "cancelled";
  }
  return "";
}

constexpr const char* kShorter = "a shorter context (--ctx) needs less";

}  // namespace

Result<Generated> Session::generate(std::span<const int32_t> prompt, const GenerateOptions& options,
                                    const OnText& on_text, const Progress& progress) try {
  NIBBLE_ASSIGN(generate::Sequence * sequence, impl_->ready());
  const Model::Impl& model = *impl_->model;
  generate::PromptProgress on_batch;
  if (progress) {
    on_batch = [&progress](int64_t done, int64_t total) {
      return progress("prompt", static_cast<uint64_t>(done), static_cast<uint64_t>(total));
    };
  }
  const generate::GenerateSettings settings = settings_of(model, options);
  NIBBLE_TRY(check_sampling(settings.sample, options));
  NIBBLE_ASSIGN(generate::Generation made,
                generate::generate(
                    *sequence, model.tokenizer_impl ? &model.tokenizer_impl->tokenizer : nullptr,
                    prompt, settings, on_text, on_batch));
  Generated out;
  out.text = std::move(made.text);
  out.timings = {static_cast<int64_t>(prompt.size()), static_cast<int64_t>(made.tokens.size()),
                 made.prompt_seconds, made.generate_seconds};
  out.tokens = std::move(made.tokens);
  out.finish = word(made.finish);
  return out;
} catch (const std::bad_alloc& error) {
  return api::out_of_memory(error, kShorter);
}

Result<void> Session::logits(std::span<const int32_t> ids, const OnRow& on_row) try {
  NIBBLE_ASSIGN(generate::Sequence * sequence, impl_->ready());
  return sequence->append(ids, on_row);
} catch (const std::bad_alloc& error) {
  return api::out_of_memory(error, kShorter);
}

Result<Matrix> Session::logits(std::span<const int32_t> ids) {
  Matrix out;
  out.rows = static_cast<int64_t>(ids.size());
  out.columns = impl_->model->decoder.spec.vocab;
  try {
    out.values.reserve(static_cast<size_t>(out.rows * out.columns));
  } catch (const std::bad_alloc& error) {
    return api::out_of_memory(error, kShorter);
  }
  NIBBLE_TRY(logits(ids, [&out](int64_t, std::span<const float> row) {
    out.values.insert(out.values.end(), row.begin(), row.end());
    return true;
  }));
  return out;
}

int64_t Session::position() const { return impl_->sequence ? impl_->sequence->length() : 0; }
void Session::truncate(int64_t tokens) {
  if (impl_->sequence) impl_->sequence->truncate(std::clamp<int64_t>(tokens, 0, position()));
}
const std::vector<int32_t>& Session::tokens() const {
  static const std::vector<int32_t> none;
  return impl_->sequence ? impl_->sequence->tokens() : none;
}

Result<Plan> inspect(const std::string& path, const Options& options) try {
  return api::inspect(path, options);
} catch (const std::bad_alloc&) {
  return fail(ErrorCode::kOutOfMemory, fmt::format("{}: the memory ran out", path));
}

int32_t api::top_k_said(double number) {
  constexpr double kMost = 1e9;
  return number == -1 ? 0 : static_cast<int32_t>(std::clamp(number, -kMost, kMost));
}

Failure api::out_of_memory(const std::bad_alloc& error, std::string_view what_needs_less) {
  const auto* of_card = dynamic_cast<const device::CardMemoryRanOut*>(&error);
  if (dynamic_cast<const device::ThreadsRanOut*>(&error) != nullptr) {
    return fail(ErrorCode::kOutOfMemory, error.what());
  }
  return fail(ErrorCode::kOutOfMemory,
              fmt::format("{}{}{}", of_card != nullptr ? of_card->what() : "the memory ran out",
                          what_needs_less.empty() ? "" : "; ", what_needs_less));
}

}  // namespace nibble
