#include "checkpoint/gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "checkpoint/file.h"
#include "checkpoint/gguf_types.h"

namespace nibble::checkpoint {
namespace {

using tensor::TensorInfo;

constexpr uint64_t kMaxNameBytes = 65535;  // the format's limit for keys
constexpr uint32_t kMaxRank = 4;
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMaxAlignment = uint64_t{1} << 30;
constexpr uint64_t kMaxItems = uint64_t{1} << 20;    // five times what the largest models have
constexpr uint64_t kMinPairBytes = 8 + 4 + 1;        // an empty key and one byte
constexpr uint64_t kMinTensorBytes = 8 + 4 + 4 + 8;  // an empty name and no dimension

// The bytes of one element; 8 for a string (its length; the text is read from it).
uint64_t element_bytes(GgufType type) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kS8:
    case GgufType::kBool:
      return 1;
    case GgufType::kU16:
    case GgufType::kS16:
      return 2;
    case GgufType::kU32:
    case GgufType::kS32:
    case GgufType::kF32:
      return 4;
    case GgufType::kU64:
    case GgufType::kS64:
    case GgufType::kF64:
    case GgufType::kString:
      return 8;
    case GgufType::kArray:
      break;
  }
  return 12;
}

uint64_t align_up(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

}  // namespace

// Walks the header once. A read beyond the end sets error_ and returns zeros; callers check ok().
class GgufReader {
 public:
  GgufReader(std::span<const std::byte> bytes, uint64_t file_size, std::string_view where)
      : bytes_(bytes), file_size_(file_size), where_(where) {}

  bool parse() {
    return read_counts() && read_pairs() && read_alignment() && read_tensors() && place_tensors();
  }
  bool ended_early() const { return ended_early_; }
  GgufHeader take() { return std::move(header_); }
  Failure failure() const { return fail(code_, error_); }

 private:
  template <class... Args>
  bool stop(fmt::format_string<Args...> format, Args&&... args) {
    error_ = fmt::format("{}: {}", where_, fmt::format(format, std::forward<Args>(args)...));
    return false;
  }

  uint64_t left() const { return bytes_.size() - at_; }
  uint64_t left_in_file() const { return file_size_ - at_; }

  // What is being read, for messages: by its name once that is known, before by its number.
  std::string subject() const {
    if (!name_.empty()) return shown(name_);
    return number_ == 0 ? std::string(kind_) : fmt::format("{} {}", kind_, number_);
  }
  void begin_item(std::string_view kind, uint64_t number) {
    kind_ = kind;
    number_ = number;
    name_ = {};
  }

  // Whether `bytes` more can be read.
  bool need(uint64_t bytes) {
    if (bytes <= left()) return true;
    ended_early_ = bytes <= left_in_file();
    return stop(
        "{}: {} bytes are needed at byte {} of the file, {} are left; it is cut short or "
        "damaged, download it again",
        subject(), bytes, at_, left_in_file());
  }

  template <class T>
  bool read(T& out) {
    if (!need(sizeof(T))) return false;
    std::memcpy(&out, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return true;
  }

  bool read_string(std::string_view& out) {
    uint64_t length;
    if (!read(length) || !need(length)) return false;
    out = as_text(bytes_.subspan(at_, length));
    at_ += length;
    return true;
  }

  // The name that opens a key-value pair or a tensor.
  bool read_name() {
    std::string_view name;
    if (!read_string(name)) return false;
    if (name.empty() || name.size() > kMaxNameBytes) {
      return stop("{}: its name has {} bytes; 1 to {} are allowed", subject(), name.size(),
                  kMaxNameBytes);
    }
    name_ = name;
    return true;
  }

  bool read_counts() {
    uint32_t version;
    if (as_text(bytes_.first(std::min<size_t>(4, bytes_.size()))) != "GGUF") {
      return stop("a GGUF file begins with \"GGUF\", this one with \"{}\"",
                  shown(as_text(bytes_.first(std::min<size_t>(4, bytes_.size())))));
    }
    at_ = 4;
    if (!read(version)) return false;
    header_.version = version;
    code_ = ErrorCode::kUnsupported;
    if (version != 0 && (version & 0xffff) == 0) {
      return stop("this file is big-endian (for s390x and the like); use a little-endian one");
    }
    if (version == 1) {
      return stop(
          "GGUF version 1 is not read; convert it with a llama.cpp of 2023, or download a "
          "newer file");
    }
    if (version != 2 && version != 3) {
      return stop("GGUF version {} is unknown; versions 2 and 3 are read", version);
    }
    code_ = ErrorCode::kCorrupt;
    if (!read(tensor_count_) || !read(pair_count_)) return false;
    if (pair_count_ > kMaxItems || tensor_count_ > kMaxItems) {
      return stop(
          "{} key-value pairs and {} tensors are announced; nibble reads at most {} of each",
          pair_count_, tensor_count_, kMaxItems);
    }
    if (pair_count_ > left_in_file() / kMinPairBytes) {
      return stop("{} key-value pairs are announced, {} bytes follow", pair_count_, left_in_file());
    }
    if (tensor_count_ > left_in_file() / kMinTensorBytes) {
      return stop("{} tensors are announced, {} bytes follow", tensor_count_, left_in_file());
    }
    return true;
  }

  bool read_pairs() {
    header_.metadata.where_ = where_;
    for (uint64_t i = 0; i < pair_count_; ++i) {
      begin_item("key-value pair", i + 1);
      GgufEntry entry;
      uint32_t type;
      if (!read_name()) return false;
      entry.key = name_;
      if (!header_.metadata.index_.emplace(entry.key, static_cast<uint32_t>(i)).second) {
        return stop("{}: this key stands twice", subject());
      }
      if (!read(type) || !read_value(type, entry)) return false;
      header_.metadata.entries_.push_back(entry);
    }
    return true;
  }

  bool known_type(uint32_t type) {
    if (type <= static_cast<uint32_t>(GgufType::kF64)) return true;
    return stop("{}: value type {} is unknown", subject(), type);
  }

  bool read_value(uint32_t type, GgufEntry& entry) {
    if (!known_type(type)) return false;
    if (type == static_cast<uint32_t>(GgufType::kArray)) {
      if (!read(type) || !read(entry.count)) return false;
      if (!known_type(type)) return false;
      if (type == static_cast<uint32_t>(GgufType::kArray)) {
        code_ = ErrorCode::kUnsupported;
        return stop("{}: an array of arrays is not read", subject());
      }
      entry.is_array = true;
    }
    entry.type = static_cast<GgufType>(type);
    const uint64_t size = element_bytes(entry.type);
    if (entry.count > left_in_file() / size) {
      return stop(
          "{}: {} values of {} are announced, {} bytes follow; it is cut short or damaged, "
          "download it again",
          subject(), entry.count, name(entry.type), left_in_file());
    }
    const size_t begin = at_;
    if (entry.type == GgufType::kString) {
      std::string_view text;
      for (uint64_t i = 0; i < entry.count; ++i) {
        if (!read_string(text)) return false;
      }
    } else {
      if (!need(entry.count * size)) return false;
      at_ += entry.count * size;
    }
    entry.value = bytes_.subspan(begin, at_ - begin);
    return entry.type != GgufType::kBool || check_bools(entry);
  }

  bool check_bools(const GgufEntry& entry) {
    for (std::byte b : entry.value) {
      if (b > std::byte{1}) {
        return stop("{}: a bool must be 0 or 1, found {}", subject(), static_cast<int>(b));
      }
    }
    return true;
  }

  bool read_alignment() {
    const GgufEntry* entry = header_.metadata.find("general.alignment");
    if (entry == nullptr) return true;
    const Result<uint64_t> value = header_.metadata.get_uint("general.alignment");
    if (!value) {
      error_ = value.error().message;
      return false;
    }
    alignment_ = *value;
    if (alignment_ < 8 || alignment_ > kMaxAlignment || (alignment_ & (alignment_ - 1)) != 0) {
      return stop("general.alignment: expected a power of two from 8 to {}, found {}",
                  kMaxAlignment, alignment_);
    }
    return true;
  }

  bool read_tensors() {
    NameMap<bool> seen;
    // A header that lies about its count must not make us reserve much more than it holds.
    header_.tensors.reserve(std::min<uint64_t>(tensor_count_, left() / kMinTensorBytes));
    for (uint64_t i = 0; i < tensor_count_; ++i) {
      begin_item("tensor", i + 1);
      if (!read_name()) return false;
      if (!seen.emplace(name_, true).second) return stop("{}: this name stands twice", subject());
      TensorInfo info;
      info.name = name_;
      if (!read_tensor(info)) return false;
      header_.tensors.push_back(std::move(info));
    }
    return true;
  }

  bool read_tensor(TensorInfo& info) {
    uint32_t rank;
    uint32_t id;
    if (!read(rank)) return false;
    if (rank > kMaxRank) {
      return stop("{}: {} dimensions; at most {} are allowed", subject(), rank, kMaxRank);
    }
    info.shape.resize(rank);
    for (uint32_t d = 0; d < rank; ++d) {
      uint64_t dim;
      if (!read(dim)) return false;
      if (dim > static_cast<uint64_t>(INT64_MAX)) {
        return stop("{}: dimension {} is {}, more than 2^63", subject(), d, dim);
      }
      info.shape[rank - 1 - d] = static_cast<int64_t>(dim);  // the file has the fastest first
    }
    if (!read(id) || !read(info.offset)) return false;
    return set_type(id, info);
  }

  bool set_type(uint32_t id, TensorInfo& info) {
    const GgmlType* type = find_ggml_type(id);
    if (type == nullptr || !type->dtype) {
      code_ = ErrorCode::kUnsupported;
      if (type == nullptr) return stop("{}: tensor type {} is unknown", subject(), id);
      return stop("{}: tensor type {} ({}) {}", subject(), id, type->name, type->why);
    }
    info.dtype = *type->dtype;
    if (!tensor::element_count(info.shape)) {
      return stop("{}: shape {} has more than 2^63 elements", subject(),
                  tensor::to_string(info.shape));
    }
    const int block = tensor::info(info.dtype).block_elements;
    if (!info.shape.empty() ? info.shape.back() % block != 0 : block != 1) {
      return stop("{}: shape {} of {} does not divide into blocks of {} along its last dimension",
                  subject(), tensor::to_string(info.shape), tensor::name(info.dtype), block);
    }
    const std::optional<uint64_t> bytes = tensor::byte_count(info.dtype, info.shape);
    if (!bytes) {
      return stop("{}: shape {} of {} takes more than 2^63 bytes", subject(),
                  tensor::to_string(info.shape), tensor::name(info.dtype));
    }
    info.bytes = *bytes;
    if (info.offset % alignment_ != 0) {
      return stop("{}: offset {} is no multiple of the alignment {}", subject(), info.offset,
                  alignment_);
    }
    return true;
  }

  // Moves the offsets to the start of the file; checks that all lie inside it and apart.
  bool place_tensors() {
    const uint64_t start = align_up(at_, alignment_);
    header_.data_offset = start;
    if (header_.tensors.empty()) return true;
    if (start > file_size_) {
      return stop(
          "the file ends at byte {}, before its data at byte {}; it is cut short, download it "
          "again",
          file_size_, start);
    }
    const uint64_t room = file_size_ - start;
    for (const TensorInfo& t : header_.tensors) {
      if (t.bytes > room || t.offset > room - t.bytes) {
        return stop(
            "{}: {} bytes at offset {} of the data, of which the file has {}; it is cut "
            "short, download it again",
            shown(t.name), t.bytes, t.offset, room);
      }
    }
    std::vector<const TensorInfo*> order;
    for (const TensorInfo& t : header_.tensors) {
      if (t.bytes != 0) order.push_back(&t);
    }
    std::sort(order.begin(), order.end(),
              [](const TensorInfo* a, const TensorInfo* b) { return a->offset < b->offset; });
    uint64_t end = 0;
    const TensorInfo* previous = nullptr;
    for (const TensorInfo* t : order) {
      if (t->offset < end) {
        return stop("{}: begins at byte {} of the data, inside {}, which ends at {}",
                    shown(t->name), t->offset, shown(previous->name), end);
      }
      end = t->offset + t->bytes;
      previous = t;
    }
    if (room > align_up(end, alignment_)) {
      header_.warnings.push_back(fmt::format("{}: the last {} bytes belong to no tensor", where_,
                                             room - align_up(end, alignment_)));
    }
    for (TensorInfo& t : header_.tensors) t.offset += start;
    return true;
  }

  std::span<const std::byte> bytes_;
  uint64_t file_size_;
  std::string where_;
  size_t at_ = 0;
  std::string_view kind_ = "the header";
  uint64_t number_ = 0;
  std::string_view name_;
  uint64_t pair_count_ = 0;
  uint64_t tensor_count_ = 0;
  uint64_t alignment_ = kDefaultAlignment;
  GgufHeader header_;
  bool ended_early_ = false;
  ErrorCode code_ = ErrorCode::kCorrupt;
  std::string error_;
};

Result<GgufHeader> parse_gguf(std::span<const std::byte> bytes, uint64_t file_size,
                              std::string_view where, bool* ended_early) {
  if (ended_early != nullptr) *ended_early = false;
  NIBBLE_TRY(refuse_placeholder(bytes, file_size, where));
  GgufReader reader(bytes, file_size, where);
  if (!reader.parse()) {
    if (ended_early != nullptr) *ended_early = reader.ended_early();
    return reader.failure();
  }
  return reader.take();
}

}  // namespace nibble::checkpoint
