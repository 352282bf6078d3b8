// A checkpoint as downloaded: bytes on disk as named views, and the JSON that stands beside them.
//
//   NIBBLE_ASSIGN(Checkpoint ckpt, Checkpoint::open("SmolLM2-135M-Instruct"));
//   const tensor::TensorInfo* info = ckpt.find("model.embed_tokens.weight");
//   NIBBLE_ASSIGN(tensor::TensorView view, ckpt.view(*info));
//   ... use view.data ...
//   ckpt.drop(*info);
//
// open() reads headers only. What a tensor means is not known here.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "checkpoint/folder.h"
#include "checkpoint/gguf.h"
#include "nibble/result.h"
#include "tensor/tensor.h"

namespace nibble::checkpoint {

struct OpenOptions {
  bool mmap = true;  // false: read() into owned buffers (network disks; files that may shrink)
};

class Checkpoint {
 public:
  // `path`: a Hugging Face folder (safetensors, else what torch.save wrote); a .gguf file (any
  // shard of a split one); a folder with one GGUF. Every rule of the formats that headers can show
  // is checked here; docs/checkpoint.md lists them.
  static Result<Checkpoint> open(const std::string& path, const OpenOptions& options = {});
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  CheckpointKind kind() const;
  const std::string& path() const;  // as given to open()

  // All stored tensors, file by file, in the order of their bytes. Names are unique. References
  // stay valid when the checkpoint is moved.
  const std::vector<tensor::TensorInfo>& tensors() const;
  const tensor::TensorInfo* find(std::string_view name) const;  // nullptr: not stored
  uint32_t file_count() const;
  const std::string& file_name(uint32_t file) const;  // relative to the folder
  uint64_t file_bytes(uint32_t file) const;
  // For messages: "model-00002-of-00003.safetensors: model.layers.0.mlp.up_proj.weight".
  std::string describe(const tensor::TensorInfo& info) const;

  // The tensor's bytes. Mapped, the view lies in the map; else (and where a file of torch has its
  // elements scattered) the bytes are read into a buffer that lives until drop(). view, drop and
  // prefetch may run on several threads at once, for different tensors. `info` must be one of
  // tensors(), or a copy.
  Result<tensor::TensorView> view(const tensor::TensorInfo& info) const;
  // "I am done with it": gives the memory back. Mapped, a view stays usable (pages come back from
  // the file); read, views of this tensor end here.
  void drop(const tensor::TensorInfo& info) const;
  // "I will want it soon": starts reading ahead, does not wait.
  void prefetch(const tensor::TensorInfo& info) const;

  // The folder's small documents; nullptr when the folder has none (always, for a GGUF). Each is a
  // JSON object.
  const base::Json* config() const;              // config.json
  const base::Json* generation_config() const;   // generation_config.json
  const base::Json* tokenizer_config() const;    // tokenizer_config.json
  const base::Json* special_tokens_map() const;  // special_tokens_map.json
  const base::Json* hf_quant_config() const;     // hf_quant_config.json (ModelOpt)
  const base::Json* quantize_config() const;     // quantize_config.json, else quant_config.json

  // Any other file of the folder, by its plain name: "tokenizer.json", "chat_template.jinja".
  // Never found for a GGUF, which is complete in itself.
  bool has_file(std::string_view name) const;
  Result<std::string> read_small_file(std::string_view name,
                                      uint64_t limit = uint64_t{256} << 20) const;

  // __metadata__ of the safetensors headers, merged; where shards differ the first one counts, with
  // a warning. Of files of torch: the JSON text of each parameter that is a tensor subclass of
  // torchao, by the parameter's name; its tensors are called name + "." + attribute.
  const std::map<std::string, std::string, std::less<>>& metadata() const;
  // The key-value pairs of a GGUF (of the first file when split); nullptr for other files.
  const GgufMetadata* gguf() const;
  uint32_t gguf_version() const;  // 0 for other files

  const std::vector<std::string>& notes() const;     // what was passed over, and why
  const std::vector<std::string>& warnings() const;  // what looks wrong but can be read

 private:
  struct State;
  explicit Checkpoint(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace nibble::checkpoint
