#include "quant/unread_schemes.h"

#include <fmt/format.h>

#include "quant/scheme.h"

namespace nibble::quant {
namespace {

struct Unread {
  std::string_view methods;  // words: values of quant_method
  std::string_view suffix;   // of a tensor that no other format stores; "" when there is none
  std::string_view name;
  std::string_view why;
};

constexpr std::string_view kOther =
    "use the GPTQ, AWQ, FP8 or GGUF edition of this model, or the unquantized one";

constexpr Unread kUnread[] = {
    {"aqlm", ".codebooks", "AQLM",
     "a weight is a sum of vectors from code books that are learned for each layer"},
    {"quip quip-sharp quipsharp quip#", ".Qidxs", "QuIP#",
     "weights are points of the E8 lattice in a rotated basis"},
    {"qtip", ".trellis_codes", "QTIP", "weights are paths through a trellis in a rotated basis"},
    {"spqr", ".dense_weights", "SpQR",
     "quantized weights and their scales stand beside a sparse matrix of outliers"},
    {"vptq", ".centroids", "VPTQ", "weights are indices into vectors learned for each layer"},
    {"exl2", ".q_invperm", "EXL2",
     "the rows of a layer have different widths in an order of exllamav2's own"},
    {"exl3", ".trellis", "EXL3",
     "weights are paths through a trellis, in tiles for the tensor cores of a GPU"},
    {"fp-quant", ".forward_hadamard_matrix", "FP-Quant",
     "the inputs of its layers are rotated by a Hadamard matrix before they are quantized"},
    {"higgs", ".tables2", "HIGGS",
     "weights are grid points in a rotated basis, stored as FLUTE's GPU kernels want them"},
    {"quanto", ".weight._data", "quanto", "it stores Python tensor subclasses, part by part"},
    {"squeezellm", ".lookup_table", "SqueezeLLM",
     "every output has a code book of its own, beside a sparse matrix of outliers"},
    {"sinq", "", "SINQ", "weights have a scale for each row and a second for each column"},
    {"marlin", ".B", "Marlin",
     "weights are stored in the order of one GPU kernel, not in a format for exchange"},
    {"gptq-marlin-24 marlin-24", ".B_24", "GPTQ's Marlin-24",
     "weights are stored in the order of one GPU kernel, not in a format for exchange"},
    {"qqq", ".s_group", "QQQ",
     "weights are stored in the order of one GPU kernel, not in a format for exchange"},
    {"bitblas", "", "BitBLAS",
     "weights are stored in the order of one GPU kernel, not in a format for exchange"},
    {"fouroversix", "", "Four Over Six", "its kernels choose between two scales for every group"},
    {"modelslim mxfp-w4a8", "", "ModelSlim", "they are made for Ascend NPUs"},
    {"deepspeedfp", "", "DeepSpeedFP", "it only names how to quantize, while loading"},
    {"mlx", ".biases", "MLX", "weights lie in words as the framework for Apple's GPUs wants them"},
    {"metal", "", "MLX's Metal layout", "it is a layout of Apple's GPUs"},
};

// Those that a later version reads.
constexpr Unread kNotYet[] = {
    {"gemma", "", "transformers' own Gemma", ""},
    {"moe-wna16 experts-int8", "", "quantized mixtures of experts", ""},
};

bool has_word(std::string_view words, std::string_view word) {
  while (!words.empty()) {
    const std::string_view first = words.substr(0, words.find(' '));
    if (first == word) return true;
    words.remove_prefix(first.size() + (first.size() < words.size() ? 1 : 0));
  }
  return false;
}

}  // namespace

std::optional<std::string> why_unread(std::string_view method, const TensorLookup& tensors) {
  for (const Unread& line : kUnread) {
    const bool is_it = method.empty() ? !line.suffix.empty() && stores_suffix(tensors, line.suffix)
                                      : has_word(line.methods, method);
    if (!is_it) continue;
    return fmt::format("{} checkpoints are not read: {}; {}", line.name, line.why, kOther);
  }
  for (const Unread& line : kNotYet) {
    if (!method.empty() && has_word(line.methods, method)) {
      return fmt::format("{} checkpoints are not read yet; {}", line.name, kOther);
    }
  }
  return std::nullopt;
}

}  // namespace nibble::quant
