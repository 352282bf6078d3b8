#include "checkpoint/checkpoint.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "checkpoint/documents.h"
#include "checkpoint/file.h"
#include "checkpoint/folder.h"
#include "checkpoint/name_map.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/torch_file.h"

namespace nibble::checkpoint {

using base::Json;
using tensor::Buffer;
using tensor::TensorInfo;
using tensor::TensorView;

namespace {

constexpr size_t kSniffed = 512;
constexpr uint64_t kFirstGgufRead = uint64_t{8} << 20;  // holds most headers whole
constexpr size_t kMaxTensors = size_t{1} << 20;

constexpr const char* kDocuments[] = {"config.json",           "generation_config.json",
                                      "tokenizer_config.json", "special_tokens_map.json",
                                      "hf_quant_config.json",  "quantize_config.json",
                                      "quant_config.json"};

// A parameter whose tensors, which lie together, are stored under names that begin with its own.
struct Subclass {
  std::string name;
  uint32_t file = 0;
  size_t first = 0, count = 0;  // tensors
};

using Entry = std::pair<std::string_view, uint32_t>;  // a name and its file

}  // namespace

struct Checkpoint::State {
  std::string path;
  WeightFiles chosen;
  std::vector<File> files;
  std::vector<TensorInfo> tensors;
  std::vector<Strides> strides;  // one for each tensor of files of torch, else none
  std::vector<Subclass> subclasses;
  NameMap<uint32_t> by_name;  // views into `tensors`
  std::map<std::string, std::string, std::less<>> metadata;
  std::map<std::string, Json, std::less<>> documents;
  std::optional<GgufMetadata> gguf;
  Buffer gguf_head;  // what `gguf` points into when the file is not mapped
  uint32_t gguf_version = 0;

  std::mutex mutex;  // guards `read`
  std::unordered_map<const TensorInfo*, Buffer> read;

  Result<void> open_file(const std::string& name, bool map);
  Result<SafetensorsHeader> read_safetensors(const File& file);
  Result<GgufHeader> read_gguf(const File& file, Buffer& owner);
  Result<void> open_shards(const OpenOptions& options);
  Result<void> add_torch(const File& file);
  Result<void> open_gguf(const OpenOptions& options);
  Result<void> check_split(const GgufMetadata& part, size_t number) const;
  Result<void> add(std::vector<TensorInfo> tensors);
  Result<void> index_names();
  std::vector<Entry> entries() const;
  Result<void> check_index();
  Result<void> drop_data_suffixes();
  Result<void> read_documents();
  Result<void> merge_metadata(std::vector<std::pair<std::string, std::string>> pairs);
  const TensorInfo* own(const TensorInfo& info) const;
  const Strides* strides_of(const TensorInfo& own) const;  // nullptr: row after row
  const Json* document(std::string_view name) const;
};

Result<void> Checkpoint::State::open_file(const std::string& name, bool map) {
  NIBBLE_ASSIGN(File file, File::open(chosen.folder + name, name, map));
  files.push_back(std::move(file));
  return {};
}

Result<SafetensorsHeader> Checkpoint::State::read_safetensors(const File& file) {
  Buffer first_owner;
  Buffer owner;
  NIBBLE_ASSIGN(const auto first,
                file.head(std::min<uint64_t>(kSniffed, file.size()), first_owner));
  NIBBLE_ASSIGN(const uint64_t bytes, safetensors_head_bytes(first, file.size(), file.name()));
  NIBBLE_ASSIGN(const auto head, file.head(bytes, owner));
  return parse_safetensors_header(head, file.size(), file.name());
}

// Not mapped, the length of the header is unknown before it is parsed: more is read until it fits.
Result<GgufHeader> Checkpoint::State::read_gguf(const File& file, Buffer& owner) {
  if (file.is_mapped() || file.size() == 0) {
    return parse_gguf(file.mapped(), file.size(), file.name());
  }
  for (uint64_t bytes = kFirstGgufRead;; bytes *= 4) {
    bytes = std::min(bytes, file.size());
    NIBBLE_ASSIGN(const auto head, file.head(bytes, owner));
    bool ended_early = false;
    Result<GgufHeader> header = parse_gguf(head, file.size(), file.name(), &ended_early);
    if (header || !ended_early || bytes == file.size()) return header;
  }
}

Result<void> Checkpoint::State::add_torch(const File& file) {
  const ReadAt read_at = [&](uint64_t offset, std::byte* out, uint64_t bytes) {
    return file.read(offset, out, bytes);
  };
  NIBBLE_ASSIGN(TorchHeader header, read_torch_file(read_at, file.size(), file.name()));
  for (std::string& text : header.warnings) chosen.warnings.push_back(std::move(text));
  for (Strides& s : header.strides) strides.push_back(std::move(s));
  std::vector<std::pair<std::string, std::string>> pairs;
  for (TorchSubclass& s : header.subclasses) {
    const auto number = static_cast<uint32_t>(files.size() - 1);
    subclasses.push_back({s.name, number, tensors.size() + s.first, s.count});
    pairs.emplace_back(std::move(s.name), std::move(s.json));
  }
  NIBBLE_TRY(merge_metadata(std::move(pairs)));
  return add(std::move(header.tensors));
}

Result<void> Checkpoint::State::open_shards(const OpenOptions& options) {
  for (const std::string& name : chosen.files) {
    Result<void> opened = open_file(name, options.mmap);
    if (!opened) {
      if (opened.error().code != ErrorCode::kNotFound || !chosen.index) return opened;
      return fail(ErrorCode::kNotFound,
                  fmt::format("{}: this shard is named by {} but not in the folder; download it",
                              shown(name), chosen.index_name));
    }
    if (chosen.kind == CheckpointKind::kTorch) {
      NIBBLE_TRY(add_torch(files.back()));
      continue;
    }
    NIBBLE_ASSIGN(SafetensorsHeader header, read_safetensors(files.back()));
    NIBBLE_TRY(merge_metadata(std::move(header.metadata)));
    NIBBLE_TRY(add(std::move(header.tensors)));
  }
  NIBBLE_TRY(index_names());
  if (chosen.index) NIBBLE_TRY(check_index());
  return drop_data_suffixes();
}

// torchao 0.14 calls every part of a tensor, also the only one of a plain tensor: `<name>:_data`.
Result<void> Checkpoint::State::drop_data_suffixes() {
  constexpr std::string_view kSuffix = ":_data";
  if (metadata.find("tensor_names") == metadata.end()) return {};
  by_name.clear();
  for (TensorInfo& info : tensors) {
    if (info.name.ends_with(kSuffix)) info.name.resize(info.name.size() - kSuffix.size());
  }
  return index_names();
}

Result<void> Checkpoint::State::check_split(const GgufMetadata& part, size_t number) const {
  NIBBLE_ASSIGN(const int64_t no, part.get_int("split.no"));
  NIBBLE_ASSIGN(const int64_t count, part.get_int("split.count"));
  if (no == static_cast<int64_t>(number) && count == static_cast<int64_t>(chosen.files.size())) {
    return {};
  }
  return fail(
      ErrorCode::kCorrupt,
      fmt::format("{}: its keys split.no and split.count say file {} of {}, its name says {} "
                  "of {}",
                  part.where(), no + 1, count, number + 1, chosen.files.size()));
}

Result<void> Checkpoint::State::open_gguf(const OpenOptions& options) {
  std::optional<int64_t> announced;
  for (size_t i = 0; i < chosen.files.size(); ++i) {
    NIBBLE_TRY(open_file(chosen.files[i], options.mmap));
    Buffer owner;
    NIBBLE_ASSIGN(GgufHeader header, read_gguf(files.back(), owner));
    if (chosen.files.size() > 1) NIBBLE_TRY(check_split(header.metadata, i));
    for (std::string& text : header.warnings) chosen.warnings.push_back(std::move(text));
    NIBBLE_TRY(add(std::move(header.tensors)));
    if (i != 0) continue;
    if (header.metadata.has("split.count")) {
      NIBBLE_ASSIGN(const int64_t count, header.metadata.get_int("split.count"));
      if (count > 1 && chosen.files.size() == 1) {
        return fail(ErrorCode::kNotFound,
                    fmt::format("{}: this is one of {} files of a split model; keep the names that "
                                "end in -00001-of-{:05}.gguf, all in one folder",
                                files[0].name(), count, count));
      }
      if (header.metadata.has("split.tensors.count")) {
        NIBBLE_ASSIGN(announced, header.metadata.get_int("split.tensors.count"));
      }
    }
    gguf_version = header.version;
    gguf = std::move(header.metadata);
    gguf_head = std::move(owner);
  }
  if (announced && *announced != static_cast<int64_t>(tensors.size())) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: split.tensors.count says {}, the {} files hold {}",
                            files[0].name(), *announced, files.size(), tensors.size()));
  }
  return index_names();
}

Result<void> Checkpoint::State::add(std::vector<TensorInfo> more) {
  if (more.size() > kMaxTensors - tensors.size()) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("{}: with this file the model has more than the {} tensors that nibble "
                            "reads",
                            files.back().name(), kMaxTensors));
  }
  for (TensorInfo& info : more) {
    info.file = static_cast<uint32_t>(files.size() - 1);
    tensors.push_back(std::move(info));
  }
  return {};
}

Result<void> Checkpoint::State::index_names() {
  by_name.reserve(tensors.size());
  for (uint32_t i = 0; i < tensors.size(); ++i) {
    const auto [at, fresh] = by_name.emplace(tensors[i].name, i);
    if (fresh) continue;
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: {}: this tensor is also in {}; keep the file that belongs to the "
                            "model",
                            files[tensors[i].file].name(), shown(tensors[i].name),
                            files[tensors[at->second].file].name()));
  }
  return {};
}

// What an index lists: tensors, and in the place of a subclass' tensors its parameter.
std::vector<Entry> Checkpoint::State::entries() const {
  std::vector<Entry> out;
  out.reserve(tensors.size());
  size_t i = 0;
  const auto add_up_to = [&](size_t end) {
    for (; i < end; ++i) out.emplace_back(tensors[i].name, tensors[i].file);
  };
  for (const Subclass& s : subclasses) {  // they are in the order of their tensors
    add_up_to(s.first);
    out.emplace_back(s.name, s.file);
    i += s.count;
  }
  add_up_to(tensors.size());
  return out;
}

// The index and the headers must agree on what is where.
Result<void> Checkpoint::State::check_index() {
  const ShardIndex& index = *chosen.index;  // its shards are `files`, in the same order
  const std::vector<Entry> names = entries();
  const NameMap<uint32_t> file_of(names.begin(), names.end());
  for (const auto& [name, shard] : index.tensors) {
    const auto at = file_of.find(name);
    if (at != file_of.end() && at->second == shard) continue;
    return fail(
        ErrorCode::kCorrupt,
        fmt::format(
            "{}: {}: the index says it is in {}, which does not hold it{}; index and "
            "shards are not of one download",
            chosen.index_name, shown(name), files[shard].name(),
            at == file_of.end() ? std::string() : " (" + files[at->second].name() + " does)"));
  }
  if (index.tensors.size() < names.size()) {
    NameMap<bool> listed;
    for (const auto& [name, shard] : index.tensors) listed.emplace(name, true);
    const auto is_unlisted = [&](const Entry& e) { return !listed.contains(e.first); };
    // A parameter without tensors may be in two files, and so here twice: then none may be left
    // out.
    const auto first = std::find_if(names.begin(), names.end(), is_unlisted);
    if (first != names.end()) {
      chosen.warnings.push_back(
          fmt::format("{}: {} stored tensors are not in the index, the first is {}",
                      chosen.index_name, std::count_if(first, names.end(), is_unlisted),
                      files[first->second].name() + ": " + shown(first->first)));
    }
  }
  double stored = 0;
  for (const TensorInfo& t : tensors) stored += static_cast<double>(t.bytes);
  if (index.total_size && *index.total_size != stored) {
    // Several tools count before they tie or repack; nothing depends on it.
    chosen.notes.push_back(
        fmt::format("{}: metadata.total_size says {:.0f} bytes, the shards hold "
                    "{:.0f}",
                    chosen.index_name, *index.total_size, stored));
  }
  return {};
}

// Shards repeat what the first one says.
Result<void> Checkpoint::State::merge_metadata(
    std::vector<std::pair<std::string, std::string>> pairs) {
  bool warned = false;
  for (auto& [key, value] : pairs) {
    const auto [at, fresh] = metadata.try_emplace(key, value);
    if (fresh || at->second == value || std::exchange(warned, true)) continue;
    chosen.warnings.push_back(fmt::format(
        "{}: __metadata__: {} is \"{}\" here and \"{}\" in an earlier file, whose value is "
        "used",
        files.back().name(), shown(key), shown(value, 40), shown(at->second, 40)));
  }
  if (metadata.size() <= kMaxTensors) return {};
  return fail(ErrorCode::kUnsupported,
              fmt::format("{}: with this file __metadata__ has more than the {} pairs that nibble "
                          "reads",
                          files.back().name(), kMaxTensors));
}

Result<void> Checkpoint::State::read_documents() {
  for (const char* name : kDocuments) {
    const std::string where = chosen.folder + name;
    struct stat status {};
    if (stat(where.c_str(), &status) != 0) continue;
    NIBBLE_ASSIGN(const std::string text, read_text(where, name, kMaxDocumentBytes));
    NIBBLE_ASSIGN(Json json, parse_document(text, name));
    documents.emplace(name, std::move(json));
  }
  if (document("config.json") != nullptr) return {};
  return fail(
      ErrorCode::kNotFound,
      fmt::format("{}: config.json is missing beside the weights; download it too", chosen.folder));
}

const TensorInfo* Checkpoint::State::own(const TensorInfo& info) const {
  const auto at = by_name.find(info.name);
  return at == by_name.end() ? nullptr : &tensors[at->second];
}

const Strides* Checkpoint::State::strides_of(const TensorInfo& own) const {
  const auto i = static_cast<size_t>(&own - tensors.data());
  return i >= strides.size() || strides[i].empty() ? nullptr : &strides[i];
}

const Json* Checkpoint::State::document(std::string_view name) const {
  const auto at = documents.find(name);
  return at == documents.end() ? nullptr : &at->second;
}

Checkpoint::Checkpoint(std::unique_ptr<State> state) : state_(std::move(state)) {}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

Result<Checkpoint> Checkpoint::open(const std::string& path, const OpenOptions& options) {
  auto state = std::make_unique<State>();
  state->path = path;
  NIBBLE_ASSIGN(state->chosen, find_weight_files(path));
  if (state->chosen.kind == CheckpointKind::kGguf) {
    NIBBLE_TRY(state->open_gguf(options));
  } else {
    NIBBLE_TRY(state->read_documents());
    NIBBLE_TRY(state->open_shards(options));
  }
  return Checkpoint(std::move(state));
}

CheckpointKind Checkpoint::kind() const { return state_->chosen.kind; }
const std::string& Checkpoint::path() const { return state_->path; }
const std::vector<TensorInfo>& Checkpoint::tensors() const { return state_->tensors; }
const TensorInfo* Checkpoint::find(std::string_view name) const {
  const auto at = state_->by_name.find(name);
  return at == state_->by_name.end() ? nullptr : &state_->tensors[at->second];
}
uint32_t Checkpoint::file_count() const { return static_cast<uint32_t>(state_->files.size()); }
const std::string& Checkpoint::file_name(uint32_t file) const { return state_->files[file].name(); }
uint64_t Checkpoint::file_bytes(uint32_t file) const { return state_->files[file].size(); }
std::string Checkpoint::describe(const TensorInfo& info) const {
  return fmt::format("{}: {}", file_name(info.file), shown(info.name));
}

Result<TensorView> Checkpoint::view(const TensorInfo& info) const {
  const TensorInfo* own = state_->own(info);
  if (own == nullptr) {
    return fail(ErrorCode::kNotFound,
                fmt::format("{}: no tensor {} is stored here", state_->path, shown(info.name)));
  }
  const File& file = state_->files[own->file];
  const Strides* strides = state_->strides_of(*own);
  TensorView view{own->dtype, own->shape, nullptr, own->bytes};
  if (file.is_mapped() && strides == nullptr) {
    view.data = file.mapped().data() + own->offset;
    return view;
  }
  {
    const std::lock_guard lock(state_->mutex);
    if (const auto at = state_->read.find(own); at != state_->read.end()) {
      view.data = at->second.data();
      return view;
    }
  }
  NIBBLE_ASSIGN(Buffer buffer, Buffer::allocate(own->bytes));
  if (strides == nullptr) {
    NIBBLE_TRY(file.read(own->offset, buffer.data(), own->bytes));
  } else {
    NIBBLE_ASSIGN(Buffer scattered, Buffer::allocate(span_bytes(*own, *strides)));
    NIBBLE_TRY(file.read(own->offset, scattered.data(), scattered.size()));
    gather(*own, *strides, scattered.data(), buffer.data());
  }
  const std::lock_guard lock(state_->mutex);
  view.data = state_->read.emplace(own, std::move(buffer)).first->second.data();
  return view;
}

void Checkpoint::drop(const TensorInfo& info) const {
  const TensorInfo* own = state_->own(info);
  if (own == nullptr) return;
  const File& file = state_->files[own->file];
  if (file.is_mapped()) file.drop(own->offset, own->bytes);
  const std::lock_guard lock(state_->mutex);
  state_->read.erase(own);
}

void Checkpoint::prefetch(const TensorInfo& info) const {
  const TensorInfo* own = state_->own(info);
  if (own != nullptr) state_->files[own->file].prefetch(own->offset, own->bytes);
}

const Json* Checkpoint::config() const { return state_->document("config.json"); }
const Json* Checkpoint::generation_config() const {
  return state_->document("generation_config.json");
}
const Json* Checkpoint::tokenizer_config() const {
  return state_->document("tokenizer_config.json");
}
const Json* Checkpoint::special_tokens_map() const {
  return state_->document("special_tokens_map.json");
}
const Json* Checkpoint::hf_quant_config() const { return state_->document("hf_quant_config.json"); }
const Json* Checkpoint::quantize_config() const {
  const Json* first = state_->document("quantize_config.json");
  return first != nullptr ? first : state_->document("quant_config.json");
}

bool Checkpoint::has_file(std::string_view name) const {
  struct stat status {};
  return kind() != CheckpointKind::kGguf && !name.empty() && name.find('/') == name.npos &&
         name.find('\0') == name.npos &&
         stat((state_->chosen.folder + std::string(name)).c_str(), &status) == 0 &&
         S_ISREG(status.st_mode);
}

Result<std::string> Checkpoint::read_small_file(std::string_view name, uint64_t limit) const {
  if (!has_file(name)) {
    return fail(ErrorCode::kNotFound,
                fmt::format("{}: the model has no file {}", state_->path, shown(name)));
  }
  return read_text(state_->chosen.folder + std::string(name), std::string(name), limit);
}

const std::map<std::string, std::string, std::less<>>& Checkpoint::metadata() const {
  return state_->metadata;
}
const GgufMetadata* Checkpoint::gguf() const { return state_->gguf ? &*state_->gguf : nullptr; }
uint32_t Checkpoint::gguf_version() const { return state_->gguf_version; }
const std::vector<std::string>& Checkpoint::notes() const { return state_->chosen.notes; }
const std::vector<std::string>& Checkpoint::warnings() const { return state_->chosen.warnings; }

}  // namespace nibble::checkpoint
