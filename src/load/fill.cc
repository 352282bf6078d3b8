#include "load/fill.h"

#include <fmt/format.h>

#include <cstring>
#include <deque>
#include <future>
#include <system_error>

#include "base/check.h"
#include "base/number.h"
#include "load/dummy.h"

namespace nibble::load {
namespace {

using checkpoint::Checkpoint;
using layers::Decoder;
using layers::DecoderLayer;
using layers::Part;

// Context for errors below: which layer was being loaded.
Failure in_layer(const PlannedModule& module, Error error) {
  error.message = fmt::format("layer {}: {}", module.declared.module, error.message);
  return fail(std::move(error));
}

float float_at(const tensor::TensorView& view, int64_t i) {
  const auto read = [&view, i](auto value) {
    std::memcpy(&value, view.data + i * static_cast<int64_t>(sizeof value), sizeof value);
    return value;
  };
  switch (view.dtype) {
    case tensor::DType::kF16:
      return base::f32_from_f16(read(uint16_t{}));
    case tensor::DType::kBF16:
      return base::f32_from_bf16(read(uint16_t{}));
    case tensor::DType::kF64:
      return static_cast<float>(read(double{}));
    default:
      return read(float{});
  }
}

std::vector<float> to_floats(const tensor::TensorView& view) {
  std::vector<float> out(static_cast<size_t>(tensor::element_count(view.shape).value_or(0)));
  for (size_t i = 0; i < out.size(); ++i) out[i] = float_at(view, static_cast<int64_t>(i));
  return out;
}

struct Loaded {
  kernels::PackedWeight weight;
  device::Floats bias;
};

// The canonical weights of the planned modules, in their order. For a card the next ones are made
// by threads of their own while the last one is packed and sent; a CPU has no use for its cores
// meanwhile, and keeps to one.
class CanonicalWeights {
 public:
  CanonicalWeights(Checkpoint& checkpoint, const LoadPlan& plan, bool dummy, bool ahead)
      : checkpoint_(checkpoint), plan_(plan), dummy_(dummy), ahead_(ahead) {}

  // Of the module after the last one. Errors name the layer.
  Result<tensor::QuantizedWeight> next() {
    begin_more();
    Begun first = std::move(begun_.front());
    begun_.pop_front();
    bytes_ -= first.bytes;
    return first.weight.get();
  }

 private:
  struct Begun {
    std::future<Result<tensor::QuantizedWeight>> weight;
    int64_t bytes;
  };

  void begin_more() {
    constexpr size_t kMostModules = 8;
    constexpr int64_t kMostBytes = int64_t{1} << 30;  // of codes, unpacked
    while (at_ < plan_.modules.size() && begun_.size() < (ahead_ ? kMostModules : 1)) {
      const PlannedModule& module = plan_.modules[at_];
      const int64_t bytes =
          module.declared.n * module.declared.k * tensor::code_bytes(module.problem.weight.element);
      if (!begun_.empty() && bytes_ + bytes > kMostBytes) return;
      const auto make = [this, &module, seed = uint64_t{at_}] { return weight_of(module, seed); };
      begun_.push_back({begin(make), bytes});
      bytes_ += bytes;
      ++at_;
    }
  }

  // Deferred is by next(), in its thread; also where the system gives no more threads.
  template <class Make>
  std::future<Result<tensor::QuantizedWeight>> begin(const Make& make) const {
    try {
      return std::async(ahead_ ? std::launch::async : std::launch::deferred, make);
    } catch (const std::system_error&) {
      return std::async(std::launch::deferred, make);
    }
  }

  Result<tensor::QuantizedWeight> weight_of(const PlannedModule& module, uint64_t seed) const {
    if (!dummy_) return canonical_weight(checkpoint_, module);
    const kernels::MatmulProblem& p = module.problem;
    return dummy_weight(p.weight, p.n, p.k, seed);
  }

  Checkpoint& checkpoint_;
  const LoadPlan& plan_;
  bool dummy_;
  bool ahead_;
  size_t at_ = 0;  // the next to begin
  int64_t bytes_ = 0;
  std::deque<Begun> begun_;  // a future waits for its thread where it ends
};

Result<Loaded> load_module(Checkpoint& checkpoint, const PlannedModule& module, bool dummy,
                           CanonicalWeights& weights, device::Stream& stream) {
  Loaded out;
  {
    NIBBLE_ASSIGN(const tensor::QuantizedWeight weight, weights.next());
    auto packed = kernels::pack(weight, module.choice, stream);
    if (!packed) return in_layer(module, std::move(packed).error());
    out.weight = std::move(*packed);
  }
  if (dummy) {
    if (module.declared.bias) {
      const std::vector<float> zeros(static_cast<size_t>(module.declared.n), 0.0f);
      NIBBLE_ASSIGN(out.bias, device::Floats::place(stream, zeros));
    }
    return out;
  }
  for (const PlannedTensor& t : module.tensors) {
    if (t.spec.slot != quant::Slot::kBias) continue;
    NIBBLE_ASSIGN(const std::vector<float> bias, read_floats(checkpoint, *t.info));
    NIBBLE_ASSIGN(out.bias, device::Floats::place(stream, bias));
  }
  drop(checkpoint, module);
  return out;
}

device::Floats& vector_of(Decoder& decoder, const PlannedVector& v) {
  layers::Norm& norm = v.part == Part::kFinalNorm
                           ? decoder.final_norm
                           : decoder.layers[static_cast<size_t>(v.layer)].norm(v.part);
  return v.bias ? norm.bias : norm.weight;
}

Result<std::vector<float>> load_vector(Checkpoint& checkpoint, const layers::DecoderSpec& spec,
                                       const PlannedVector& v) {
  NIBBLE_ASSIGN(std::vector<float> values, read_floats(checkpoint, *v.info));
  if (spec.norm_adds_one && !v.bias) {
    for (float& value : values) value += 1.0f;
  }
  return values;
}

void place(Decoder& decoder, const PlannedModule& module, Loaded loaded) {
  layers::Linear linear{module.declared.module, std::move(loaded.weight), std::move(loaded.bias)};
  if (module.part == Part::kEmbedding) {
    decoder.embedding = std::move(linear);
  } else if (module.part == Part::kPositions) {
    decoder.positions = std::move(linear);
  } else if (module.part == Part::kProjectIn) {
    decoder.project_in = std::move(linear);
  } else if (module.part == Part::kProjectOut) {
    decoder.project_out = std::move(linear);
  } else if (module.part == Part::kLmHead) {
    decoder.lm_head = std::move(linear);
  } else {
    DecoderLayer& layer = decoder.layers[static_cast<size_t>(module.layer)];
    layer.linear(module.part) = std::move(linear);
  }
}

Result<void> check_finite(const std::vector<float>& values, std::string_view where) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (!(values[i] - values[i] == 0)) {
      return fail(ErrorCode::kCorrupt, fmt::format("{}: element {} is {}, expected a finite number",
                                                   where, i, values[i]));
    }
  }
  return {};
}

}  // namespace

Result<std::vector<float>> read_floats(Checkpoint& checkpoint, const tensor::TensorInfo& info) {
  NIBBLE_ASSIGN(tensor::TensorView view, checkpoint.view(info));
  std::vector<float> out = to_floats(view);
  NIBBLE_TRY(check_finite(out, info.name));
  return out;
}

Result<tensor::QuantizedWeight> canonical_weight(Checkpoint& checkpoint,
                                                 const PlannedModule& module) {
  quant::RawWeights raw;
  for (const PlannedTensor& t : module.tensors) {
    if (t.spec.slot == quant::Slot::kUnused) continue;
    auto view = checkpoint.view(*t.info);
    if (!view) return in_layer(module, std::move(view).error());
    raw.set(t.spec.slot, std::move(*view));
  }
  auto weight =
      module.method->process_weights_after_loading(module.declared.n, module.declared.k, raw);
  if (!weight) return in_layer(module, std::move(weight).error());
  // The plan was made from headers; what the bytes gave must be what it said.
  NIBBLE_CHECK(weight->format == module.problem.weight);
  return weight;
}

void drop(Checkpoint& checkpoint, const PlannedModule& module) {
  for (const PlannedTensor& t : module.tensors) checkpoint.drop(*t.info);
}

Result<Decoder> fill(Checkpoint& checkpoint, LoadPlan& plan, const FillOptions& options,
                     device::Stream& stream, const FillProgress& progress) {
  NIBBLE_CHECK(plan.problems.empty());
  Decoder decoder;
  decoder.spec = plan.spec;
  decoder.layers.resize(static_cast<size_t>(plan.spec.layers));
  uint64_t total = 0;
  for (const PlannedModule& module : plan.modules) total += module.bytes_disk;
  if (options.prefetch) {
    for (const PlannedModule& module : plan.modules) {
      for (const PlannedTensor& t : module.tensors) checkpoint.prefetch(*t.info);
    }
  }
  uint64_t done = 0;
  CanonicalWeights weights(checkpoint, plan, options.dummy, stream.cuda() != nullptr);
  for (const PlannedModule& module : plan.modules) {
    NIBBLE_ASSIGN(Loaded loaded, load_module(checkpoint, module, options.dummy, weights, stream));
    place(decoder, module, std::move(loaded));
    done += module.bytes_disk;
    if (progress && !progress(module.declared.module, done, total)) {
      return fail(ErrorCode::kCancelled, "loading was cancelled");
    }
  }
  for (const PlannedVector& v : plan.vectors) {
    std::vector<float> values;
    if (options.dummy) {
      const auto size = static_cast<size_t>(tensor::element_count(v.info->shape).value_or(0));
      values.assign(size, v.bias ? 0.0f : 1.0f);
    } else {
      NIBBLE_ASSIGN(values, load_vector(checkpoint, plan.spec, v));
    }
    NIBBLE_ASSIGN(vector_of(decoder, v), device::Floats::place(stream, values));
  }
  decoder.cache = plan.cache.format;
  if (!options.dummy) {
    NIBBLE_ASSIGN(decoder.cache, load_cache_format(checkpoint, plan.cache));
  }
  if (plan.rope_factors != nullptr && !options.dummy) {
    NIBBLE_ASSIGN(std::vector<float> factors, read_floats(checkpoint, *plan.rope_factors));
    decoder.spec.rope.divisors.assign(factors.begin(), factors.end());
  }
  return decoder;
}

}  // namespace nibble::load
