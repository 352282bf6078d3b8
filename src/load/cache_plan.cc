#include "load/cache_plan.h"

#include <fmt/format.h>

#include "quant/stored.h"

namespace nibble::load {
namespace {

using checkpoint::Checkpoint;
using kernels::KvType;
using tensor::TensorInfo;

// The module that keys and values belong to: "model.layers.0.self_attn", in a GGUF file "blk.0".
std::string attention_module(const layers::DecoderSpec& spec, int64_t layer) {
  const bool fused = spec.names[layers::Part::kK].empty();
  const std::string k = spec.module(fused ? layers::Part::kQkv : layers::Part::kK, layer);
  return k.substr(0, k.rfind('.'));
}

// For the table: a scale that is one number. What is wrong with it is said when it is used.
std::optional<double> value_of(const Checkpoint& checkpoint, const TensorInfo& info) {
  if (tensor::element_count(info.shape) != 1) return std::nullopt;
  auto view = checkpoint.view(info);
  if (!view) return std::nullopt;
  auto values = quant::read_floats(*view, info.name);
  return values ? std::optional<double>(values->front()) : std::nullopt;
}

void describe(const Checkpoint& checkpoint, const TensorInfo* scale, bool token_scales,
              std::optional<double>& value, std::string& source) {
  if (scale != nullptr && !token_scales) {
    value = value_of(checkpoint, *scale);
    source = scale->name;
  } else if (token_scales) {
    source = "each token";
  } else {
    value = 1.0;
    source = "default";
  }
}

std::string type_note(const quant::KvCacheConfig& config, std::optional<KvType> asked, bool stored,
                      const CachePlan& plan) {
  const char* type = kernels::name(plan.format.type);
  if (asked && (config.type || !config.unsupported.empty()) && config.type != *asked) {
    return fmt::format("{} asks for another KV cache{}; --kv-cache-dtype makes it {}", config.where,
                       config.type ? fmt::format(" ({})", kernels::name(*config.type)) : "", type);
  }
  if (!kernels::is_quantized(plan.format.type)) {
    if (!stored || config.type || !config.unsupported.empty()) return {};
    return fmt::format(
        "scales of a KV cache are stored, but the config asks for none: it is {}, "
        "and --kv-cache-dtype fp8_e4m3 uses them",
        type);
  }
  if (plan.layers.empty() || plan.layers.front().method.uses_stored()) return {};
  if (plan.format.token_scales) {
    return fmt::format("KV cache {}: each token and head has a scale of its own", type);
  }
  return fmt::format("KV cache {}: the checkpoint stores no scales for it, so they are 1", type);
}

}  // namespace

CachePlan make_cache_plan(const Checkpoint& checkpoint, const layers::DecoderSpec& spec,
                          quant::KvCacheConfig config, std::optional<KvType> asked,
                          KvType left_alone, const quant::TensorLookup& tensors) {
  CachePlan out;
  if (!asked && !config.unsupported.empty()) {
    out.problems.push_back(
        fmt::format("{} is not known here; --kv-cache-dtype fp8_e4m3, or another "
                    "type, runs the model with that",
                    config.unsupported));
  }
  out.format.type = asked.value_or(config.type.value_or(left_alone));
  const bool stored = quant::stores_kv_scales(tensors);
  config.promised = (config.promised || stored) && !config.dynamic;
  for (int64_t layer = 0; layer < spec.layers; ++layer) {
    PlannedCache planned;
    planned.attention = attention_module(spec, layer);
    auto method = quant::KVCacheMethod::create(planned.attention, spec.kv_heads, out.format.type,
                                               config, tensors);
    if (!method) {
      out.problems.push_back(method.error().message);
      out.blamed.push_back(planned.attention);
      continue;
    }
    planned.method = std::move(*method);
    const bool own = planned.method.token_scales();
    describe(checkpoint, planned.method.k_scale(), own, planned.k, planned.k_source);
    describe(checkpoint, planned.method.v_scale(), own, planned.v, planned.v_source);
    out.format.token_scales = own;
    out.layers.push_back(std::move(planned));
  }
  if (const std::string note = type_note(config, asked, stored, out); !note.empty()) {
    out.notes.push_back(note);
  }
  return out;
}

Result<layers::CacheFormat> load_cache_format(const Checkpoint& checkpoint, const CachePlan& plan) {
  layers::CacheFormat out = plan.format;
  for (const PlannedCache& layer : plan.layers) {
    NIBBLE_ASSIGN(kernels::KvScales scales,
                  layer.method.process_weights_after_loading(
                      [&](const TensorInfo& info) { return checkpoint.view(info); }));
    out.scales.push_back(std::move(scales));
  }
  return out;
}

}  // namespace nibble::load
