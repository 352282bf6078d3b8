// A file of torch.save: a state dict, or dicts of them, with tensors inside (pytorch_model.bin,
// qmodel.pt). Sources: torch/serialization.py and torch/_utils.py of PyTorch 2.
//
//   a zip archive, nothing compressed:
//     <any>/data.pkl     a pickle: the dicts; a tensor is a storage, an offset, a shape and strides
//     <any>/byteorder    "little" (since 2.1)
//     <any>/data/<key>   the bytes of one storage
//
// Names of nested dicts and lists are joined with dots: {"lm_head": {"weight": T}} holds
// lm_head.weight. What is no tensor (numbers, texts, types) is passed over. A tensor subclass of
// torchao is several tensors and a JSON text (torch_subclass.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/zip.h"
#include "nibble/result.h"
#include "tensor/tensor.h"

namespace nibble::checkpoint {

// The distance, in elements, of neighbours along each dimension; empty: the usual row-major order.
using Strides = std::vector<int64_t>;

struct TorchSubclass {
  std::string name;  // of the parameter; its tensors are called name + "." + attribute
  std::string json;
  size_t first = 0, count = 0;  // its tensors, among those of the file
};

struct TorchHeader {
  // In the order of the dict. Several may share bytes (tied weights). `offset` is where the first
  // element lies, `bytes` what the elements take; with strides they lie farther apart.
  std::vector<tensor::TensorInfo> tensors;
  std::vector<Strides> strides;  // one for each tensor
  std::vector<TorchSubclass> subclasses;
  std::vector<std::string> warnings;
};

// `where` names the file in messages. Every tensor's elements lie inside the file. Errors: no such
// archive; whatever the pickle holds that a state dict does not.
Result<TorchHeader> read_torch_file(const ReadAt& read, uint64_t file_size, std::string_view where);

// From the first element of the first to behind the last: what a strided tensor spans, in bytes.
uint64_t span_bytes(const tensor::TensorInfo& info, const Strides& strides);

// The elements of a strided tensor in row-major order. `from` has span_bytes(), `to` info.bytes.
void gather(const tensor::TensorInfo& info, const Strides& strides, const std::byte* from,
            std::byte* to);

}  // namespace nibble::checkpoint
