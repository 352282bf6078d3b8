#include "checkpoint/torch_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "checkpoint/file.h"
#include "checkpoint/name_map.h"
#include "checkpoint/pickle.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/torch_subclass.h"

namespace nibble::checkpoint {
namespace {

using tensor::DType;
using tensor::TensorInfo;
using Kind = PickleValue::Kind;
using Name = PickleValue::Name;

constexpr size_t kMaxTensors = size_t{1} << 20;
constexpr size_t kMaxRank = 16;
constexpr std::string_view kPickle = "/data.pkl";

uint64_t element_bytes(DType dtype) {
  return static_cast<uint64_t>(tensor::info(dtype).block_bytes);
}

class TorchReader {
 public:
  TorchReader(const ReadAt& read, uint64_t size, std::string_view where)
      : read_(read), size_(size), where_(where) {}

  Result<TorchHeader> run() {
    NIBBLE_TRY(open_archive());
    NIBBLE_ASSIGN(const std::string text, whole_entry(*pickle_entry_, kMaxPickleBytes));
    NIBBLE_ASSIGN(pickle_, parse_pickle(text, where_));
    const Kind kind = value(pickle_.root).kind;
    if (kind != Kind::kDict) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("{}: it holds {}, not a state dict (names and their tensors)", where_,
                              kind == Kind::kTensor ? "one tensor" : "something"));
    }
    std::string name;
    NIBBLE_TRY(walk(pickle_.root, name, 0));
    NIBBLE_TRY(check_names());
    warn_of_unused();
    return std::move(out_);
  }

 private:
  template <class... Args>
  Failure corrupt(fmt::format_string<Args...> format, Args&&... args) const {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: {}", where_, fmt::format(format, std::forward<Args>(args)...)));
  }
  template <class... Args>
  Failure unsupported(fmt::format_string<Args...> format, Args&&... args) const {
    return fail(ErrorCode::kUnsupported,
                fmt::format("{}: {}", where_, fmt::format(format, std::forward<Args>(args)...)));
  }
  const PickleValue& value(PickleId id) const { return pickle_.values[id]; }

  // --- the archive

  Result<void> open_archive() {
    std::string first(std::min<uint64_t>(size_, 512), '\0');
    NIBBLE_TRY(read_(0, reinterpret_cast<std::byte*>(first.data()), first.size()));
    NIBBLE_TRY(refuse_placeholder(std::as_bytes(std::span(first)), size_, where_));
    if (first.starts_with('\x80')) {
      return unsupported(
          "this file is in the format of PyTorch before 1.6 (2020), a pickle without an archive; "
          "load it with PyTorch and save the model as safetensors");
    }
    if (!first.starts_with("PK")) {
      return corrupt("this is no file of torch.save: it begins with \"{}\"",
                     shown(std::string_view(first).substr(0, 8)));
    }
    NIBBLE_ASSIGN(entries_, read_zip(read_, size_, where_));
    for (const ZipEntry& entry : entries_) {
      if (!entry.name.ends_with(kPickle)) continue;
      if (pickle_entry_ != nullptr) {
        return corrupt("the archive has two pickles, {} and {}", shown(pickle_entry_->name),
                       shown(entry.name));
      }
      pickle_entry_ = &entry;
    }
    if (pickle_entry_ == nullptr) {
      return corrupt("this zip archive has no entry data.pkl, so torch.save did not write it");
    }
    const std::string folder =
        pickle_entry_->name.substr(0, pickle_entry_->name.size() - kPickle.size() + 1);
    for (const ZipEntry& entry : entries_) {
      std::string_view name = entry.name;
      if (!name.starts_with(folder)) continue;
      name.remove_prefix(folder.size());
      if (name == "constants.pkl") {
        return unsupported("this is a TorchScript program, not a state dict");
      }
      if (name == "byteorder") {
        NIBBLE_ASSIGN(const std::string order, whole_entry(entry, 16));
        if (order != "little") return unsupported("its byte order is \"{}\"", shown(order));
      }
      if (name.starts_with("data/")) {
        storages_.emplace(name.substr(5), Storage{entry.offset, entry.bytes, false});
      }
    }
    return {};
  }

  Result<std::string> whole_entry(const ZipEntry& entry, uint64_t limit) const {
    if (entry.bytes > limit) {
      return unsupported("{}: {} bytes, more than the {} that nibble reads", shown(entry.name),
                         entry.bytes, limit);
    }
    std::string out(entry.bytes, '\0');
    NIBBLE_TRY(read_(entry.offset, reinterpret_cast<std::byte*>(out.data()), out.size()));
    return out;
  }

  // --- the tree

  Result<void> walk(PickleId id, std::string& name, int depth) {
    const PickleValue& v = value(id);
    if (++visits_ > kMaxPickleVisits) {
      return unsupported("the dicts hold more than the {} values that nibble reads",
                         kMaxPickleVisits);
    }
    if (v.kind == Kind::kTensor) return add(v, name);
    if (v.kind == Kind::kSubclass) return add_subclass(v, name, depth);
    if (v.name == Name::kTorchao || v.kind == Kind::kEnum || v.kind == Kind::kObject) {
      return unsupported("{}: something of torchao that is no tensor and no attribute of one",
                         shown(name));
    }
    if (v.kind == Kind::kStorage) {
      return unsupported("{}: a storage without a tensor around it", shown(name));
    }
    if (v.kind != Kind::kDict && v.kind != Kind::kList && v.kind != Kind::kTuple) return {};
    if (depth == kMaxPickleDepth) {
      return unsupported("{}: dicts lie more than {} deep in each other", shown(name),
                         kMaxPickleDepth);
    }
    const size_t step = v.kind == Kind::kDict ? 2 : 1;
    for (size_t i = 0; i + step <= v.items.size(); i += step) {
      const size_t length = name.size();
      NIBBLE_TRY(append_key(v, i, name));
      NIBBLE_TRY(walk(v.items[i + step - 1], name, depth + 1));
      name.resize(length);
    }
    return {};
  }

  Result<void> append_key(const PickleValue& v, size_t i, std::string& name) const {
    std::string key = std::to_string(i);
    if (v.kind == Kind::kDict) {
      const PickleValue& k = value(v.items[i]);
      if (k.kind == Kind::kText && k.text.size() <= kMaxPickleName) {
        key = k.text;
      } else if (k.kind == Kind::kInt) {
        key = std::to_string(k.number);
      } else {
        return unsupported("{}: a key of this dict is no short text", shown(name));
      }
    }
    if (!name.empty() && !key.empty()) name += '.';
    name += key;
    if (name.size() <= kMaxPickleName) return {};
    return unsupported("{}: a name of more than {} bytes", shown(name), kMaxPickleName);
  }

  // --- one tensor

  // The numbers of a tuple of integers that are not negative.
  Result<std::vector<int64_t>> sizes(PickleId id, std::string_view name) const {
    const PickleValue& v = value(id);
    std::vector<int64_t> out;
    if (v.kind != Kind::kTuple || v.items.size() > kMaxRank) {
      return corrupt("{}: its shape is no tuple of at most {} integers", shown(name), kMaxRank);
    }
    for (const PickleId item : v.items) {
      if (value(item).kind != Kind::kInt || value(item).number < 0) {
        return corrupt("{}: its shape has what is no integer, or one below 0", shown(name));
      }
      out.push_back(value(item).number);
    }
    return out;
  }

  struct Storage {
    uint64_t offset = 0, bytes = 0;
    bool used = false;
  };

  // The storage of a tensor, and its type (kUntyped's is left alone).
  Result<const Storage*> storage_of(PickleId id, std::string_view name, DType& dtype) {
    const PickleValue& v = value(id);
    const std::vector<PickleId> none;
    const std::vector<PickleId>& key = v.kind == Kind::kStorage ? value(v.items[0]).items : none;
    if (key.size() < 5 || value(key[0]).text != "storage" || value(key[1]).kind != Kind::kName ||
        value(key[2]).kind != Kind::kText || value(key[4]).kind != Kind::kInt) {
      return corrupt("{}: what should be its storage is none", shown(name));
    }
    const PickleValue& type = value(key[1]);
    uint64_t unit = 1;
    if (type.name == Name::kStorageType) {
      dtype = type.dtype;
      unit = element_bytes(dtype);
    } else if (type.name != Name::kUntyped) {
      return corrupt("{}: what should be its storage is none", shown(name));
    }
    const auto at = storages_.find(value(key[2]).text);
    if (at == storages_.end()) {
      return corrupt(
          "{}: the archive has no entry data/{}, which holds its numbers; the file is "
          "not complete, download it again",
          shown(name), shown(value(key[2]).text));
    }
    const int64_t count = value(key[4]).number;
    if (count < 0 || at->second.bytes / unit != static_cast<uint64_t>(count) ||
        at->second.bytes % unit != 0) {
      return corrupt("{}: its storage has {} elements of {} bytes, the entry data/{} {} bytes",
                     shown(name), count, unit, shown(value(key[2]).text), at->second.bytes);
    }
    at->second.used = true;
    return &at->second;
  }

  Result<void> add(const PickleValue& tensor, const std::string& name) {
    const std::vector<PickleId>& args = value(tensor.items[0]).items;
    const bool typed = tensor.name == Name::kTensorV3;
    if (args.size() < (typed ? 7u : 4u)) return corrupt("{}: a tensor of too few parts", name);
    TensorInfo info;
    info.name = name;
    NIBBLE_ASSIGN(const Storage* storage, storage_of(args[0], name, info.dtype));
    if (typed) {
      const PickleValue& type = value(args[6]);
      if (type.kind != Kind::kName || type.name != Name::kDType) {
        return unsupported("{}: tensors of the type {} are not read", shown(name),
                           type.text.substr(type.text.find('\n') + 1));
      }
      info.dtype = type.dtype;
    } else if (args.size() > 6 && !value(args[6]).items.empty()) {
      return unsupported("{}: a view that conjugates or negates", shown(name));
    }
    NIBBLE_ASSIGN(info.shape, sizes(args[2], name));
    NIBBLE_ASSIGN(Strides strides, sizes(args[3], name));
    const int64_t first = value(args[1]).kind == Kind::kInt ? value(args[1]).number : -1;
    NIBBLE_TRY(place(info, strides, first, *storage));
    if (out_.tensors.size() == kMaxTensors) {
      return unsupported("more than the {} tensors that nibble reads", kMaxTensors);
    }
    out_.tensors.push_back(std::move(info));
    out_.strides.push_back(std::move(strides));
    return {};
  }

  Result<void> add_subclass(const PickleValue& v, std::string& name, int depth) {
    const size_t first = out_.tensors.size();
    NIBBLE_ASSIGN(std::string json, read_subclass(subclasses_, v, name, depth));
    out_.subclasses.push_back({name, std::move(json), first, out_.tensors.size() - first});
    return {};
  }

  // Fills offset and bytes, and empties strides that are the usual ones.
  Result<void> place(TensorInfo& info, Strides& strides, int64_t first, const Storage& storage) {
    const std::optional<uint64_t> bytes = packed_bytes(info.dtype, info.shape);
    if (first < 0 || strides.size() != info.shape.size() || !bytes) {
      return corrupt("{}: shape {}, {} strides and the offset {} make no tensor", shown(info.name),
                     tensor::to_string(info.shape), strides.size(), first);
    }
    info.bytes = *bytes;
    info.offset = storage.offset;
    if (*bytes == 0) {
      Strides().swap(strides);
      return {};
    }
    const uint64_t unit = element_bytes(info.dtype), count = storage.bytes / unit;
    bool is_usual = true, fits = static_cast<uint64_t>(first) < count;
    uint64_t usual = 1, last = static_cast<uint64_t>(first);
    for (size_t i = strides.size(); i-- > 0 && fits;) {
      const auto steps = static_cast<uint64_t>(info.shape[i] - 1);
      const auto stride = static_cast<uint64_t>(strides[i]);
      if (steps != 0) is_usual &= stride == usual;
      usual *= steps + 1;
      fits = steps == 0 || stride <= (count - 1 - last) / steps;
      if (fits) last += steps * stride;
    }
    if (!fits) {
      return corrupt("{}: its last element would lie behind the {} bytes of its storage",
                     shown(info.name), storage.bytes);
    }
    if (is_usual) Strides().swap(strides);
    if (*bytes > storage.bytes) {
      return unsupported("{}: a view that repeats its elements, {} bytes out of {}",
                         shown(info.name), *bytes, storage.bytes);
    }
    info.offset += static_cast<uint64_t>(first) * unit;
    return {};
  }

  // --- the whole

  Result<void> check_names() const {
    NameMap<bool> seen;
    seen.reserve(out_.tensors.size() + out_.subclasses.size());
    for (const TensorInfo& t : out_.tensors) NIBBLE_TRY(check_name(t.name, seen));
    for (const TorchSubclass& s : out_.subclasses) NIBBLE_TRY(check_name(s.name, seen));
    return {};
  }
  Result<void> check_name(std::string_view name, NameMap<bool>& seen) const {
    if (name.empty()) return corrupt("a tensor has no name");
    if (seen.emplace(name, true).second) return {};
    return corrupt("{}: this name stands twice in the dicts", shown(name));
  }

  void warn_of_unused() {
    size_t count = 0;
    std::string_view first;
    for (const auto& [key, storage] : storages_) {
      if (storage.used || storage.bytes == 0) continue;
      if (count++ == 0 || key < first) first = key;
    }
    if (count == 0) return;
    out_.warnings.push_back(fmt::format("{}: {} storages belong to no tensor, the first is data/{}",
                                        where_, count, shown(first)));
  }

  const ReadAt& read_;
  uint64_t size_;
  std::string_view where_;
  std::vector<ZipEntry> entries_;
  const ZipEntry* pickle_entry_ = nullptr;
  NameMap<Storage> storages_;  // views into `entries_`
  Pickle pickle_;
  SubclassSource subclasses_{
      pickle_, where_,
      [this](const PickleValue& tensor, const std::string& name) { return add(tensor, name); }};
  size_t visits_ = 0;
  TorchHeader out_;
};

}  // namespace

Result<TorchHeader> read_torch_file(const ReadAt& read, uint64_t file_size,
                                    std::string_view where) {
  return TorchReader(read, file_size, where).run();
}

uint64_t span_bytes(const TensorInfo& info, const Strides& strides) {
  if (strides.empty()) return info.bytes;
  int64_t last = 0;
  for (size_t i = 0; i < strides.size(); ++i) last += (info.shape[i] - 1) * strides[i];
  return (static_cast<uint64_t>(last) + 1) * element_bytes(info.dtype);
}

void gather(const TensorInfo& info, const Strides& strides, const std::byte* from, std::byte* to) {
  const uint64_t unit = element_bytes(info.dtype);
  std::vector<int64_t> at(strides.size(), 0);
  for (uint64_t done = 0; done < info.bytes; done += unit) {
    int64_t index = 0;
    for (size_t i = 0; i < at.size(); ++i) index += at[i] * strides[i];
    std::memcpy(to + done, from + static_cast<uint64_t>(index) * unit, unit);
    for (size_t i = at.size(); i-- > 0 && ++at[i] == info.shape[i];) at[i] = 0;
  }
}

}  // namespace nibble::checkpoint
