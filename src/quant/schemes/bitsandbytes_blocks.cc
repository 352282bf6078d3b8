#include "quant/schemes/bitsandbytes_blocks.h"

#include <fmt/format.h>

#include "quant/keys.h"
#include "quant/stored.h"

namespace nibble::quant {
namespace {

using tensor::DType;
using tensor::Element;
using tensor::TensorInfo;
using tensor::TensorView;

constexpr std::string_view kState = "weight.quant_state.bitsandbytes__";

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

// The JSON repeats what the shapes have said, and holds the offset of the scales.
Result<double> read_state(const BnbBlocks& b, const RawWeights& raw) {
  NIBBLE_ASSIGN(const TensorView* view, need(raw, Slot::kShape, b.state, b.bytes));
  const std::string_view text(reinterpret_cast<const char*>(view->data), view->bytes);
  NIBBLE_ASSIGN(const base::Json state, base::parse_json(text, b.state));
  const auto differs = [&](const char* key, const std::string& found, const std::string& expected) {
    return fail(ErrorCode::kCorrupt, fmt::format("{}: {} is {}, but the stored tensors say {}",
                                                 b.state, key, found, expected));
  };
  NIBBLE_ASSIGN(const std::string type, state.get_string("quant_type"));
  if (type != tensor::name(b.element)) {
    return differs("quant_type", type, std::string(tensor::name(b.element)));
  }
  NIBBLE_ASSIGN(const int64_t size, int_key(state, "blocksize"));
  // One block of any size holds all.
  const auto same = [](int64_t total, int64_t said, int64_t found) {
    return said == found || (said > 0 && ceil_div(total, said) == 1 && ceil_div(total, found) == 1);
  };
  if (!same(b.n * b.k, size, b.size)) {
    return differs("blocksize", fmt::format("{}", size), fmt::format("{}", b.size));
  }
  const base::Json* shape = state.find_set("shape");
  const std::string expected = fmt::format("[{},{}]", b.n, b.k);
  if (shape != nullptr && shape->dump() != expected) {
    return differs("shape", shape->dump(), expected);
  }
  if (b.nested == 0) return 0.0;
  NIBBLE_ASSIGN(const int64_t nested, int_key(state, "nested_blocksize"));
  if (!same(ceil_div(b.n * b.k, b.size), nested, b.nested)) {
    return differs("nested_blocksize", fmt::format("{}", nested), fmt::format("{}", b.nested));
  }
  return double_key(state, "nested_offset");
}

Result<void> check_table(const BnbBlocks& b, const RawWeights& raw) {
  NIBBLE_ASSIGN(const TensorView* view, need(raw, Slot::kTable, "weight.quant_map", {16}));
  NIBBLE_ASSIGN(const std::vector<float> table, read_floats(*view, "weight.quant_map"));
  for (uint32_t c = 0; c < 16; ++c) {
    const float expected = tensor::value_of(b.element, c);
    if (table[c] == expected) continue;
    return fail(ErrorCode::kUnsupported,
                fmt::format("weight.quant_map: the value of code {} is {}; that of {} is {}", c,
                            table[c], tensor::name(b.element), expected));
  }
  return {};
}

Result<std::vector<float>> read_absmax(const BnbBlocks& b, int64_t size, double offset,
                                       const RawWeights& raw) {
  const int64_t blocks = ceil_div(size, b.size);
  NIBBLE_ASSIGN(const TensorView* absmax, need_count(raw, Slot::kScale, "weight.absmax", blocks));
  if (b.nested == 0) return read_floats(*absmax, "weight.absmax");
  NIBBLE_ASSIGN(const TensorView* nested,
                need_count(raw, Slot::kScale2, "weight.nested_absmax", ceil_div(blocks, b.nested)));
  NIBBLE_ASSIGN(const std::vector<float> scale, read_floats(*nested, "weight.nested_absmax"));
  NIBBLE_ASSIGN(const TensorView* map, need(raw, Slot::kTable2, "weight.nested_quant_map", {256}));
  NIBBLE_ASSIGN(const std::vector<float> table, read_floats(*map, "weight.nested_quant_map"));
  std::vector<float> out(static_cast<size_t>(blocks));
  for (size_t i = 0; i < out.size(); ++i) {
    const float value =
        table[static_cast<uint8_t>(absmax->data[i])] * scale[i / static_cast<size_t>(b.nested)];
    out[i] = value + static_cast<float>(offset);
  }
  return out;
}

}  // namespace

Result<std::optional<BnbBlocks>> find_bnb_blocks(const LinearLayer& layer,
                                                 const TensorLookup& tensors) {
  BnbBlocks blocks;
  blocks.n = layer.n;
  blocks.k = layer.k;
  const TensorInfo* state = nullptr;
  for (Element element : {Element::kNF4, Element::kFP4}) {
    blocks.element = element;
    blocks.state = fmt::format("{}{}", kState, tensor::name(element));
    state = find_tensor(tensors, layer.module, blocks.state);
    if (state != nullptr) break;
  }
  if (state == nullptr) return std::optional<BnbBlocks>();
  blocks.bytes = state->shape;
  const TensorInfo* weight = find_tensor(tensors, layer.module, "weight");
  const TensorInfo* absmax = find_tensor(tensors, layer.module, "weight.absmax");
  if (weight == nullptr || absmax == nullptr) {
    return fail(ErrorCode::kNotFound,
                fmt::format("{}.{} is stored, but {}.{} is missing", layer.module, blocks.state,
                            layer.module, weight == nullptr ? "weight" : "weight.absmax"));
  }
  const int64_t size = layer.n * layer.k;
  blocks.storage = tensor::info(weight->dtype).block_bytes;
  blocks.absmax = absmax->dtype;
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
  return std::optional(std::move(blocks));
}

Result<std::vector<float>> read_bnb_absmax(const BnbBlocks& blocks, int64_t size,
                                           const RawWeights& raw) {
  NIBBLE_ASSIGN(const double offset, read_state(blocks, raw));
  NIBBLE_TRY(check_table(blocks, raw));
  return read_absmax(blocks, size, offset, raw);
}

}  // namespace nibble::quant
