#include "checkpoint/gguf_writer.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "checkpoint/file.h"
#include "checkpoint/gguf_types.h"

namespace nibble::checkpoint {
namespace {

using tensor::TensorInfo;

template <class T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));  // little-endian, as we are
}

void put_string(std::string& out, std::string_view text) {
  put(out, uint64_t{text.size()});
  out.append(text);
}

uint64_t align_up(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

}  // namespace

void GgufWriter::add_pair(std::string_view key, GgufType type, std::span<const std::byte> value) {
  put_string(pairs_, key);
  put(pairs_, type);
  pairs_.append(as_text(value));
  ++pair_count_;
  if (key != "general.alignment" || type != GgufType::kU32) return;
  uint32_t alignment;
  std::memcpy(&alignment, value.data(), sizeof(alignment));
  if (alignment != 0) alignment_ = alignment;  // begin() refuses what is no power of two
}

void GgufWriter::add_array(std::string_view key, GgufType type, uint64_t count,
                           std::span<const std::byte> elements) {
  std::string value;
  put(value, type);
  put(value, count);
  value.append(as_text(elements));
  add_pair(key, GgufType::kArray, std::as_bytes(std::span(value)));
}

void GgufWriter::add_bool(std::string_view key, bool value) {
  const std::byte one[1] = {std::byte{value}};
  add_pair(key, GgufType::kBool, one);
}

void GgufWriter::add_string(std::string_view key, std::string_view value) {
  std::string encoded;
  put_string(encoded, value);
  add_pair(key, GgufType::kString, std::as_bytes(std::span(encoded)));
}

void GgufWriter::add_strings(std::string_view key, std::span<const std::string_view> values) {
  std::string encoded;
  for (std::string_view value : values) put_string(encoded, value);
  add_array(key, GgufType::kString, values.size(), std::as_bytes(std::span(encoded)));
}

void GgufWriter::add_entry(const GgufEntry& entry) {
  if (entry.is_array) {
    add_array(entry.key, entry.type, entry.count, entry.value);
  } else {
    add_pair(entry.key, entry.type, entry.value);
  }
}

void GgufWriter::add_tensor(std::string name, tensor::DType dtype, tensor::Shape shape) {
  TensorInfo info;
  info.name = std::move(name);
  info.dtype = dtype;
  info.shape = std::move(shape);
  tensors_.push_back(std::move(info));
}

// The bytes up to the data; places the tensors.
Result<std::string> GgufWriter::header(const std::string& path) {
  std::string out = "GGUF";
  put(out, uint32_t{3});
  put(out, uint64_t{tensors_.size()});
  put(out, pair_count_);
  out += pairs_;
  uint64_t at = 0;
  for (TensorInfo& t : tensors_) {
    const GgmlType* type = find_ggml_type(t.dtype);
    const std::optional<uint64_t> bytes = tensor::byte_count(t.dtype, t.shape);
    if (type == nullptr || !bytes) {
      return fail(ErrorCode::kUsage,
                  fmt::format("{}: {}: shape {} of {} cannot be written to a GGUF", path,
                              shown(t.name), tensor::to_string(t.shape), tensor::name(t.dtype)));
    }
    t.bytes = *bytes;
    t.offset = at;
    at = align_up(at + t.bytes, alignment_);
    put_string(out, t.name);
    put(out, static_cast<uint32_t>(t.shape.size()));
    for (size_t d = t.shape.size(); d-- > 0;) put(out, static_cast<uint64_t>(t.shape[d]));
    put(out, type->id);
    put(out, t.offset);
  }
  out.resize(align_up(out.size(), alignment_));
  return out;
}

Result<void> GgufWriter::begin(const std::string& path) {
  path_ = path;
  NIBBLE_ASSIGN(const std::string head, header(path));
  data_offset_ = head.size();
  const uint64_t data = tensors_.empty() ? 0 : tensors_.back().offset + tensors_.back().bytes;
  // What we write is what we would read: this refuses keys that stand twice, too many dimensions
  // ...
  const std::span<const std::byte> bytes = std::as_bytes(std::span(head));
  NIBBLE_TRY(parse_gguf(bytes, head.size() + data, path));
  NIBBLE_ASSIGN(file_, OutputFile::create(path));
  return file_->write(bytes);
}

Result<void> GgufWriter::append(std::span<const std::byte> bytes) {
  if (!file_ || next_ == tensors_.size() || bytes.size() != tensors_[next_].bytes) {
    return fail(ErrorCode::kUsage,
                fmt::format("{}: {} bytes given, expected {}", path_, bytes.size(),
                            !file_ || next_ == tensors_.size()
                                ? "none"
                                : fmt::format("the {} of {}", tensors_[next_].bytes,
                                              shown(tensors_[next_].name))));
  }
  NIBBLE_TRY(file_->pad(data_offset_ + tensors_[next_].offset - file_->written()));
  ++next_;
  return file_->write(bytes);
}

Result<void> GgufWriter::finish() {
  if (!file_ || next_ != tensors_.size()) {
    return fail(ErrorCode::kUsage,
                fmt::format("{}: {} of {} tensors were written", path_, next_, tensors_.size()));
  }
  NIBBLE_TRY(file_->pad(align_up(file_->written(), alignment_) - file_->written()));
  return file_->finish();
}

}  // namespace nibble::checkpoint
