#include "checkpoint/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>

#include "checkpoint/file.h"
#include "checkpoint/name_map.h"

namespace nibble::checkpoint {
namespace {

using tensor::DType;
using tensor::TensorInfo;

constexpr size_t kMaxTensors = size_t{1} << 20;  // five times what the largest models have
constexpr size_t kMaxRank = 64;  // no framework makes more; keeps a hostile shape small

struct DTypeName {
  std::string_view name;
  DType dtype;
};
constexpr DTypeName kDTypes[] = {
    {"BOOL", DType::kBool},    {"U8", DType::kU8},
    {"I8", DType::kS8},        {"U16", DType::kU16},
    {"I16", DType::kS16},      {"U32", DType::kU32},
    {"I32", DType::kS32},      {"U64", DType::kU64},
    {"I64", DType::kS64},      {"F16", DType::kF16},
    {"BF16", DType::kBF16},    {"F32", DType::kF32},
    {"F64", DType::kF64},      {"C64", DType::kC64},
    {"F8_E4M3", DType::kE4M3}, {"F8_E4M3FNUZ", DType::kE4M3FNUZ},
    {"F8_E5M2", DType::kE5M2}, {"F8_E5M2FNUZ", DType::kE5M2FNUZ},
    {"F8_E8M0", DType::kE8M0}, {"F4", DType::kE2M1},
    {"F6_E2M3", DType::kE2M3}, {"F6_E3M2", DType::kE3M2},
};

// Reads the header from nlohmann's SAX events. Anything that has no place in it stops the parse.
class HeaderReader {
 public:
  using Json = nlohmann::json;

  HeaderReader(std::string_view where, SafetensorsHeader& out) : where_(where), out_(out) {}

  bool null() {
    // The format's own reader takes `"__metadata__": null` for absent.
    if (level_ == Level::kTop && in_metadata_) return true;
    return misplaced("null");
  }
  bool boolean(bool v) { return misplaced(v ? "true" : "false"); }
  bool number_integer(Json::number_integer_t v) { return misplaced(fmt::format("{}", v)); }
  bool number_unsigned(Json::number_unsigned_t v) {
    if (level_ == Level::kShape && v <= static_cast<uint64_t>(INT64_MAX)) {
      if (tensor_.shape.size() == kMaxRank) {
        return stop("shape has more than {} dimensions", kMaxRank);
      }
      tensor_.shape.push_back(static_cast<int64_t>(v));
      return true;
    }
    if (level_ == Level::kOffsets) {
      if (offset_count_ < 2) offsets_[offset_count_] = v;
      ++offset_count_;
      return true;
    }
    return misplaced(fmt::format("{}", v));
  }
  bool number_float(Json::number_float_t, const std::string& text) {
    return misplaced(shown(text, 40));
  }
  bool string(std::string& v) {
    if (level_ == Level::kMetadata) {
      if (out_.metadata.size() == kMaxTensors) {
        return stop("more than the {} pairs that nibble reads", kMaxTensors);
      }
      out_.metadata.emplace_back(std::move(metadata_key_), std::move(v));
      return true;
    }
    if (level_ != Level::kTensor || field_ != kDType) {
      return misplaced(fmt::format("\"{}\"", shown(v, 40)));
    }
    const std::optional<DType> dtype = dtype_from_safetensors(v);
    if (!dtype) {
      code_ = ErrorCode::kUnsupported;
      return stop("unknown dtype \"{}\"", shown(v, 40));
    }
    tensor_.dtype = *dtype;
    return true;
  }
  bool binary(Json::binary_t&) { return false; }
  bool start_object(std::size_t) {
    if (level_ == Level::kOutside) {
      level_ = Level::kTop;
      return true;
    }
    if (level_ != Level::kTop) return misplaced("an object");
    level_ = in_metadata_ ? Level::kMetadata : Level::kTensor;
    fields_seen_ = 0;
    offset_count_ = 0;
    tensor_.shape.clear();
    return true;
  }
  bool key(std::string& v) {
    if (level_ == Level::kTop) return top_key(v);
    if (level_ == Level::kMetadata) {
      metadata_key_ = std::move(v);
      return true;
    }
    field_ = v == "dtype" ? kDType : v == "shape" ? kShape : v == "data_offsets" ? kOffsets : kNone;
    if (field_ == kNone)
      return stop("has a key \"{}\", which the format does not have", shown(v, 40));
    if ((fields_seen_ & field_) != 0) return stop("\"{}\" stands twice", v);
    fields_seen_ |= field_;
    return true;
  }
  bool end_object() {
    if (level_ == Level::kTop) {
      level_ = Level::kDone;
      return true;
    }
    const bool was_tensor = level_ == Level::kTensor;
    level_ = Level::kTop;
    return was_tensor ? finish_tensor() : true;
  }
  bool start_array(std::size_t) {
    if (level_ != Level::kTensor || field_ == kDType) return misplaced("a list");
    level_ = field_ == kShape ? Level::kShape : Level::kOffsets;
    return true;
  }
  bool end_array() {
    level_ = Level::kTensor;
    if (field_ == kOffsets && offset_count_ != 2) {
      return stop("data_offsets: expected 2 numbers, found {}", offset_count_);
    }
    return true;
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& problem) {
    std::string_view text = problem.what();
    if (const size_t at = text.find("syntax error"); at != text.npos) text.remove_prefix(at);
    error_ = fmt::format("{}: the header is not valid JSON at its byte {}: {}", where_, position,
                         shown(text, 200));
    return false;
  }

  Failure failure() const { return fail(code_, error_); }

 private:
  enum class Level { kOutside, kTop, kMetadata, kTensor, kShape, kOffsets, kDone };
  enum Field : unsigned { kNone = 0, kDType = 1, kShape = 2, kOffsets = 4 };

  template <class... Args>
  bool stop(fmt::format_string<Args...> format, Args&&... args) {
    error_ = fmt::format("{}: {}: {}", where_, shown(tensor_.name),
                         fmt::format(format, std::forward<Args>(args)...));
    return false;
  }

  bool top_key(std::string& v) {
    in_metadata_ = v == "__metadata__";
    if (in_metadata_ && std::exchange(metadata_seen_, true)) {
      error_ = fmt::format("{}: \"__metadata__\" stands twice in the header", where_);
      return false;
    }
    tensor_.name = std::move(v);
    return true;
  }

  // A value where the format has none of that kind.
  bool misplaced(std::string_view found) {
    switch (level_) {
      case Level::kOutside:
      case Level::kDone:
        error_ = fmt::format("{}: the header must be a JSON object, found {}", where_, found);
        return false;
      case Level::kTop:
        if (in_metadata_) return stop("expected an object of strings, found {}", found);
        return stop("expected an object with dtype, shape and data_offsets, found {}", found);
      case Level::kMetadata:
        return stop("{}: expected a string, found {}", shown(metadata_key_), found);
      case Level::kShape:
        return stop("shape: expected integers that are not negative, found {}", found);
      case Level::kOffsets:
        return stop("data_offsets: expected integers that are not negative, found {}", found);
      case Level::kTensor:
        break;
    }
    if (field_ == kDType) return stop("dtype: expected a string, found {}", found);
    return stop("{}: expected a list, found {}", field_ == kShape ? "shape" : "data_offsets",
                found);
  }

  bool finish_tensor() {
    if ((fields_seen_ & kDType) == 0) return stop("dtype is missing");
    if ((fields_seen_ & kShape) == 0) return stop("shape is missing");
    if ((fields_seen_ & kOffsets) == 0) return stop("data_offsets is missing");
    if (offsets_[0] > offsets_[1]) {
      return stop("data_offsets [{}, {}] end before they begin", offsets_[0], offsets_[1]);
    }
    const std::optional<uint64_t> bytes = packed_bytes(tensor_.dtype, tensor_.shape);
    if (!bytes) {
      return stop("shape {} of {} is no whole number of bytes, or more than 2^63",
                  tensor::to_string(tensor_.shape), safetensors_name(tensor_.dtype));
    }
    if (*bytes != offsets_[1] - offsets_[0]) {
      return stop("shape {} of {} takes {} bytes, data_offsets [{}, {}] hold {}",
                  tensor::to_string(tensor_.shape), safetensors_name(tensor_.dtype), *bytes,
                  offsets_[0], offsets_[1], offsets_[1] - offsets_[0]);
    }
    tensor_.offset = offsets_[0];
    tensor_.bytes = *bytes;
    if (out_.tensors.size() == kMaxTensors) {
      return stop("the header has more than the {} tensors that nibble reads", kMaxTensors);
    }
    out_.tensors.push_back(tensor_);
    return true;
  }

  std::string_view where_;
  SafetensorsHeader& out_;
  Level level_ = Level::kOutside;
  bool in_metadata_ = false;
  bool metadata_seen_ = false;
  std::string metadata_key_;
  Field field_ = kNone;
  unsigned fields_seen_ = 0;
  TensorInfo tensor_;
  uint64_t offsets_[2] = {0, 0};
  size_t offset_count_ = 0;
  ErrorCode code_ = ErrorCode::kCorrupt;
  std::string error_;
};

Result<void> check_names(const SafetensorsHeader& header, std::string_view where) {
  NameMap<const TensorInfo*> seen;
  seen.reserve(header.tensors.size());
  for (const TensorInfo& t : header.tensors) {
    if (!seen.emplace(t.name, &t).second) {
      return fail(ErrorCode::kCorrupt, fmt::format("{}: {}: this name stands twice in the header",
                                                   where, shown(t.name)));
    }
  }
  NameMap<const std::string*> keys;
  keys.reserve(header.metadata.size());
  for (const auto& [key, value] : header.metadata) {
    if (!keys.emplace(key, &value).second) {
      return fail(ErrorCode::kCorrupt,
                  fmt::format("{}: __metadata__: \"{}\" stands twice", where, shown(key)));
    }
  }
  return {};
}

// Sorts the tensors by offset and checks that they tile [0, data_bytes).
Result<void> check_ranges(SafetensorsHeader& header, uint64_t data_bytes, std::string_view where) {
  std::vector<TensorInfo>& tensors = header.tensors;
  // Files are written in this order; sorting then costs one comparison each.
  const auto before = [](const TensorInfo& a, const TensorInfo& b) {
    return a.offset != b.offset ? a.offset < b.offset : a.bytes < b.bytes;
  };
  if (!std::is_sorted(tensors.begin(), tensors.end(), before)) {
    std::stable_sort(tensors.begin(), tensors.end(), before);
  }
  for (const TensorInfo& t : tensors) {
    if (t.offset + t.bytes > data_bytes) {
      return fail(
          ErrorCode::kCorrupt,
          fmt::format("{}: {}: ends at byte {} of the data, of which the file has {}; it is "
                      "cut short, download it again",
                      where, shown(t.name), t.offset + t.bytes, data_bytes));
    }
  }
  uint64_t end = 0;
  const TensorInfo* previous = nullptr;
  for (const TensorInfo& t : tensors) {
    if (t.offset < end) {
      return fail(ErrorCode::kCorrupt,
                  fmt::format("{}: {}: begins at byte {} of the data, inside {}, which ends at {}",
                              where, shown(t.name), t.offset, shown(previous->name), end));
    }
    if (t.offset > end) {
      return fail(ErrorCode::kCorrupt,
                  fmt::format("{}: {}: begins at byte {} of the data, but the bytes from {} on "
                              "belong to no tensor",
                              where, shown(t.name), t.offset, end));
    }
    end = t.offset + t.bytes;
    previous = &t;
  }
  if (end != data_bytes) {
    return fail(
        ErrorCode::kCorrupt,
        fmt::format("{}: the last {} bytes belong to no tensor; the file does not match its "
                    "header, download it again",
                    where, data_bytes - end));
  }
  return {};
}

}  // namespace

std::optional<uint64_t> packed_bytes(DType dtype, const tensor::Shape& shape) {
  const tensor::DTypeInfo& type = tensor::info(dtype);
  const std::optional<int64_t> count = tensor::element_count(shape);
  int64_t bytes;
  if (!count || *count % type.block_elements != 0 ||
      __builtin_mul_overflow(*count / type.block_elements, type.block_bytes, &bytes)) {
    return std::nullopt;
  }
  return static_cast<uint64_t>(bytes);
}

std::optional<DType> dtype_from_safetensors(std::string_view name) {
  for (const DTypeName& entry : kDTypes) {
    if (entry.name == name) return entry.dtype;
  }
  return std::nullopt;
}

std::string_view safetensors_name(DType dtype) {
  for (const DTypeName& entry : kDTypes) {
    if (entry.dtype == dtype) return entry.name;
  }
  return {};
}

Result<uint64_t> safetensors_head_bytes(std::span<const std::byte> first, uint64_t file_size,
                                        std::string_view where) {
  NIBBLE_TRY(refuse_placeholder(first, file_size, where));
  const std::string_view text = as_text(first);
  // A header of 640 bytes (0x280) begins as a pickle does; its ninth byte tells them apart.
  const bool has_header = text.size() > 8 && text[8] == '{';
  if (!has_header && (text.starts_with("PK\x03\x04") || text.starts_with("\x80\x02"))) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("{}: this is a file of torch.save under a safetensors name; call it "
                            "pytorch_model.bin and open the folder again",
                            where));
  }
  if (file_size < 8 || first.size() < 8) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: the file has {} bytes, fewer than the 8 that hold a safetensors "
                            "header's length; download it again",
                            where, file_size));
  }
  uint64_t length;
  std::memcpy(&length, first.data(), 8);  // little-endian, as is every machine nibble runs on
  if (length > kSafetensorsMaxHeader) {
    return fail(
        ErrorCode::kCorrupt,
        fmt::format("{}: a header of {} bytes is announced, the format allows {}; this is no "
                    "safetensors file, or it is damaged",
                    where, length, kSafetensorsMaxHeader));
  }
  if (length > file_size - 8) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: a header of {} bytes is announced, but only {} follow; it is cut "
                            "short, download it again",
                            where, length, file_size - 8));
  }
  if (length == 0) {
    return fail(ErrorCode::kCorrupt, fmt::format("{}: the header is empty", where));
  }
  return length + 8;
}

Result<SafetensorsHeader> parse_safetensors_header(std::span<const std::byte> head,
                                                   uint64_t file_size, std::string_view where) {
  const std::string_view text = as_text(head).substr(std::min<size_t>(8, head.size()));
  if (!text.starts_with('{')) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: the header must begin with \"{{\", found \"{}\"", where,
                            shown(text.substr(0, 1))));
  }
  // The parser would take it for the end, and what follows would never be looked at.
  if (const size_t zero = text.find('\0'); zero != text.npos) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: the header has a zero byte at its byte {}; JSON has none", where,
                            zero + 1));
  }
  SafetensorsHeader header;
  HeaderReader reader(where, header);
  if (!nlohmann::json::sax_parse(text.data(), text.data() + text.size(), &reader)) {
    return reader.failure();
  }
  NIBBLE_TRY(check_names(header, where));
  NIBBLE_TRY(check_ranges(header, file_size - head.size(), where));
  for (TensorInfo& t : header.tensors) t.offset += head.size();
  return header;
}

}  // namespace nibble::checkpoint
