// Writes a GPTQ checkpoint of any size with random weights, to measure whole models without
// downloading one:
//
//   dummy_gptq CONFIG.json FOLDER
//
// CONFIG.json is a model's, with GPTQ's quantization_config (bits 4, a group_size, sym, no
// desc_act); bench/llama-3-8b-gptq.json has the sizes of Llama 3 8B. FOLDER gets it as config.json
// and one model.safetensors: linear layers as GPTQ's qweight, qzeros, scales and g_idx, the rest as
// float16. There is no tokenizer: `nibble bench FOLDER` and `nibble run FOLDER --tokens 1,2` work.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/json.h"
#include "base/number.h"
#include "checkpoint/safetensors_writer.h"
#include "models/architecture.h"

namespace nibble {
namespace {

using layers::Part;
using tensor::DType;

// What a tensor is filled with.
enum class Filling {
  kCodes,   // random bits: all codes are equally likely
  kZeros,   // GPTQ's zero points of symmetric weights: 2^(bits-1) - 1, eight in a word
  kScales,  // such that the outputs of a layer are about as large as its inputs
  kGroups,  // g_idx in order
  kOnes,
  kFloats,  // about 0.02
};

struct Tensor {
  Filling filling;
  int64_t group = 0;  // kGroups: inputs of a group
  float scale = 0;    // kScales
};

struct Folder {
  std::vector<tensor::TensorInfo> infos;
  std::unordered_map<std::string, Tensor> tensors;

  void add(std::string name, DType dtype, tensor::Shape shape, Tensor tensor) {
    tensors.emplace(name, tensor);
    infos.push_back({.name = std::move(name), .dtype = dtype, .shape = std::move(shape)});
  }
};

// xorshift64*: the same folder each time.
class Bits {
 public:
  uint64_t next() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 2685821657736338717ull;
  }

 private:
  uint64_t state_ = 88172645463325252ull;
};

void add_linear(Folder& folder, const std::string& module, int64_t n, int64_t k, int64_t group) {
  const int64_t groups = (k + group - 1) / group;
  // Codes are evenly spread over -8..7, whose standard deviation is 4.6.
  const float scale = 1.0f / (4.6f * std::sqrt(static_cast<float>(k)));
  folder.add(module + ".qweight", DType::kS32, {k / 8, n}, {.filling = Filling::kCodes});
  folder.add(module + ".qzeros", DType::kS32, {groups, n / 8}, {.filling = Filling::kZeros});
  folder.add(module + ".scales", DType::kF16, {groups, n},
             {.filling = Filling::kScales, .scale = scale});
  folder.add(module + ".g_idx", DType::kS32, {k}, {.filling = Filling::kGroups, .group = group});
}

Result<Folder> declare(const base::Json& config) {
  NIBBLE_ASSIGN(const layers::DecoderSpec spec, models::declare_model(config));
  const base::Json* quantization = config.find_set("quantization_config");
  if (quantization == nullptr) {
    return fail(ErrorCode::kUsage, "the config has no quantization_config");
  }
  NIBBLE_ASSIGN(const std::string method, quantization->get_string("quant_method"));
  NIBBLE_ASSIGN(const int64_t bits, quantization->get_int("bits"));
  NIBBLE_ASSIGN(const int64_t group, quantization->get_int("group_size"));
  NIBBLE_ASSIGN(const bool act_order, quantization->get_bool_or("desc_act", false));
  if (method != "gptq" || bits != 4 || group < 8 || act_order) {
    return fail(ErrorCode::kUsage,
                "quantization_config: written are gptq weights of 4 bits with a group_size and "
                "without desc_act");
  }
  Folder out;
  const auto floats = [&out](const std::string& name, tensor::Shape shape, Filling filling) {
    out.add(name, DType::kF16, std::move(shape), {.filling = filling});
  };
  floats(spec.module(Part::kEmbedding) + ".weight", {spec.vocab, spec.width()}, Filling::kFloats);
  for (const layers::DeclaredLinear& l : layers::declared_linears(spec)) {
    const std::string module = spec.module(l.part, l.layer);
    if (l.n % 8 != 0 || l.k % group != 0) {
      return fail(ErrorCode::kUsage, module + ": GPTQ wants rows in eights and whole groups");
    }
    add_linear(out, module, l.n, l.k, group);
    if (l.bias) floats(module + ".bias", {l.n}, Filling::kFloats);
  }
  for (const layers::DeclaredNorm& norm : layers::declared_norms(spec)) {
    const std::string module = spec.module(norm.part, norm.layer);
    floats(module + ".weight", {norm.size}, Filling::kOnes);
    if (spec.norm_bias) floats(module + ".bias", {norm.size}, Filling::kFloats);
  }
  if (!spec.tied_embeddings) {
    floats(spec.module(Part::kLmHead) + ".weight", {spec.vocab, spec.width()}, Filling::kFloats);
  }
  return out;
}

void fill(const Tensor& tensor, Bits& bits, std::vector<std::byte>& bytes) {
  auto* words = reinterpret_cast<uint32_t*>(bytes.data());
  auto* halves = reinterpret_cast<uint16_t*>(bytes.data());
  const size_t count = bytes.size() / 4;
  switch (tensor.filling) {
    case Filling::kCodes:
      for (size_t i = 0; i < count; ++i) words[i] = static_cast<uint32_t>(bits.next() >> 32);
      return;
    case Filling::kZeros:
      std::fill_n(words, count, 0x77777777u);
      return;
    case Filling::kGroups:
      for (size_t i = 0; i < count; ++i) {
        words[i] = static_cast<uint32_t>(i / static_cast<size_t>(tensor.group));
      }
      return;
    case Filling::kScales:
      std::fill_n(halves, bytes.size() / 2, base::f16_from_f32(tensor.scale));
      return;
    case Filling::kOnes:
      std::fill_n(halves, bytes.size() / 2, base::f16_from_f32(1.0f));
      return;
    case Filling::kFloats:  // either sign, 2^-6 to 2^-5
      for (size_t i = 0; i < bytes.size() / 2; ++i) {
        halves[i] = static_cast<uint16_t>((bits.next() >> 48 & 0x83ffu) | 0x2400u);
      }
      return;
  }
}

Result<void> write(const std::string& config_path, const std::string& folder) {
  std::ifstream in(config_path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  if (!in) return fail(ErrorCode::kNotFound, config_path + ": cannot be read");
  NIBBLE_ASSIGN(const base::Json config, base::parse_json(text, config_path));
  NIBBLE_ASSIGN(Folder declared, declare(config));
  std::error_code code;
  std::filesystem::create_directories(folder, code);
  NIBBLE_ASSIGN(auto writer,
                checkpoint::SafetensorsWriter::create(
                    folder + "/model.safetensors", std::move(declared.infos), {{"format", "pt"}}));
  Bits bits;
  std::vector<std::byte> bytes;
  for (const tensor::TensorInfo& info : writer.tensors()) {
    bytes.resize(static_cast<size_t>(info.bytes));
    fill(declared.tensors.at(info.name), bits, bytes);
    NIBBLE_TRY(writer.append(bytes));
  }
  NIBBLE_TRY(writer.finish());
  std::ofstream out(folder + "/config.json", std::ios::binary);
  out << text;
  out.close();
  if (!out) return fail(ErrorCode::kIo, folder + "/config.json: cannot be written");
  return {};
}

}  // namespace
}  // namespace nibble

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: dummy_gptq CONFIG.json FOLDER\n");
    return 2;
  }
  if (const auto done = nibble::write(argv[1], argv[2]); !done) {
    std::fprintf(stderr, "error: %s\n", done.error().message.c_str());
    return 1;
  }
  return 0;
}
