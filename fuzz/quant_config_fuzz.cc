// Configs and tensor lists that nobody wrote: detection, parsing, the three verbs.
//
// Input: a JSON object, a zero byte, and bytes that fill the tensors (repeated).
//   {"config": {...}, "hf": {...}, "sidecar": {...}, "gguf": bool, "requested": "...",
//    "layer": {"n": 32, "k": 64, "bias": false, "parts": [..]},
//    "tensors": {"qweight": ["s32", [8, 32]], ...},         names are suffixes of the layer
//    "metadata": {"weight": {...}}}                         likewise
// Half of the mutations exchange one type, number or truth value for another: single bytes rarely
// make another type of a tensor whose shape still fits.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quant/scheme.h"
#include "quant/slice.h"

namespace {

using nibble::base::Json;
using nibble::quant::Axis;
using nibble::tensor::DType;
using nibble::tensor::TensorInfo;

constexpr int64_t kLargest = 1 << 20;  // bytes of a made-up tensor
const std::string kModule = "model.layers.0.mlp.up_proj";

std::vector<TensorInfo> tensors_of(const Json& input) {
  std::vector<TensorInfo> out;
  const Json* tensors = input.find("tensors");
  if (tensors == nullptr || !tensors->is_object()) return out;
  for (const auto& [suffix, value] : tensors->as_object()) {
    if (!value.is_array() || value.as_array().size() != 2) continue;
    const Json &type = value.as_array()[0], &shape = value.as_array()[1];
    if (!type.is_string() || !shape.is_array()) continue;
    TensorInfo info;
    info.name = kModule + "." + suffix;
    for (int d = 0; d <= static_cast<int>(DType::kTQ2_0); ++d) {
      if (nibble::tensor::name(static_cast<DType>(d)) == type.as_string()) {
        info.dtype = static_cast<DType>(d);
      }
    }
    for (const Json& dim : shape.as_array()) info.shape.push_back(dim.is_int() ? dim.as_int() : 1);
    const auto bytes = nibble::tensor::byte_count(info.dtype, info.shape);
    if (!bytes || *bytes > kLargest) continue;
    info.bytes = *bytes;
    out.push_back(std::move(info));
  }
  return out;
}

nibble::quant::LinearLayer layer_of(const Json& input) {
  nibble::quant::LinearLayer layer{kModule, 32, 64, false, {}};
  const Json* from = input.find("layer");
  if (from == nullptr) return layer;
  layer.n = std::clamp<int64_t>(from->get_int_or("n", 32).value_or(32), 1, 512);
  layer.k = std::clamp<int64_t>(from->get_int_or("k", 64).value_or(64), 1, 512);
  layer.bias = from->get_bool_or("bias", false).value_or(false);
  const Json* parts = from->find("parts");
  int64_t left = layer.n;
  if (parts != nullptr && parts->is_array()) {
    for (const Json& part : parts->as_array()) {
      const int64_t size = part.is_int() ? std::clamp<int64_t>(part.as_int(), 0, left) : 0;
      layer.parts.push_back(size);
      left -= size;
    }
    if (!layer.parts.empty()) layer.parts.back() += left;
  }
  return layer;
}

struct Place {
  size_t begin, length;
};

// Where a text has one of `words`.
std::vector<Place> places_of(std::string_view text, std::span<const std::string> words) {
  std::vector<Place> out;
  for (const std::string& word : words) {
    for (size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1)) {
      out.push_back({at, word.size()});
    }
  }
  return out;
}

std::vector<Place> numbers_of(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789";
  std::vector<Place> out;
  for (size_t at = text.find_first_of(kDigits); at != text.npos;) {
    const size_t end = std::min(text.find_first_not_of(kDigits, at), text.size());
    const char before = at == 0 ? ' ' : text[at - 1];
    if (before == ' ' || before == '[' || before == '-') out.push_back({at, end - at});
    at = text.find_first_of(kDigits, end);
  }
  return out;
}

std::vector<std::string> quoted_types() {
  std::vector<std::string> out;
  for (int d = 0; d <= static_cast<int>(DType::kTQ2_0); ++d) {
    out.push_back('"' + std::string(nibble::tensor::name(static_cast<DType>(d))) + '"');
  }
  return out;
}

// One word or number of the text in another's place; "": there is none.
std::string exchanged(std::string_view text, unsigned seed) {
  static const std::vector<std::string> kTypes = quoted_types();
  static const std::vector<std::string> kTruths = {"true", "false", "null"};
  std::minstd_rand random(seed);
  const auto below = [&random](size_t n) { return static_cast<size_t>(random()) % n; };
  const size_t kind = below(3);
  const std::vector<Place> places = kind == 0   ? places_of(text, kTypes)
                                    : kind == 1 ? places_of(text, kTruths)
                                                : numbers_of(text);
  if (places.empty()) return "";
  const Place place = places[below(places.size())];
  std::string with = kind == 0 ? kTypes[below(kTypes.size())] : kTruths[below(kTruths.size())];
  if (kind == 2) {
    const std::string old(text.substr(place.begin, std::min<size_t>(place.length, 9)));
    const int64_t value = std::stoll(old);
    const int64_t near[] = {value + 1, value - 1, value * 2, value / 2, 0, 1, value + 128};
    with = std::to_string(near[below(std::size(near))]);
  }
  return std::string(text).replace(place.begin, place.length, with);
}

// One rank's tensors, cut from made-up bytes.
void run_verbs(const nibble::quant::LinearMethod& method, const nibble::quant::LinearLayer& layer,
               const nibble::quant::TensorLookup& lookup, std::string_view fill, Axis axis,
               nibble::quant::AxisRange range) {
  const int64_t size = axis == Axis::kN ? layer.n : layer.k;
  std::vector<std::string> owners;
  owners.reserve(64);
  nibble::quant::RawWeights raw;
  for (const auto& spec : method.create_weights()) {
    const TensorInfo* info = lookup.find(layer.module + "." + spec.suffix);
    if (info == nullptr || spec.slot == nibble::quant::Slot::kUnused) continue;
    if (std::find(spec.dtypes.begin(), spec.dtypes.end(), info->dtype) == spec.dtypes.end()) return;
    const auto slice = nibble::quant::slice_of(spec, info->dtype, info->shape, axis, size, range);
    if (!slice) return;
    std::string whole(info->bytes, '\0');
    for (size_t i = 0; i < whole.size() && !fill.empty(); ++i) whole[i] = fill[i % fill.size()];
    std::string& owner = owners.emplace_back(nibble::quant::slice_bytes(info->dtype, *slice), '\0');
    const nibble::tensor::TensorView stored = {
        info->dtype, info->shape, reinterpret_cast<const std::byte*>(whole.data()), whole.size()};
    nibble::quant::copy_slice(nibble::quant::in_declared_shape(spec, stored), *slice,
                              reinterpret_cast<std::byte*>(owner.data()));
    raw.set(spec.slot, {info->dtype, slice->shape, reinterpret_cast<const std::byte*>(owner.data()),
                        owner.size()});
  }
  const int64_t n = axis == Axis::kN ? range.end - range.begin : layer.n;
  const int64_t k = axis == Axis::kK ? range.end - range.begin : layer.k;
  const auto weight = method.process_weights_after_loading(n, k, raw);
  if (!weight) return;
  if (k == layer.k && !(weight->format == method.weight_format())) __builtin_trap();
  if (!(weight->activation == method.activation_format())) __builtin_trap();
  std::vector<float> row(static_cast<size_t>(k));
  nibble::tensor::dequantize_row(*weight, 0, row.data());
  nibble::tensor::dequantize_row(*weight, n - 1, row.data());
}

}  // namespace

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t most);

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed) {
  if (seed % 2 == 0) return LLVMFuzzerMutate(data, size, most);
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(all.find('\0'), size);
  const std::string text = exchanged(all.substr(0, end), seed / 2);
  if (text.empty() || text.size() + size - end > most) return LLVMFuzzerMutate(data, size, most);
  const std::string whole = text + std::string(all.substr(end));
  std::copy(whole.begin(), whole.end(), reinterpret_cast<char*>(data));
  return whole.size();
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const size_t end = all.find('\0');
  auto input = nibble::base::parse_json(all.substr(0, end), "fuzz.json");
  if (!input || !input->is_object()) return 0;
  const std::string_view fill = end == all.npos ? std::string_view() : all.substr(end + 1);

  const std::vector<TensorInfo> tensors = tensors_of(*input);
  nibble::quant::CheckpointFacts facts;
  facts.tensors = {tensors, [&tensors](std::string_view name) -> const TensorInfo* {
                     for (const TensorInfo& info : tensors) {
                       if (info.name == name) return &info;
                     }
                     return nullptr;
                   }};
  std::map<std::string, std::string, std::less<>> metadata;
  const Json* described = input->find("metadata");
  if (described != nullptr && described->is_object()) {
    for (const auto& [suffix, value] : described->as_object()) {
      metadata[kModule + "." + suffix] = value.dump();
    }
  }
  facts.metadata = &metadata;
  facts.config = input->find("config");
  const auto source = nibble::quant::find_quantization(facts.config, input->find("hf"),
                                                       input->find("sidecar"), "sidecar.json");
  if (!source) return 0;
  facts.quantization = source->dictionary;
  facts.quantization_where = source->where;
  facts.method = source->method;
  facts.hf_quant_config = input->find("hf");
  facts.gguf = input->get_bool_or("gguf", false).value_or(false);
  const auto scheme =
      nibble::quant::detect_scheme(facts, input->get_string_or("requested", "").value_or(""));
  if (!scheme) return 0;
  const auto config = (*scheme)->parse(facts);
  if (!config) return 0;
  const nibble::quant::LinearLayer layer = layer_of(*input);
  const auto method = (*config)->linear_method(layer, facts.tensors);
  for (const TensorInfo& info : tensors) (void)(*config)->unused_reason(info);
  for (const auto* matcher : (*config)->matchers()) (void)matcher->rules_that_matched_nothing();
  if (!method) return 0;
  run_verbs(**method, layer, facts.tensors, fill, Axis::kN, {0, layer.n});
  for (const Axis axis : {Axis::kN, Axis::kK}) {
    const auto half = nibble::quant::rank_range(axis, axis == Axis::kN ? layer.n : layer.k, 1, 2);
    if (half) run_verbs(**method, layer, facts.tensors, fill, axis, *half);
  }
  return 0;
}
