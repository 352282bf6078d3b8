#include "checkpoint/safetensors_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/json.h"
#include "checkpoint/file.h"
#include "checkpoint/safetensors.h"

namespace nibble::checkpoint {
namespace {

using tensor::TensorInfo;

Result<std::string> quoted(const std::string& text, const std::string& path) {
  std::string out = base::Json(text).dump();
  const auto again = base::parse_json(out, path);  // broken UTF-8 would have been replaced
  if (again && again->is_string() && again->as_string() == text) return out;
  return fail(ErrorCode::kUsage, fmt::format("{}: the name {} is not UTF-8", path, shown(text)));
}

int element_bits(tensor::DType dtype) {
  const tensor::DTypeInfo& type = tensor::info(dtype);
  return 8 * type.block_bytes / type.block_elements;
}

Result<std::string> header_of(const std::string& path, const std::vector<TensorInfo>& tensors,
                              const std::map<std::string, std::string>& metadata) {
  std::string out = "{";
  if (!metadata.empty()) {
    out += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      NIBBLE_ASSIGN(const std::string quoted_key, quoted(key, path));
      NIBBLE_ASSIGN(const std::string quoted_value, quoted(value, path));
      out += fmt::format("{}{}:{}", out.back() == '{' ? "" : ",", quoted_key, quoted_value);
    }
    out += "}";
  }
  for (const TensorInfo& t : tensors) {
    NIBBLE_ASSIGN(const std::string name, quoted(t.name, path));
    out += fmt::format(R"({}{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                       out == "{" ? "" : ",", name, safetensors_name(t.dtype),
                       fmt::join(t.shape, ","), t.offset, t.offset + t.bytes);
  }
  out += "}";
  out.resize((out.size() + 7) / 8 * 8, ' ');  // the data begins at a multiple of 8
  return out;
}

// Sets bytes and offset (within the data) of each.
Result<void> place(const std::string& path, std::vector<TensorInfo>& tensors) {
  uint64_t at = 0;
  for (TensorInfo& t : tensors) {
    if (safetensors_name(t.dtype).empty()) {
      return fail(ErrorCode::kUnsupported, fmt::format("{}: {}: safetensors has no type {}", path,
                                                       shown(t.name), tensor::name(t.dtype)));
    }
    const std::optional<uint64_t> bytes = packed_bytes(t.dtype, t.shape);
    if (!bytes || t.name == "__metadata__") {
      return fail(ErrorCode::kUsage,
                  fmt::format("{}: {}: shape {} of {} cannot be written", path, shown(t.name),
                              tensor::to_string(t.shape), tensor::name(t.dtype)));
    }
    t.bytes = *bytes;
    t.offset = at;
    at += t.bytes;
  }
  return {};
}

}  // namespace

Result<SafetensorsWriter> SafetensorsWriter::create(
    const std::string& path, std::vector<TensorInfo> tensors,
    const std::map<std::string, std::string>& metadata) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    const int wide_a = element_bits(a.dtype);
    const int wide_b = element_bits(b.dtype);
    return wide_a != wide_b ? wide_a > wide_b : a.name < b.name;
  });
  NIBBLE_TRY(place(path, tensors));
  NIBBLE_ASSIGN(const std::string header, header_of(path, tensors, metadata));
  const uint64_t length = header.size();
  const uint64_t data = tensors.empty() ? 0 : tensors.back().offset + tensors.back().bytes;
  std::string head(reinterpret_cast<const char*>(&length), sizeof(length));
  head += header;
  const std::span<const std::byte> bytes = std::as_bytes(std::span(head));
  // What we write is what we would read: this refuses names that stand twice and headers too large.
  NIBBLE_TRY(safetensors_head_bytes(bytes, bytes.size() + data, path));
  NIBBLE_TRY(parse_safetensors_header(bytes, bytes.size() + data, path));
  NIBBLE_ASSIGN(OutputFile file, OutputFile::create(path));
  NIBBLE_TRY(file.write(bytes));
  return SafetensorsWriter(std::move(file), path, std::move(tensors));
}

Result<void> SafetensorsWriter::append(std::span<const std::byte> bytes) {
  if (next_ == tensors_.size() || bytes.size() != tensors_[next_].bytes) {
    return fail(
        ErrorCode::kUsage,
        fmt::format("{}: {} bytes given, expected {}", path_, bytes.size(),
                    next_ == tensors_.size() ? "no more"
                                             : fmt::format("the {} of {}", tensors_[next_].bytes,
                                                           shown(tensors_[next_].name))));
  }
  ++next_;
  return file_.write(bytes);
}

Result<void> SafetensorsWriter::finish() {
  if (next_ != tensors_.size()) {
    return fail(ErrorCode::kUsage, fmt::format("{}: the bytes of {} were never written", path_,
                                               shown(tensors_[next_].name)));
  }
  return file_.finish();
}

}  // namespace nibble::checkpoint
