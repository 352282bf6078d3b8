#include "checkpoint/folder.h"

#include <dirent.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <set>

#include "checkpoint/file.h"

namespace nibble::checkpoint {
namespace {

constexpr size_t kListed = 4;            // names in a message
constexpr size_t kMaxEntries = 100'000;  // of a folder
constexpr uint64_t kMaxIndexBytes = uint64_t{128} << 20;

// What the files of one kind are called.
struct Naming {
  std::string_view ending, single, index, index_ending;
};
constexpr Naming kSafetensors = {".safetensors", "model.safetensors",
                                 "model.safetensors.index.json", ".safetensors.index.json"};
constexpr Naming kTorch = {".bin", "pytorch_model.bin", "pytorch_model.bin.index.json",
                           ".bin.index.json"};
constexpr std::string_view kHqqFile = "qmodel.pt";

using Names = std::vector<std::string>;

std::string joined(const Names& names) {
  std::string out;
  for (size_t i = 0; i < std::min(names.size(), kListed); ++i) {
    out += (i == 0 ? "" : ", ") + shown(names[i], 80);
  }
  if (names.size() > kListed) out += fmt::format(" and {} more", names.size() - kListed);
  return out;
}

// All lists here are sorted.
bool contains(const Names& names, std::string_view name) {
  return std::binary_search(names.begin(), names.end(), name);
}

Names ending_in(const Names& names, std::string_view ending) {
  Names out;
  std::copy_if(names.begin(), names.end(), std::back_inserter(out),
               [&](const std::string& n) { return n.ends_with(ending); });
  return out;
}

Result<Names> list(const std::string& folder) {
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(opendir(folder.c_str()), closedir);
  if (dir == nullptr) {
    return fail(ErrorCode::kIo,
                fmt::format("{}: cannot list the folder: {}", folder, system_message(errno)));
  }
  Names out;
  while (const dirent* entry = readdir(dir.get())) {
    if (entry->d_name[0] == '.') continue;
    if (out.size() == kMaxEntries) {
      return fail(
          ErrorCode::kUnsupported,
          fmt::format("{}: more than {} files; this is no model's folder", folder, kMaxEntries));
    }
    out.emplace_back(entry->d_name);
  }
  std::sort(out.begin(), out.end());
  return out;
}

bool is_pickle(std::string_view name) {
  for (std::string_view ending : {".bin", ".pt", ".pth", ".ckpt", ".pkl"}) {
    if (name.ends_with(ending)) return true;
  }
  return false;
}

// What a trainer saves beside the weights.
bool is_training_state(std::string_view name) {
  for (std::string_view start :
       {"training_args", "optimizer", "scheduler", "scaler", "rng_state"}) {
    if (name.starts_with(start)) return true;
  }
  return false;
}

// Every file of the set that `name` is numbered in; an error that lists those not there.
Result<Names> whole_set(const ShardName& name, const Names& present, const std::string& folder) {
  Names set;
  Names missing;
  for (int i = 1; i <= name.count; ++i) {
    std::string sibling = name.sibling(i);
    (contains(present, sibling) ? set : missing).push_back(std::move(sibling));
  }
  if (missing.empty()) return set;
  return fail(ErrorCode::kNotFound,
              fmt::format("{}: {} of {} shards are missing: {}; download them", folder,
                          missing.size(), name.count, joined(missing)));
}

Failure nothing_found(const std::string& folder, const Names& names) {
  if (contains(names, "snapshots")) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("{}: this is a repository of the hub's cache; give one of the folders "
                            "under its \"snapshots\"",
                            folder));
  }
  if (names.empty()) {
    return fail(ErrorCode::kNotFound,
                fmt::format("{}: the folder is empty; download the model into it", folder));
  }
  return fail(
      ErrorCode::kNotFound,
      fmt::format("{}: neither *.safetensors nor *.gguf nor *.bin in this folder; it holds {}",
                  folder, joined(names)));
}

Result<void> choose_gguf(const Names& ggufs, WeightFiles& out) {
  Names models;
  Names projectors;
  for (const std::string& n : ggufs) {
    const std::optional<ShardName> shard = parse_shard_name(n);
    if (shard && shard->number != 1 && contains(ggufs, shard->sibling(1))) continue;  // of a set
    (n.starts_with("mmproj") ? projectors : models).push_back(n);
  }
  if (models.empty()) models.swap(projectors);
  if (models.size() != 1) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("{}: the folder holds {} GGUF models ({}); name one of the files",
                            out.folder, models.size(), joined(models)));
  }
  if (!projectors.empty()) {
    out.notes.push_back(
        fmt::format("{}: not read, nibble reads the text model", joined(projectors)));
  }
  out.kind = CheckpointKind::kGguf;
  out.files = models;
  if (const std::optional<ShardName> shard = parse_shard_name(models[0])) {
    NIBBLE_ASSIGN(out.files, whole_set(*shard, ggufs, out.folder));
  }
  return {};
}

// The index that counts: the usual name, or the only one there is.
Result<std::string> choose_index(const Names& names, const Naming& naming,
                                 const std::string& folder) {
  const Names all = ending_in(names, naming.index_ending);
  if (contains(all, naming.index)) return std::string(naming.index);
  if (all.size() <= 1) return all.empty() ? std::string() : all[0];
  return fail(ErrorCode::kUnsupported,
              fmt::format("{}: {} shard indexes ({}) and none is {}; keep one of them in the "
                          "folder",
                          folder, all.size(), joined(all), naming.index));
}

// Several files and no index: all of them, but for a second copy in Mistral's own naming.
Result<void> choose_several(Names files, WeightFiles& out) {
  Names usual;
  std::copy_if(files.begin(), files.end(), std::back_inserter(usual),
               [](const std::string& n) { return !n.starts_with("consolidated"); });
  if (!usual.empty()) files = usual;
  std::set<std::string> checked;  // one entry a set, or a folder of many shards takes n^2
  for (const std::string& n : files) {
    const std::optional<ShardName> shard = parse_shard_name(n);
    if (shard && checked.insert(shard->sibling(0)).second) {
      NIBBLE_TRY(whole_set(*shard, files, out.folder));
    }
  }
  if (files.size() > 1) {
    out.notes.push_back(fmt::format("{} {} files without an index ({}): all are read", files.size(),
                                    out.kind == CheckpointKind::kTorch ? "torch" : "safetensors",
                                    joined(files)));
  }
  out.files = std::move(files);
  return {};
}

// By an index, by the usual name, or all that there are.
Result<void> choose_indexed(const Names& names, const Naming& naming, Names files,
                            WeightFiles& out) {
  NIBBLE_ASSIGN(out.index_name, choose_index(names, naming, out.folder));
  const bool has_single = contains(files, naming.single);
  if (!out.index_name.empty()) {
    NIBBLE_ASSIGN(const std::string text,
                  read_text(out.folder + out.index_name, out.index_name, kMaxIndexBytes));
    NIBBLE_ASSIGN(ShardIndex index, parse_shard_index(text, out.index_name, naming.ending));
    if (has_single && !contains(index.shards, naming.single)) {
      out.warnings.push_back(
          fmt::format("{}: not used: it does not name {}, which stands beside it and is read",
                      out.index_name, naming.single));
      out.index_name.clear();
    } else {
      out.files = index.shards;
      out.index = std::move(index);
      return {};
    }
  }
  if (has_single) {
    out.files = {std::string(naming.single)};
    return {};
  }
  return choose_several(std::move(files), out);
}

void note_what_is_passed_over(const Names& names, WeightFiles& out) {
  Names other;
  for (const std::string& n : names) {
    const bool weights = n.ends_with(".safetensors") || n.ends_with(".gguf") ||
                         (is_pickle(n) && !is_training_state(n));
    if (weights && !contains(out.files, n) && !n.starts_with("mmproj")) other.push_back(n);
  }
  if (!other.empty()) {
    out.notes.push_back(fmt::format("not read: {}; the weights are taken from {}", joined(other),
                                    joined(out.files)));
  }
}

Result<WeightFiles> in_folder(std::string folder) {
  WeightFiles out;
  if (!folder.ends_with('/')) folder += '/';
  out.folder = folder;
  NIBBLE_ASSIGN(const Names names, list(folder));
  Names adapters;
  const auto set_adapters_aside = [&](Names& files) {
    std::erase_if(files, [&](const std::string& n) {
      if (n.starts_with("adapter_")) adapters.push_back(n);
      return n.starts_with("adapter_");
    });
  };
  Names files = ending_in(names, kSafetensors.ending);
  set_adapters_aside(files);
  const Names ggufs = ending_in(names, ".gguf");
  Names pickles;
  std::copy_if(names.begin(), names.end(), std::back_inserter(pickles),
               [](const std::string& n) { return is_pickle(n) && !is_training_state(n); });
  set_adapters_aside(pickles);
  const bool weights = !files.empty() || !ggufs.empty() || !pickles.empty();
  if (contains(names, "model_index.json") && !(weights && contains(names, "config.json"))) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("{}: model_index.json says that this is a pipeline of the diffusers "
                            "library, which makes pictures, video or sound; nibble runs language "
                            "models that write text: give the folder of one",
                            folder));
  }
  if (!files.empty() || !ending_in(names, kSafetensors.index_ending).empty()) {
    NIBBLE_TRY(choose_indexed(names, kSafetensors, std::move(files), out));
  } else if (!ggufs.empty()) {
    NIBBLE_TRY(choose_gguf(ggufs, out));
  } else if (!pickles.empty() || !ending_in(names, kTorch.index_ending).empty()) {
    out.kind = CheckpointKind::kTorch;
    if (contains(pickles, kHqqFile)) pickles = {std::string(kHqqFile)};
    NIBBLE_TRY(choose_indexed(names, kTorch, std::move(pickles), out));
  } else if (!adapters.empty()) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("{}: this is a LoRA adapter ({}), not a model; merge it into its base "
                            "model first",
                            folder, joined(adapters)));
  } else {
    return nothing_found(folder, names);
  }
  note_what_is_passed_over(names, out);
  return out;
}

Result<WeightFiles> one_file(const std::string& path) {
  WeightFiles out;
  const size_t slash = path.rfind('/');
  const size_t start = slash == path.npos ? 0 : slash + 1;
  out.folder = path.substr(0, start);
  const std::string name = path.substr(start);
  if (name.ends_with(".safetensors") || name.ends_with(".json") || is_pickle(name)) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("{}: this is one file of a model; give the folder it stands in", path));
  }
  out.kind = CheckpointKind::kGguf;
  out.files = {name};
  const std::optional<ShardName> shard = parse_shard_name(name);
  if (shard && shard->extension == ".gguf") {
    NIBBLE_ASSIGN(const Names names, list(out.folder.empty() ? "./" : out.folder));
    NIBBLE_ASSIGN(out.files, whole_set(*shard, names, out.folder.empty() ? "./" : out.folder));
  }
  return out;
}

}  // namespace

std::optional<ShardName> parse_shard_name(std::string_view name) {
  constexpr std::string_view kPattern = "-00000-of-00000";
  const size_t dot = name.rfind('.');
  if (dot == name.npos || dot <= kPattern.size()) return std::nullopt;
  const std::string_view middle = name.substr(dot - kPattern.size(), kPattern.size());
  for (size_t i = 0; i < kPattern.size(); ++i) {
    const bool digit = middle[i] >= '0' && middle[i] <= '9';
    if (kPattern[i] == '0' ? !digit : middle[i] != kPattern[i]) return std::nullopt;
  }
  ShardName out;
  out.stem = name.substr(0, dot - kPattern.size());
  out.extension = name.substr(dot);
  out.number = std::stoi(std::string(middle.substr(1, 5)));
  out.count = std::stoi(std::string(middle.substr(10, 5)));
  if (out.number < 1 || out.number > out.count) return std::nullopt;
  return out;
}

std::string ShardName::sibling(int n) const {
  return fmt::format("{}-{:05}-of-{:05}{}", stem, n, count, extension);
}

Result<std::string> read_text(const std::string& path, const std::string& name, uint64_t limit) {
  NIBBLE_ASSIGN(const File file, File::open(path, name, /*map=*/false));
  if (file.size() > limit) {
    return fail(ErrorCode::kCorrupt, fmt::format("{}: {} bytes, more than the {} that such a file "
                                                 "may have",
                                                 name, file.size(), limit));
  }
  std::string text(file.size(), '\0');
  NIBBLE_TRY(file.read(0, reinterpret_cast<std::byte*>(text.data()), text.size()));
  NIBBLE_TRY(refuse_placeholder(std::as_bytes(std::span(text)), text.size(), name));
  return text;
}

Result<WeightFiles> find_weight_files(const std::string& path) {
  struct stat status {};
  if (path.empty() || path.find('\0') != path.npos) {
    return fail(ErrorCode::kUsage, "the model's path is empty");
  }
  if (stat(path.c_str(), &status) != 0) {
    return fail(errno == ENOENT || errno == ENOTDIR ? ErrorCode::kNotFound : ErrorCode::kIo,
                fmt::format("{}: cannot open the model: {}{}", path, system_message(errno),
                            path.find('/') != path.npos
                                ? ""
                                : "; nor is a packaged model of this name in $NIBBLE_MODELS or "
                                  "~/.cache/nibble/models"));
  }
  return S_ISDIR(status.st_mode) ? in_folder(path) : one_file(path);
}

}  // namespace nibble::checkpoint
