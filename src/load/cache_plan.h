// The KV cache of a plan: which type it has, and where each layer's scales come from.
//
// auto follows the checkpoint: a cache that its config asks for, else one of floats. Scales that no
// config asks for do not make a quantized cache, and are used when --kv-cache-dtype asks for one.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "layers/decoder.h"
#include "nibble/result.h"
#include "quant/kv_cache.h"

namespace nibble::load {

// One layer's cache.
struct PlannedCache {
  std::string attention;  // "model.layers.0.self_attn"
  quant::KVCacheMethod method;
  // The scales: stored ones also when the cache does not use them. Nothing where there is one for
  // each head or token.
  std::optional<double> k, v;
  std::string k_source, v_source;  // a tensor, "default", or "each token"
};

struct CachePlan {
  layers::CacheFormat format;        // without scales: those are read by load_cache_format
  std::vector<PlannedCache> layers;  // empty when there is a problem
  std::vector<std::string> notes;
  std::vector<std::string> problems;
  std::vector<std::string> blamed;  // the attention modules that they are about
};

// Reads tensors of one element, for the table, and nothing larger.
CachePlan make_cache_plan(const checkpoint::Checkpoint& checkpoint, const layers::DecoderSpec& spec,
                          quant::KvCacheConfig config, std::optional<kernels::KvType> asked,
                          kernels::KvType left_alone, const quant::TensorLookup& tensors);

// The format with the scales of every layer.
Result<layers::CacheFormat> load_cache_format(const checkpoint::Checkpoint& checkpoint,
                                              const CachePlan& plan);

}  // namespace nibble::load
