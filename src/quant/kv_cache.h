// The scales of a quantized KV cache, once for all dialects: load/ asks the dictionaries, finds the
// tensors of each attention module, whoever spelled their names, and accounts for them. Schemes
// have no part in it.
//
//   stored = round(x / scale + zero)    read = (stored - zero) * scale
//
// with one scale (and zero point) for all of a layer's keys, or one for each key-value head; the
// same for its values. A scale is stored under its attention module A as one of (s: k or v)
//
//   A.attn.s_scale   A.s_scale   A.s_proj.s_scale   A.qkv_proj.s_scale   A.s_cache.scale
//   A.s.scale        A.s_proj.output_scale (Quark)  A.kv_scale (old: one for both)
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "kernels/attention/kv_cache.h"
#include "nibble/result.h"
#include "quant/method.h"

namespace nibble::quant {

// What a checkpoint's config says of the cache.
struct KvCacheConfig {
  std::optional<kernels::KvType> type;  // nothing: it leaves the cache alone
  bool dynamic = false;                 // scales are computed when keys and values are stored
  bool promised = false;                // scales are in the checkpoint: a missing one is an error
  std::string unsupported;              // a kind of cache that nibble has not, as a sentence
  std::string where;                    // the key that says so; "" when none does
};

// From `kv_cache_scheme` (compressed-tensors, ModelOpt; in a word AutoFP8 and Quark),
// `kv_cache_quant_algo` (ModelOpt, also inside "quantization"), `kv_cache_quant_config` or `export:
// kv_cache_group` (Quark) of a quantization dictionary. Errors: two of them that differ; a value of
// the wrong type.
Result<KvCacheConfig> read_kv_cache(const base::Json& dictionary);

// The same from a checkpoint's dictionary and ModelOpt's hf_quant_config.json, either of which may
// be missing. Error: both speak of the cache and differ.
Result<KvCacheConfig> find_kv_cache(const base::Json* dictionary,
                                    const base::Json* hf_quant_config);

// Whether any scale of a cache is stored at all.
bool stores_kv_scales(const TensorLookup& tensors);

// The cache of one attention module.
class KVCacheMethod {
 public:
  // `cache` is the type that the cache will have, `heads` its key-value heads. Stored scales are
  // used when they were made for it: those for fp8 serve e4m3 and e5m2 (scales without a config are
  // taken for such), those for int8 an int8 cache. Without, an fp8 cache has a scale of 1 and an
  // int8 cache computes one for each token and head. Errors: a scale that is promised, or whose
  // partner is stored, is missing; a shape that is neither one scale nor one for each head.
  static Result<KVCacheMethod> create(std::string_view attention, int64_t heads,
                                      kernels::KvType cache, const KvCacheConfig& config,
                                      const TensorLookup& tensors);

  // The tensors whose values the cache needs, and those that are known and not read, with reasons.
  const std::vector<const tensor::TensorInfo*>& used() const { return used_; }
  const std::vector<std::pair<const tensor::TensorInfo*, std::string>>& unused() const {
    return unused_;
  }
  // The stored scales, used or not; nullptr when there is none.
  const tensor::TensorInfo* k_scale() const { return k_.scale; }
  const tensor::TensorInfo* v_scale() const { return v_.scale; }
  bool uses_stored() const { return uses_stored_; }
  // Each token and head has a scale of its own, computed when it is stored.
  bool token_scales() const { return token_scales_; }

  // Errors: a scale that is not a positive number, a zero point that is no int8, two spellings of
  // one scale with different values.
  using ViewOf = std::function<Result<tensor::TensorView>(const tensor::TensorInfo&)>;
  Result<kernels::KvScales> process_weights_after_loading(const ViewOf& view) const;

 private:
  struct Side {
    const tensor::TensorInfo* scale = nullptr;
    const tensor::TensorInfo* zero = nullptr;
    const tensor::TensorInfo* bias = nullptr;
    std::vector<const tensor::TensorInfo*> again;  // the same scale by other names
  };
  Side find(char side, std::string_view attention, const TensorLookup& tensors);

  Side k_, v_;
  bool uses_stored_ = false;
  bool token_scales_ = false;
  std::vector<const tensor::TensorInfo*> used_;
  std::vector<std::pair<const tensor::TensorInfo*, std::string>> unused_;
};

}  // namespace nibble::quant
