// bitsandbytes (Dettmers et al.): QLoRA's 4-bit blocks and LLM.int8, as transformers saves them.
//
// 4 bits: the weight in one row, N K codes, two a byte, the first in the high half; blocks of B
// codes, that may cross the rows, share an absmax.
//
//   <module>.weight                   (N K / 2, 1)  u8    or as many bytes of a float
//   (quant_storage) <module>.weight.absmax            (NK / B)      f32; u8 with double
//   quantization <module>.weight.quant_map         (16)          f32   the values of the codes:
//   nf4's or fp4's <module>.weight.nested_absmax     (NK / B / b)  f32   double quantization:
//   absmax in blocks of b <module>.weight.nested_quant_map  (256)         f32   the values of the
//   codes of absmax <module>.weight.quant_state.bitsandbytes__nf4   u8    JSON: blocksize, shape,
//   nested_offset ...
//
//   w[i]      = quant_map[code[i]] * absmax[i / B]                              i = n K + k
//   absmax[j] = nested_quant_map[code[j]] * nested_absmax[j / b] + nested_offset
//
// 8 bits: a scale per output. Activations are int8 per token, but for those of llm_int8_threshold
// or more, which stay floats. (bitsandbytes takes the whole column of an outlier out of the
// quantization of all tokens of a batch; here each token stands for itself.)
//
//   <module>.weight         (N, K)  s8
//   <module>.SCB            (N)     f32   absmax of the row
//   <module>.weight_format  ()      u8    0: rows. 1 to 3 are layouts of old GPUs' tensor cores
//
//   w[n, k] = code * (SCB[n] * (1/127))
#include <fmt/format.h>

#include <numeric>

#include "quant/scheme.h"
#include "quant/stored.h"

namespace nibble::quant {
namespace {

using tensor::DType;
using tensor::Element;
using tensor::TensorInfo;
using tensor::TensorView;

constexpr std::string_view kState = "weight.quant_state.bitsandbytes__";

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A tensor with one index for every `unit` consecutive weights. Where units do not cross rows it is
// a matrix that happens to be stored in one row; else it is cut only where a row and a unit end
// together, and never along K.
WeightSpec run_of(Slot slot, std::string suffix, std::vector<DType> dtypes, int64_t n, int64_t k,
                  int64_t unit) {
  WeightSpec spec;
  if (k % unit == 0) {
    spec = wanted(slot, std::move(suffix), std::move(dtypes), {n, k / unit}, {0}, {1, unit});
  } else {
    const int64_t rows = unit / std::gcd(unit, k);
    spec = wanted(slot, std::move(suffix), std::move(dtypes), {ceil_div(n * k, unit)},
                  {0, rows, rows * k / unit}, {0, k});
  }
  spec.flattened = true;
  return spec;
}

// The size of the blocks of which `count` cover `size` elements, found among the powers of two that
// the tool uses; for one block, `usual`.
Result<int64_t> block_of(const TensorInfo& stored, int64_t size, int64_t usual) {
  const int64_t count = tensor::element_count(stored.shape).value_or(0);
  if (ceil_div(size, usual) == count) return usual;
  for (int64_t block = 4; block <= 8192; block *= 2) {
    if (ceil_div(size, block) == count) return block;
  }
  return fail(ErrorCode::kCorrupt,
              fmt::format("{} {}: no block size of 4 to 8192 gives {} blocks of {} numbers",
                          stored.name, tensor::to_string(stored.shape), count, size));
}

struct Blocks {
  Element element = Element::kNF4;
  std::string state;    // the suffix of the JSON
  int64_t size = 64;    // B
  int64_t nested = 0;   // b; 0: absmax are floats
  int64_t storage = 1;  // bytes of an element of `weight`
};

class FourBitMethod : public LinearMethod {
 public:
  FourBitMethod(const LinearLayer& layer, const TensorLookup& tensors, Blocks blocks,
                const TensorInfo& absmax)
      : b_(std::move(blocks)),
        k_(layer.k),
        group_(std::gcd(layer.k, b_.size)),
        scale_type_(b_.nested != 0 ? DType::kF32 : absmax.dtype) {
    const int64_t n = layer.n, k = layer.k;
    specs_ = {
        run_of(Slot::kWeight, "weight", {DType::kU8, DType::kBF16, DType::kF16, DType::kF32}, n, k,
               2 * b_.storage),
        run_of(Slot::kScale, "weight.absmax", b_.nested != 0 ? std::vector{DType::kU8} : kFloats, n,
               k, b_.size),
        wanted(Slot::kTable, "weight.quant_map", {DType::kF32}, {16}, {}, {}),
        wanted(Slot::kShape, b_.state, {DType::kU8},
               find_tensor(tensors, layer.module, b_.state)->shape, {}, {}),
    };
    if (b_.nested != 0) {
      specs_.push_back(
          run_of(Slot::kScale2, "weight.nested_absmax", {DType::kF32}, n, k, b_.size * b_.nested));
      specs_.push_back(
          wanted(Slot::kTable2, "weight.nested_quant_map", {DType::kF32}, {256}, {}, {}));
    }
    add_bias(layer, tensors, specs_);
    n_ = n;
  }

  std::string_view scheme() const override { return "bitsandbytes"; }

  tensor::WeightFormat weight_format() const override {
    tensor::WeightFormat format;
    format.element = b_.element;
    format.scaled = true;
    format.group_k = group_ == k_ ? 0 : group_;
    format.scale_type = scale_type_;
    return format;
  }

  std::vector<WeightSpec> create_weights() const override { return specs_; }

  Result<tensor::QuantizedWeight> process_weights_after_loading(
      int64_t n, int64_t k, const RawWeights& raw) const override {
    tensor::QuantizedWeight out;
    out.format = weight_format();
    out.n = n;
    out.k = k;
    NIBBLE_ASSIGN(const double offset, read_state(raw));
    NIBBLE_TRY(check_table(raw));
    NIBBLE_ASSIGN(const std::vector<float> absmax, read_absmax(n * k, offset, raw));
    const int64_t groups = out.groups(), width = group_ == k_ ? k : group_;
    out.scale.resize(static_cast<size_t>(n * groups));
    for (int64_t row = 0; row < n; ++row) {
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t block = (row * k + g * width) / b_.size;
        out.scale[static_cast<size_t>(row * groups + g)] = absmax[static_cast<size_t>(block)];
      }
    }
    const int64_t elements = ceil_div(n * k, 2 * b_.storage);
    NIBBLE_ASSIGN(const TensorView* weight, need_count(raw, Slot::kWeight, "weight", elements));
    NIBBLE_ASSIGN(out.code_owner, tensor::Buffer::allocate(static_cast<size_t>(n * k)));
    const auto code = out.code_owner.as<uint8_t>();
    for (size_t i = 0; i < code.size(); ++i) {
      const auto byte = static_cast<uint8_t>(weight->data[i / 2]);
      code[i] = i % 2 == 0 ? byte >> 4 : byte & 15;
    }
    out.code = {DType::kU8, {n, k}, out.code_owner.data(), out.code_owner.size()};
    return out;
  }

 private:
  // The JSON repeats what the shapes have said, and holds the offset of the scales.
  Result<double> read_state(const RawWeights& raw) const {
    NIBBLE_ASSIGN(const TensorView* view, need(raw, Slot::kShape, b_.state, specs_[3].shape));
    const std::string_view text(reinterpret_cast<const char*>(view->data), view->bytes);
    NIBBLE_ASSIGN(const base::Json state, base::parse_json(text, b_.state));
    const auto differs = [&](const char* key, const std::string& found,
                             const std::string& expected) {
      return fail(ErrorCode::kCorrupt, fmt::format("{}: {} is {}, but the stored tensors say {}",
                                                   b_.state, key, found, expected));
    };
    NIBBLE_ASSIGN(const std::string type, state.get_string("quant_type"));
    if (type != tensor::name(b_.element)) {
      return differs("quant_type", type, std::string(tensor::name(b_.element)));
    }
    NIBBLE_ASSIGN(const int64_t size, state.get_int("blocksize"));
    // One block of any size holds all.
    const auto same = [](int64_t total, int64_t a, int64_t b) {
      return a == b || (a > 0 && ceil_div(total, a) == 1 && ceil_div(total, b) == 1);
    };
    if (!same(n_ * k_, size, b_.size)) {
      return differs("blocksize", fmt::format("{}", size), fmt::format("{}", b_.size));
    }
    const base::Json* shape = state.find_set("shape");
    const std::string expected = fmt::format("[{},{}]", n_, k_);
    if (shape != nullptr && shape->dump() != expected) {
      return differs("shape", shape->dump(), expected);
    }
    if (b_.nested == 0) return 0.0;
    NIBBLE_ASSIGN(const int64_t nested, state.get_int("nested_blocksize"));
    if (!same(ceil_div(n_ * k_, b_.size), nested, b_.nested)) {
      return differs("nested_blocksize", fmt::format("{}", nested), fmt::format("{}", b_.nested));
    }
    return state.get_double("nested_offset");
  }

  Result<void> check_table(const RawWeights& raw) const {
    NIBBLE_ASSIGN(const TensorView* view, need(raw, Slot::kTable, "weight.quant_map", {16}));
    NIBBLE_ASSIGN(const std::vector<float> table, read_floats(*view, "weight.quant_map"));
    for (uint32_t c = 0; c < 16; ++c) {
      const float expected = tensor::value_of(b_.element, c);
      if (table[c] == expected) continue;
      return fail(ErrorCode::kUnsupported,
                  fmt::format("weight.quant_map: the value of code {} is {}; that of {} is {}", c,
                              table[c], tensor::name(b_.element), expected));
    }
    return {};
  }

  Result<std::vector<float>> read_absmax(int64_t size, double offset, const RawWeights& raw) const {
    const int64_t blocks = ceil_div(size, b_.size);
    NIBBLE_ASSIGN(const TensorView* absmax, need_count(raw, Slot::kScale, "weight.absmax", blocks));
    if (b_.nested == 0) return read_floats(*absmax, "weight.absmax");
    NIBBLE_ASSIGN(const TensorView* nested, need_count(raw, Slot::kScale2, "weight.nested_absmax",
                                                       ceil_div(blocks, b_.nested)));
    NIBBLE_ASSIGN(const std::vector<float> scale, read_floats(*nested, "weight.nested_absmax"));
    NIBBLE_ASSIGN(const TensorView* map,
                  need(raw, Slot::kTable2, "weight.nested_quant_map", {256}));
    NIBBLE_ASSIGN(const std::vector<float> table, read_floats(*map, "weight.nested_quant_map"));
    std::vector<float> out(static_cast<size_t>(blocks));
    for (size_t i = 0; i < out.size(); ++i) {
      const float value =
          table[static_cast<uint8_t>(absmax->data[i])] * scale[i / static_cast<size_t>(b_.nested)];
      out[i] = value + static_cast<float>(offset);
    }
    return out;
  }

  Blocks b_;
  int64_t n_ = 0, k_;
  int64_t group_;  // inputs that surely share a block, wherever their row begins
  DType scale_type_;
  std::vector<WeightSpec> specs_;
};

class Int8Method : public LinearMethod {
 public:
  Int8Method(const LinearLayer& layer, const TensorLookup& tensors, float threshold)
      : threshold_(threshold) {
    specs_ = {
        wanted(Slot::kWeight, "weight", {DType::kS8}, {layer.n, layer.k}, {0}, {1}),
        wanted(Slot::kScale, "SCB", {DType::kF32}, {layer.n}, {0}, {}),
        optional_tensor(wanted(Slot::kExtra, "weight_format", {DType::kU8}, {}, {}, {}),
                        "rows, as all that are saved today"),
    };
    add_bias(layer, tensors, specs_);
  }

  std::string_view scheme() const override { return "bitsandbytes"; }

  tensor::WeightFormat weight_format() const override {
    tensor::WeightFormat format;
    format.element = Element::kS8;
    format.scaled = true;
    return format;
  }

  tensor::ActivationFormat activation_format() const override {
    tensor::ActivationFormat out;
    out.type = tensor::ActivationFormat::Type::kS8;
    out.outlier = threshold_;
    return out;
  }

  std::vector<WeightSpec> create_weights() const override { return specs_; }

  Result<tensor::QuantizedWeight> process_weights_after_loading(
      int64_t n, int64_t k, const RawWeights& raw) const override {
    NIBBLE_ASSIGN(const TensorView* weight, need(raw, Slot::kWeight, "weight", {n, k}));
    NIBBLE_ASSIGN(const TensorView* absmax, need(raw, Slot::kScale, "SCB", {n}));
    if (raw.get(Slot::kExtra) != nullptr) {
      NIBBLE_ASSIGN(const TensorView* layout, need(raw, Slot::kExtra, "weight_format", {}));
      if (const auto id = static_cast<int>(layout->data[0]); id != 0) {
        return fail(ErrorCode::kUnsupported,
                    fmt::format("weight_format is {}, a layout of an old GPU's tensor cores; 0 "
                                "(row) is read: save the model again with bitsandbytes 0.45 or "
                                "later",
                                id));
      }
    }
    tensor::QuantizedWeight out;
    out.format = weight_format();
    out.activation = activation_format();
    out.n = n;
    out.k = k;
    NIBBLE_ASSIGN(out.scale, read_floats(*absmax, "SCB"));
    for (float& scale : out.scale) scale *= 1.0f / 127.0f;
    out.code = *weight;
    return out;
  }

 private:
  float threshold_;
  std::vector<WeightSpec> specs_;
};

// Which layers are quantized and how the stored tensors say; the keys about them are not asked.
constexpr std::string_view kKnown =
    "quant_method load_in_4bit load_in_8bit bnb_4bit_quant_type bnb_4bit_use_double_quant "
    "bnb_4bit_quant_storage llm_int8_skip_modules llm_int8_threshold llm_int8_has_fp16_weight";
// What another engine computes in, and where it keeps the weights.
constexpr std::string_view kHarmless =
    "bnb_4bit_compute_dtype llm_int8_enable_fp32_cpu_offload bnb_4bit_blocksize";

class BitsandbytesConfig : public QuantizationConfig {
 public:
  std::string_view scheme() const override { return "bitsandbytes"; }
  std::vector<const NameMatcher*> matchers() const override { return {&skipped_}; }

  Result<std::unique_ptr<LinearMethod>> linear_method(const LinearLayer& layer,
                                                      const TensorLookup& tensors) const override {
    NIBBLE_TRY(skipped_.match(layer.module));  // to know which rules match nothing
    const TensorInfo* weight = find_tensor(tensors, layer.module, "weight");
    Blocks blocks;
    for (Element element : {Element::kNF4, Element::kFP4}) {
      std::string state = fmt::format("{}{}", kState, tensor::name(element));
      if (find_tensor(tensors, layer.module, state) == nullptr) continue;
      blocks.element = element;
      blocks.state = std::move(state);
      return four_bit_method(layer, tensors, weight, std::move(blocks));
    }
    // What is stored outranks the list. (The shared method also reports a missing weight.)
    if (weight == nullptr || tensor::is_plain_float(weight->dtype)) {
      return unquantized_method(layer, tensors);
    }
    if (weight->dtype == DType::kS8) {
      return std::unique_ptr<LinearMethod>(
          std::make_unique<Int8Method>(layer, tensors, threshold_));
    }
    return fail(ErrorCode::kNotFound,
                fmt::format("{} is {} {}, but has no {}nf4 (or fp4), which says how to read it",
                            weight->name, tensor::name(weight->dtype),
                            tensor::to_string(weight->shape), kState.substr(7)));
  }

  Result<void> read(const base::Json& dictionary) {
    check_keys(dictionary, kKnown, kHarmless, warnings);
    NIBBLE_ASSIGN(const double threshold, dictionary.get_double_or("llm_int8_threshold", 6.0));
    if (!(threshold >= 0 && threshold <= 1e9)) {
      return fail(ErrorCode::kCorrupt,
                  fmt::format("{}: llm_int8_threshold: expected 0 (no outliers) or a positive "
                              "number, found {}",
                              dictionary.where(), threshold));
    }
    threshold_ = static_cast<float>(threshold);
    NIBBLE_ASSIGN(std::vector<std::string> names, names_key(dictionary, "llm_int8_skip_modules"));
    NIBBLE_ASSIGN(skipped_, NameMatcher::compile(std::move(names),
                                                 dictionary.where() + ": llm_int8_skip_modules"));
    return {};
  }

 private:
  static Result<std::unique_ptr<LinearMethod>> four_bit_method(const LinearLayer& layer,
                                                               const TensorLookup& tensors,
                                                               const TensorInfo* weight,
                                                               Blocks blocks) {
    const TensorInfo* absmax = find_tensor(tensors, layer.module, "weight.absmax");
    if (weight == nullptr || absmax == nullptr) {
      return fail(ErrorCode::kNotFound,
                  fmt::format("{}.{} is stored, but {}.{} is missing", layer.module, blocks.state,
                              layer.module, weight == nullptr ? "weight" : "weight.absmax"));
    }
    const int64_t size = layer.n * layer.k;
    blocks.storage = tensor::info(weight->dtype).block_bytes;
    NIBBLE_ASSIGN(blocks.size, block_of(*absmax, size, 64));
    if (absmax->dtype == DType::kU8) {
      const TensorInfo* nested = find_tensor(tensors, layer.module, "weight.nested_absmax");
      if (nested == nullptr) {
        return fail(ErrorCode::kNotFound,
                    fmt::format("{} is u8, double quantization, but {}.weight.nested_absmax is "
                                "missing",
                                absmax->name, layer.module));
      }
      NIBBLE_ASSIGN(blocks.nested, block_of(*nested, ceil_div(size, blocks.size), 256));
    }
    return std::unique_ptr<LinearMethod>(
        std::make_unique<FourBitMethod>(layer, tensors, std::move(blocks), *absmax));
  }

  float threshold_ = 6.0f;
  NameMatcher skipped_;
};

bool claims(const CheckpointFacts& facts) { return !facts.gguf && facts.method == "bitsandbytes"; }

Result<std::unique_ptr<QuantizationConfig>> parse(const CheckpointFacts& facts) {
  auto config = std::make_unique<BitsandbytesConfig>();
  if (facts.quantization != nullptr) {
    NIBBLE_TRY(config->read(*facts.quantization));
  }
  return std::unique_ptr<QuantizationConfig>(std::move(config));
}

constexpr std::string_view kAliases[] = {"bnb", "bitsandbytes-4bit", "bitsandbytes-8bit"};

}  // namespace

extern const Scheme bitsandbytes_scheme;
const Scheme bitsandbytes_scheme = {"bitsandbytes", kAliases, claims, parse};

}  // namespace nibble::quant
