#include "quant/slice.h"

#include <gtest/gtest.h>

#include <set>

#include "quant/golden_support.h"

namespace nibble::quant {
namespace {

using tensor::DType;
using tensor::Shape;

WeightSpec spec(std::string suffix, Shape shape, ShardAxis n, ShardAxis k) {
  WeightSpec out;
  out.suffix = std::move(suffix);
  out.shape = std::move(shape);
  out.along_n = n;
  out.along_k = k;
  return out;
}

TEST(slice, packed_words_groups_and_blocks_are_cut_at_their_borders) {
  const WeightSpec qweight = spec("qweight", {256, 384}, {1}, {0, 8});  // K = 2048, N = 384
  auto cut = slice_of(qweight, DType::kS32, {256, 384}, Axis::kK, 2048, {512, 1024});
  ASSERT_TRUE(cut) << message(cut);
  EXPECT_EQ(cut->begin, (Shape{64, 0}));
  EXPECT_EQ(cut->shape, (Shape{64, 384}));
  cut = slice_of(qweight, DType::kS32, {256, 384}, Axis::kN, 384, {96, 192});
  EXPECT_EQ(cut->begin, (Shape{0, 96}));
  EXPECT_EQ(cut->shape, (Shape{256, 96}));

  const WeightSpec three_bits = spec("qweight", {24, 8}, {1}, {0, 32, 3});  // K = 256
  cut = slice_of(three_bits, DType::kS32, {24, 8}, Axis::kK, 256, {64, 128});
  EXPECT_EQ(cut->begin, (Shape{6, 0}));
  EXPECT_EQ(cut->shape, (Shape{6, 8}));

  const WeightSpec block = spec("weight_scale_inv", {3, 2}, {0, 128}, {1, 128});  // N = 320
  cut = slice_of(block, DType::kF32, {3, 2}, Axis::kN, 320, {256, 320});
  EXPECT_EQ(cut->begin, (Shape{2, 0}));
  EXPECT_EQ(cut->shape, (Shape{1, 2}));
}

TEST(slice, dimensions_of_one_may_be_absent_or_extra) {
  const WeightSpec channel = spec("weight_scale", {64}, {0}, {});
  const auto cut = slice_of(channel, DType::kF32, {64, 1}, Axis::kN, 64, {16, 32});
  EXPECT_EQ(cut->begin, (Shape{16, 0}));
  EXPECT_EQ(cut->shape, (Shape{16, 1}));
  const WeightSpec block = spec("weight_scale", {4, 2}, {0, 128}, {1, 128});
  const auto wide = slice_of(block, DType::kF32, {4, 1, 2, 1}, Axis::kK, 256, {128, 256});
  EXPECT_EQ(wide->begin, (Shape{0, 0, 1, 0}));
  EXPECT_EQ(wide->shape, (Shape{4, 1, 1, 1}));
}

TEST(slice, what_does_not_vary_along_the_axis_is_kept_whole) {
  const WeightSpec scales = spec("scales", {1, 64}, {1}, {});
  const auto cut = slice_of(scales, DType::kF16, {1, 64}, Axis::kK, 2048, {0, 1024});
  EXPECT_EQ(cut->begin, (Shape{0, 0}));
  EXPECT_EQ(cut->shape, (Shape{1, 64}));
}

TEST(slice, a_cut_inside_a_piece_is_refused_with_its_values) {
  const WeightSpec block = spec("weight_scale_inv", {3, 2}, {0, 128}, {1, 128});
  EXPECT_EQ(
      message(slice_of(block, DType::kF32, {3, 2}, Axis::kN, 320, {0, 160})),
      "weight_scale_inv: a cut at output 160 is not at a multiple of 128, the outputs that lie "
      "in one piece; use fewer ranks");
  const WeightSpec gguf = spec("weight", {4, 512}, {0}, {1});
  EXPECT_EQ(message(slice_of(gguf, DType::kQ4_K, {4, 512}, Axis::kK, 512, {128, 256})),
            "weight: a cut at input 128 is not at a multiple of 256, the inputs that lie in one "
            "piece; use fewer ranks");
  EXPECT_EQ(message(slice_of(gguf, DType::kQ4_K, {4, 256}, Axis::kK, 512, {0, 256})),
            "weight: expected (4, 512), found (4, 256)");
}

TEST(slice, an_axis_is_dealt_out_evenly_or_not_at_all) {
  const auto range = rank_range(Axis::kN, 576, 1, 3);
  ASSERT_TRUE(range);
  EXPECT_EQ(range->begin, 192);
  EXPECT_EQ(range->end, 384);
  EXPECT_EQ(message(rank_range(Axis::kK, 1376, 0, 3)),
            "1376 inputs cannot be dealt out evenly to 3 ranks");
}

// One layer cut to `ranks` ranks along `axis`: every stored tensor and the dequantized weight must
// come back when the slices are joined. Returns the refusal when there is one.
class Law {
 public:
  using View = std::function<std::optional<tensor::TensorView>(const std::string&)>;
  Law(const LinearLayer& layer, const LinearMethod& method, View view)
      : layer_(layer), method_(method), view_(std::move(view)) {}

  Result<void> check(Axis axis, int64_t ranks) {
    const int64_t size = axis == Axis::kN ? layer_.n : layer_.k;
    NIBBLE_ASSIGN(const std::vector<float> whole, weight_of(axis, {0, size}));
    std::vector<float> joined(whole.size(), -1.0f);
    NIBBLE_TRY(check_stored(axis, size, ranks));
    for (int64_t rank = 0; rank < ranks; ++rank) {
      NIBBLE_ASSIGN(const AxisRange range, rank_range(axis, size, rank, ranks));
      NIBBLE_ASSIGN(const std::vector<float> part, weight_of(axis, range));
      const int64_t columns = axis == Axis::kN ? layer_.k : range.end - range.begin;
      for (size_t i = 0; i < part.size(); ++i) {
        const int64_t row = static_cast<int64_t>(i) / columns,
                      column = static_cast<int64_t>(i) % columns;
        const int64_t at = axis == Axis::kN ? (row + range.begin) * layer_.k + column
                                            : row * layer_.k + column + range.begin;
        joined[static_cast<size_t>(at)] = part[i];
      }
    }
    EXPECT_EQ(std::memcmp(joined.data(), whole.data(), whole.size() * sizeof(float)), 0)
        << layer_.module;
    return {};
  }

 private:
  // The slices of each stored tensor, pasted back where they were cut, make it whole again.
  Result<void> check_stored(Axis axis, int64_t size, int64_t ranks) {
    for (const WeightSpec& spec : method_.create_weights()) {
      const auto stored = view_(layer_.module + "." + spec.suffix);
      if (!stored) continue;
      const std::optional<tensor::TensorView> view = in_declared_shape(spec, *stored);
      std::string joined(view->bytes, '\x5a'), copied;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        NIBBLE_ASSIGN(const AxisRange range, rank_range(axis, size, rank, ranks));
        NIBBLE_ASSIGN(const StoredSlice slice,
                      slice_of(spec, view->dtype, view->shape, axis, size, range));
        copied.resize(slice_bytes(view->dtype, slice));
        copy_slice(*view, slice, reinterpret_cast<std::byte*>(copied.data()));
        paste(*view, slice, copied, joined);
      }
      EXPECT_EQ(std::memcmp(joined.data(), view->data, view->bytes), 0)
          << layer_.module << "." << spec.suffix;
    }
    return {};
  }

  // copy_slice the other way, element by element.
  static void paste(const tensor::TensorView& view, const StoredSlice& slice,
                    const std::string& copied, std::string& joined) {
    const tensor::DTypeInfo& type = tensor::info(view.dtype);
    Shape stored = view.shape, begin = slice.begin, shape = slice.shape;
    if (!stored.empty()) {  // the last dimension in blocks
      for (Shape* s : {&stored, &begin, &shape}) s->back() /= type.block_elements;
    }
    const auto bytes = static_cast<size_t>(type.block_bytes);
    for (size_t i = 0; i < copied.size() / bytes; ++i) {
      int64_t at = 0, rest = static_cast<int64_t>(i), stride = 1;
      for (size_t d = stored.size(); d-- > 0;) {
        at += (begin[d] + rest % shape[d]) * stride;
        rest /= shape[d];
        stride *= stored[d];
      }
      std::memcpy(joined.data() + static_cast<size_t>(at) * bytes, copied.data() + i * bytes,
                  bytes);
    }
  }

  Result<std::vector<float>> weight_of(Axis axis, AxisRange range) {
    const int64_t size = axis == Axis::kN ? layer_.n : layer_.k;
    RawWeights raw;
    std::vector<std::string> bytes;
    bytes.reserve(8);
    for (const WeightSpec& spec : method_.create_weights()) {
      const auto stored = view_(layer_.module + "." + spec.suffix);
      if (!stored || spec.slot == Slot::kUnused) continue;
      const std::optional<tensor::TensorView> view = in_declared_shape(spec, *stored);
      NIBBLE_ASSIGN(const StoredSlice slice,
                    slice_of(spec, view->dtype, view->shape, axis, size, range));
      std::string& out = bytes.emplace_back(slice_bytes(view->dtype, slice), '\0');
      copy_slice(*view, slice, reinterpret_cast<std::byte*>(out.data()));
      raw.set(spec.slot, {view->dtype, slice.shape, reinterpret_cast<const std::byte*>(out.data()),
                          out.size()});
    }
    const int64_t n = axis == Axis::kN ? range.end - range.begin : layer_.n;
    const int64_t k = axis == Axis::kK ? range.end - range.begin : layer_.k;
    NIBBLE_ASSIGN(const auto weight, method_.process_weights_after_loading(n, k, raw));
    EXPECT_EQ(weight.activation, method_.activation_format());
    return dequantize(weight);
  }

  LinearLayer layer_;
  const LinearMethod& method_;
  View view_;
};

struct Outcome {
  int joined_n = 0, joined_k = 0, refused = 0;
  std::set<std::string> formats_n, formats_k;
};

void check_folder(const std::string& folder, Outcome& outcome) {
  SCOPED_TRACE(folder);
  const auto opened = checkpoint::Checkpoint::open(folder);
  ASSERT_TRUE(opened) << message(opened);
  const auto config = config_of(*opened);
  ASSERT_TRUE(config) << message(config);
  for (const LinearLayer& layer : layers_of(folder)) {
    const auto method = (*config)->linear_method(layer, lookup_of(*opened));
    ASSERT_TRUE(method) << message(method);
    Law law(layer, **method, [&](const std::string& name) -> std::optional<tensor::TensorView> {
      const tensor::TensorInfo* info = opened->find(name);
      if (info == nullptr) return std::nullopt;
      return *opened->view(*info);
    });
    const std::string format = tensor::to_string((*method)->weight_format());
    for (Axis axis : {Axis::kN, Axis::kK}) {
      for (int64_t ranks : {2, 4}) {
        const auto done = law.check(axis, ranks);
        if (!done) {
          EXPECT_NE(done.error().message.find("use fewer ranks"), std::string::npos)
              << layer.module << ": " << done.error().message;
          ++outcome.refused;
        } else {
          (axis == Axis::kN ? outcome.joined_n : outcome.joined_k)++;
          (axis == Axis::kN ? outcome.formats_n : outcome.formats_k).insert(format);
        }
      }
    }
  }
}

Outcome check_scheme(const std::string& scheme) {
  Outcome outcome;
  for (const std::string& folder : folders_of(scheme)) check_folder(folder, outcome);
  return outcome;
}

TEST(slice, slices_of_gptq_layers_join_to_the_whole) {
  const Outcome outcome = check_scheme("gptq");
  // Every kind of layer was cut along both axes: packed words, groups, act-order, one group.
  for (const char* format : {"s2g32", "s3g32", "s4g32", "u4g32+zp", "s8g64", "s4g32+act",
                             "s8g32+act", "u4g64+zp+act", "u3g64+zp", "s4c"}) {
    EXPECT_EQ(outcome.formats_n.count(format), 1u) << format;
    EXPECT_EQ(outcome.formats_k.count(format), 1u) << format;
  }
}

TEST(slice, slices_of_awq_layers_join_to_the_whole) {
  const Outcome outcome = check_scheme("awq");
  for (const char* format : {"u4g32+zp", "u4g64+zp", "u4c+zp"}) {
    EXPECT_EQ(outcome.formats_n.count(format), 1u) << format;
    EXPECT_EQ(outcome.formats_k.count(format), 1u) << format;
  }
}

TEST(slice, slices_of_fp8_layers_join_to_the_whole) {
  const Outcome outcome = check_scheme("fp8");
  for (const char* format : {"e4m3t", "e4m3c", "e5m2t", "e4m3b128x128"}) {
    EXPECT_EQ(outcome.formats_n.count(format), 1u) << format;
    EXPECT_EQ(outcome.formats_k.count(format), 1u) << format;
  }
  EXPECT_GT(outcome.refused, 0);
}

TEST(slice, slices_of_modelopt_layers_join_to_the_whole) {
  const Outcome outcome = check_scheme("modelopt");
  for (const char* format :
       {"e4m3t", "e4m3c", "e4m3b128x128", "e4m3g32", "e2m1g16", "e2m1g32", "s4c", "s8c"}) {
    EXPECT_EQ(outcome.formats_n.count(format), 1u) << format;
    EXPECT_EQ(outcome.formats_k.count(format), 1u) << format;
  }
}

TEST(slice, slices_of_bitsandbytes_layers_join_or_are_refused_where_blocks_cross_rows) {
  const Outcome outcome = check_scheme("bitsandbytes");
  for (const char* format : {"nf4g64", "nf4c", "fp4g64", "s8c", "nf4g32"}) {
    EXPECT_EQ(outcome.formats_n.count(format), 1u) << format;
  }
  for (const char* format : {"nf4g64", "fp4g64", "s8c"}) {
    EXPECT_EQ(outcome.formats_k.count(format), 1u) << format;
  }
  EXPECT_EQ(outcome.formats_k.count("nf4g32"), 0u);
  EXPECT_GT(outcome.refused, 0);
}

TEST(slice, slices_of_auto_round_layers_join_to_the_whole) {
  const Outcome outcome = check_scheme("auto_round");
  for (const char* format : {"s4g32", "u4g32+zp", "u2g32+zp", "u6g64+zp", "e4m3c"}) {
    EXPECT_EQ(outcome.formats_n.count(format), 1u) << format;
    EXPECT_EQ(outcome.formats_k.count(format), 1u) << format;
  }
}

TEST(slice, only_whole_bytes_of_hqq_and_bitnet_can_be_cut) {
  const Outcome hqq = check_scheme("hqq");
  EXPECT_EQ(hqq.formats_n, (std::set<std::string>{"u8g32+min"}));
  EXPECT_EQ(hqq.formats_k, (std::set<std::string>{"u8g32+min"}));
  EXPECT_GT(hqq.refused, 0);
  const Outcome bitnet = check_scheme("bitnet");
  EXPECT_EQ(bitnet.formats_n, std::set<std::string>{});
  EXPECT_EQ(bitnet.formats_k, std::set<std::string>{"s2t"});
  EXPECT_GT(bitnet.refused, 0);
}

TEST(slice, slices_of_quark_layers_join_to_the_whole) {
  const Outcome outcome = check_scheme("quark");
  for (const char* format : {"e4m3t", "e4m3c", "s8c", "s4g32", "u4g32+zp", "s4c", "e2m1g32"}) {
    EXPECT_EQ(outcome.formats_n.count(format), 1u) << format;
    EXPECT_EQ(outcome.formats_k.count(format), 1u) << format;
  }
}

TEST(slice, a_weight_stored_in_one_row_is_cut_as_the_matrix_it_is) {
  WeightSpec codes = spec("weight", {4, 64}, {0}, {1, 2});  // K = 128, two codes a byte
  codes.flattened = true;
  const auto cut = slice_of(codes, DType::kU8, {256, 1}, Axis::kK, 128, {64, 128});
  ASSERT_TRUE(cut) << message(cut);
  EXPECT_EQ(cut->begin, (Shape{0, 32}));
  EXPECT_EQ(cut->shape, (Shape{4, 32}));
  EXPECT_EQ(message(slice_of(codes, DType::kU8, {255, 1}, Axis::kK, 128, {64, 128})),
            "weight: expected (4, 64), found (255, 1)");
  // Blocks of 64 over rows of 96: two rows and three blocks end together.
  WeightSpec absmax = spec("weight.absmax", {6}, {0, 2, 3}, {0, 96});
  absmax.flattened = true;
  EXPECT_EQ(message(slice_of(absmax, DType::kF32, {6}, Axis::kN, 4, {1, 2})),
            "weight.absmax: a cut at output 1 is not at a multiple of 2, the outputs that lie in "
            "one piece; use fewer ranks");
  EXPECT_EQ(message(slice_of(absmax, DType::kF32, {6}, Axis::kK, 96, {0, 48})),
            "weight.absmax: a cut at input 48 is not at a multiple of 96, the inputs that lie in "
            "one piece; use fewer ranks");
}

TEST(slice, slices_of_compressed_tensors_layers_join_to_the_whole) {
  const Outcome outcome = check_scheme("compressed_tensors");
  for (const char* format :
       {"bf16",  "e2m1g16", "e2m1g32", "e2m3g32",   "e4m3c",        "e4m3g32", "e4m3t",
        "s2g16", "s4c",     "s4g16",   "s4g16+act", "s4g32",        "s7g16",   "s8c",
        "s8g16", "s8t",     "u4c+zp",  "u4g16+zp",  "u8g16+zp+act", "u8t+zp"}) {
    EXPECT_EQ(outcome.formats_n.count(format), 1u) << format;
    EXPECT_EQ(outcome.formats_k.count(format), 1u) << format;
  }
  for (const char* format : {"s3c", "s3g16", "s5c", "s6c"}) {
    EXPECT_EQ(outcome.formats_n.count(format), 1u) << format;
  }
  for (const char* format : {"s4g128", "u5g32+zp", "u6c+zp"}) {
    EXPECT_EQ(outcome.formats_k.count(format), 1u) << format;
  }
  EXPECT_GT(outcome.refused, 0);
}

TEST(slice, slices_of_torchao_layers_join_to_the_whole) {
  const Outcome outcome = check_scheme("torchao");
  for (const char* format : {"s8c", "s4g32+min", "u4g32+zp", "e4m3c", "e4m3t"}) {
    EXPECT_EQ(outcome.formats_n.count(format), 1u) << format;
    EXPECT_EQ(outcome.formats_k.count(format), 1u) << format;
  }
  EXPECT_GT(outcome.refused, 0);  // scales that stand in 128 x 4
}

TEST(slice, slices_of_codes_with_scales_join_to_the_whole) {
  for (const auto& [scheme, format] :
       {std::pair<const char*, const char*>{"petit_nvfp4", "e2m1g16"},
        {"mxfp4", "e2m1g32"},
        {"mxfp8", "e4m3g32"},
        {"fbgemm_fp8", "e4m3c"},
        {"w8a8_fp8", "e4m3c"},
        {"w8a8_int8", "s8c"},
        {"blockwise_int8", "s8b32x32"},
        {"eetq", "s8c"}}) {
    const Outcome outcome = check_scheme(scheme);
    EXPECT_EQ(outcome.formats_n.count(format), 1u) << format;
    EXPECT_EQ(outcome.formats_k.count(format), 1u) << format;
  }
  // The tiles of a range of inputs are no rectangle of the stored tensor: never cut along K.
  const Outcome tiles = check_scheme("qoq");
  for (const char* format : {"u4c+min", "u4g128+min"}) {
    EXPECT_EQ(tiles.formats_n.count(format), 1u) << format;
    EXPECT_EQ(tiles.formats_k.count(format), 0u) << format;
  }
}

TEST(slice, slices_of_gguf_tensors_join_to_the_whole) {
  const auto opened = checkpoint::Checkpoint::open(kGolden + "gguf/all_types.gguf");
  ASSERT_TRUE(opened) << message(opened);
  for (const tensor::TensorInfo& info : opened->tensors()) {
    SCOPED_TRACE(info.name);
    // The tensors have no suffix; call each "<name>.weight".
    const tensor::TensorView view = *opened->view(info);
    tensor::TensorInfo named = info;
    named.name += ".weight";
    const TensorLookup lookup{
        {&named, 1}, [&](std::string_view name) { return name == named.name ? &named : nullptr; }};
    CheckpointFacts facts;
    facts.gguf = true;
    const auto config = (*detect_scheme(facts, ""))->parse(facts);
    const LinearLayer layer{info.name, info.shape[0], info.shape[1], false, {}};
    const auto method = (*config)->linear_method(layer, lookup);
    ASSERT_TRUE(method) << message(method);
    Law law(layer, **method, [&](const std::string&) { return std::optional(view); });
    for (Axis axis : {Axis::kN, Axis::kK}) {
      const auto done = law.check(axis, 2);
      EXPECT_TRUE(done) << message(done);
    }
  }
}

}  // namespace
}  // namespace nibble::quant
