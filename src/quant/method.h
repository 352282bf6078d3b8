// What a scheme does for one layer. The three verbs are the field's own:
//
//   create_weights                  declare the tensors, as data: no scheme reads a file
//   process_weights_after_loading   stored tensors -> one QuantizedWeight in canonical form
//   apply                           run the chosen kernel (layers/linear.cc; shared by all schemes)
//
// Between the last two, load/ asks kernels::choose and kernels::pack.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/result.h"
#include "tensor/tensor.h"
#include "tensor/weight_format.h"

namespace nibble::quant {

// The typed places a stored tensor may go to; weights are never reached by an attribute string.
enum class Slot : uint8_t {
  kWeight,       // codes or floats
  kScale,        // the scale nearest to the codes
  kScale2,       // a second level
  kZero,         // zero points
  kGroupIndex,   // g_idx
  kInputScale,   // static activation scale
  kInputZero,    // static activation zero point
  kInputFactor,  // multiplies the input
  kBias,
  kShape,   // a tensor that repeats the logical shape
  kTable,   // the values of the codes
  kTable2,  // the values of coded scales
  kExtra,   // a scheme's own, one more
  kUnused,  // known, never read; WeightSpec::unused says why
};
inline constexpr int kSlots = static_cast<int>(Slot::kUnused);

// One axis (N or K) of a layer as it lies in a stored tensor: along dimension `dim`, each index of
// which covers `units` consecutive elements of the axis (8 for int4 packed in int32, G for scales).
// `indices` > 1: `units` elements share that many indices (32 3-bit codes lie in 3 words).
// dim -1: the tensor does not vary along the axis and every rank keeps all of it.
struct ShardAxis {
  int dim = -1;
  int64_t units = 1;
  int64_t indices = 1;
};

// One tensor that a method wants: `<module>.<suffix>`.
struct WeightSpec {
  Slot slot = Slot::kWeight;
  std::string suffix;
  std::vector<tensor::DType> dtypes;  // accepted
  tensor::Shape shape;                // of the whole layer. Dimensions of 1 may be absent or extra
  bool flattened = false;             // stored with any shape of as many elements, in this order
  bool required = true;
  ShardAxis along_n;
  ShardAxis along_k;
  std::string unused;  // for kUnused: the reason, for the accounting
  std::string absent;  // for optional ones: what their absence means, "no zero points: symmetric"
};

// The tensors of one layer (or of one rank's slice of it) after loading; absent ones have no data.
class RawWeights {
 public:
  const tensor::TensorView* get(Slot slot) const {
    const auto& v = views_[static_cast<size_t>(slot)];
    return v ? &*v : nullptr;
  }
  void set(Slot slot, tensor::TensorView view) {
    views_[static_cast<size_t>(slot)] = std::move(view);
  }

 private:
  std::array<std::optional<tensor::TensorView>, kSlots> views_;
};

// What the model declares about a linear layer.
struct LinearLayer {
  std::string module;  // the checkpoint's name, without ".weight"
  int64_t n = 0;       // outputs
  int64_t k = 0;       // inputs
  bool bias = false;
  // Outputs of each logical part of a layer that the checkpoint stores as one tensor (Phi-3's
  // qkv_proj): a scale "per tensor" may then be one per part. A rank holds its share of each part.
  // Empty: one part.
  std::vector<int64_t> parts;
  bool vocabulary = false;  // the embedding or the head: quantizing while loading leaves it alone
};

class LinearMethod {
 public:
  virtual ~LinearMethod() = default;

  // The scheme this layer really uses: "unquantized" for a layer an AWQ checkpoint leaves alone.
  virtual std::string_view scheme() const = 0;
  // Known from headers and config, before any weight is read: what the plan shows and the chooser
  // is asked with. process_weights_after_loading must return exactly these formats (only a slice of
  // the inputs of a layer with act-order differs: it has group_k = 1, whatever the slice).
  virtual tensor::WeightFormat weight_format() const = 0;
  virtual tensor::ActivationFormat activation_format() const { return {}; }

  virtual std::vector<WeightSpec> create_weights() const = 0;

  // (n, k) is the layer's slice; equal to the declared size on one rank. Errors name the tensor's
  // suffix and the value; the loader adds the layer.
  virtual Result<tensor::QuantizedWeight> process_weights_after_loading(
      int64_t n, int64_t k, const RawWeights& raw) const = 0;

 protected:
  // What process_weights_after_loading fills: the promised formats and the size, nothing else.
  tensor::QuantizedWeight empty_weight(int64_t n, int64_t k) const {
    tensor::QuantizedWeight out;
    out.format = weight_format();
    out.activation = activation_format();
    out.n = n;
    out.k = k;
    return out;
  }
};

// A mixture of experts: one method per expert projection. Used from the MoE issue on.
class MoeMethod {
 public:
  virtual ~MoeMethod() = default;
  virtual std::string_view scheme() const = 0;
  virtual Result<std::unique_ptr<LinearMethod>> expert(const LinearLayer& projection) const = 0;
};

// The names in a checkpoint, for evidence: stored dtype and shape outrank lists.
struct TensorLookup {
  std::span<const tensor::TensorInfo> all;
  std::function<const tensor::TensorInfo*(std::string_view)> find;
};

}  // namespace nibble::quant
