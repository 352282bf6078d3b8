#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <utility>

#include "checkpoint/file.h"
#include "checkpoint/gguf.h"

namespace nibble::checkpoint {
namespace {

constexpr std::string_view kTypeNames[] = {"u8",   "s8",     "u16",   "s16", "u32", "s32", "f32",
                                           "bool", "string", "array", "u64", "s64", "f64"};
constexpr size_t kShownString = 60;

template <class T>
T load(const std::byte* at) {
  T out;
  std::memcpy(&out, at, sizeof(T));
  return out;
}

bool is_integer(GgufType type) {
  return type != GgufType::kF32 && type != GgufType::kF64 && type != GgufType::kBool &&
         type != GgufType::kString && type != GgufType::kArray;
}
bool is_number(GgufType type) {
  return is_integer(type) || type == GgufType::kF32 || type == GgufType::kF64;
}

// Calls `use` with the element at `at`, as its own C++ type. Precondition: is_number(type).
template <class Use>
auto with_number(GgufType type, const std::byte* at, Use use) {
  switch (type) {
    case GgufType::kU8:
      return use(load<uint8_t>(at));
    case GgufType::kS8:
      return use(load<int8_t>(at));
    case GgufType::kU16:
      return use(load<uint16_t>(at));
    case GgufType::kS16:
      return use(load<int16_t>(at));
    case GgufType::kU32:
      return use(load<uint32_t>(at));
    case GgufType::kS32:
      return use(load<int32_t>(at));
    case GgufType::kF32:
      return use(load<float>(at));
    case GgufType::kU64:
      return use(load<uint64_t>(at));
    case GgufType::kS64:
      return use(load<int64_t>(at));
    default:
      return use(load<double>(at));
  }
}

// Decodes all elements of `entry` to T. Precondition: is_number(entry.type).
template <class T>
std::vector<T> numbers(const GgufEntry& entry) {
  std::vector<T> out;
  out.reserve(entry.count);
  const size_t step = entry.count == 0 ? 0 : entry.value.size() / entry.count;
  for (size_t i = 0; i < entry.count; ++i) {
    out.push_back(with_number(entry.type, entry.value.data() + i * step,
                              [](auto v) { return static_cast<T>(v); }));
  }
  return out;
}

std::string_view first_string(std::span<const std::byte> value) {
  return as_text(value).substr(8, load<uint64_t>(value.data()));
}

}  // namespace

std::string_view name(GgufType type) { return kTypeNames[static_cast<uint32_t>(type)]; }

const GgufEntry* GgufMetadata::find(std::string_view key) const {
  const auto at = index_.find(key);
  return at == index_.end() ? nullptr : &entries_[at->second];
}

std::string GgufMetadata::describe(const GgufEntry& entry) {
  if (entry.is_array) return fmt::format("an array of {} {}", entry.count, name(entry.type));
  if (entry.type == GgufType::kString) {
    return fmt::format("\"{}\"", shown(first_string(entry.value), kShownString));
  }
  if (entry.type == GgufType::kBool) return entry.value[0] == std::byte{0} ? "false" : "true";
  return with_number(entry.type, entry.value.data(), [](auto v) { return fmt::format("{}", +v); });
}

Failure GgufMetadata::wrong_type(const GgufEntry& entry, const char* expected) const {
  const std::string found = entry.is_array
                                ? describe(entry)
                                : fmt::format("the {} {}", name(entry.type), describe(entry));
  return fail(ErrorCode::kCorrupt, fmt::format("{}: {}: expected {}, found {}", where_,
                                               shown(entry.key), expected, found));
}

Result<const GgufEntry*> GgufMetadata::scalar(std::string_view key, const char* expected) const {
  const GgufEntry* entry = find(key);
  if (entry == nullptr) {
    return fail(ErrorCode::kCorrupt, fmt::format("{}: key \"{}\" is missing", where_, key));
  }
  if (entry->is_array) return wrong_type(*entry, expected);
  return entry;
}

Result<const GgufEntry*> GgufMetadata::array(std::string_view key, const char* expected) const {
  const GgufEntry* entry = find(key);
  if (entry == nullptr) {
    return fail(ErrorCode::kCorrupt, fmt::format("{}: key \"{}\" is missing", where_, key));
  }
  if (!entry->is_array) return wrong_type(*entry, expected);
  return entry;
}

Result<int64_t> GgufMetadata::get_int(std::string_view key) const {
  NIBBLE_ASSIGN(const GgufEntry* entry, scalar(key, "an integer"));
  if (!is_integer(entry->type)) return wrong_type(*entry, "an integer");
  if (entry->type == GgufType::kU64 && load<uint64_t>(entry->value.data()) > INT64_MAX) {
    return wrong_type(*entry, "an integer below 2^63");
  }
  return numbers<int64_t>(*entry)[0];
}
Result<int64_t> GgufMetadata::get_int_or(std::string_view key, int64_t fallback) const {
  return has(key) ? get_int(key) : Result<int64_t>(fallback);
}

Result<uint64_t> GgufMetadata::get_uint(std::string_view key) const {
  NIBBLE_ASSIGN(const GgufEntry* entry, scalar(key, "an integer that is not negative"));
  if (!is_integer(entry->type) || with_number(entry->type, entry->value.data(),
                                              [](auto v) { return static_cast<double>(v) < 0; })) {
    return wrong_type(*entry, "an integer that is not negative");
  }
  return numbers<uint64_t>(*entry)[0];
}

Result<double> GgufMetadata::get_double(std::string_view key) const {
  NIBBLE_ASSIGN(const GgufEntry* entry, scalar(key, "a number"));
  if (!is_number(entry->type)) return wrong_type(*entry, "a number");
  return numbers<double>(*entry)[0];
}
Result<double> GgufMetadata::get_double_or(std::string_view key, double fallback) const {
  return has(key) ? get_double(key) : Result<double>(fallback);
}

Result<bool> GgufMetadata::get_bool(std::string_view key) const {
  NIBBLE_ASSIGN(const GgufEntry* entry, scalar(key, "a bool"));
  if (entry->type != GgufType::kBool) return wrong_type(*entry, "a bool");
  return entry->value[0] != std::byte{0};
}
Result<bool> GgufMetadata::get_bool_or(std::string_view key, bool fallback) const {
  return has(key) ? get_bool(key) : Result<bool>(fallback);
}

Result<std::string_view> GgufMetadata::get_string(std::string_view key) const {
  NIBBLE_ASSIGN(const GgufEntry* entry, scalar(key, "a string"));
  if (entry->type != GgufType::kString) return wrong_type(*entry, "a string");
  return first_string(entry->value);
}
Result<std::string_view> GgufMetadata::get_string_or(std::string_view key,
                                                     std::string_view fallback) const {
  return has(key) ? get_string(key) : Result<std::string_view>(fallback);
}

Result<std::vector<std::string_view>> GgufMetadata::get_strings(std::string_view key) const {
  NIBBLE_ASSIGN(const GgufEntry* entry, array(key, "an array of strings"));
  if (entry->type != GgufType::kString) return wrong_type(*entry, "an array of strings");
  std::vector<std::string_view> out;
  out.reserve(entry->count);
  std::span<const std::byte> rest = entry->value;
  for (uint64_t i = 0; i < entry->count; ++i) {
    out.push_back(first_string(rest));
    rest = rest.subspan(8 + out.back().size());
  }
  return out;
}

Result<std::vector<int64_t>> GgufMetadata::get_ints(std::string_view key) const {
  NIBBLE_ASSIGN(const GgufEntry* entry, array(key, "an array of integers"));
  if (!is_integer(entry->type)) return wrong_type(*entry, "an array of integers");
  std::vector<int64_t> out = numbers<int64_t>(*entry);
  if (entry->type == GgufType::kU64) {
    for (int64_t v : out) {
      if (v < 0) return wrong_type(*entry, "an array of integers below 2^63");
    }
  }
  return out;
}

Result<std::vector<double>> GgufMetadata::get_doubles(std::string_view key) const {
  NIBBLE_ASSIGN(const GgufEntry* entry, array(key, "an array of numbers"));
  if (!is_number(entry->type)) return wrong_type(*entry, "an array of numbers");
  return numbers<double>(*entry);
}

Result<std::vector<float>> GgufMetadata::get_floats(std::string_view key) const {
  NIBBLE_ASSIGN(const GgufEntry* entry, array(key, "an array of numbers"));
  if (!is_number(entry->type)) return wrong_type(*entry, "an array of numbers");
  return numbers<float>(*entry);
}

Result<std::vector<bool>> GgufMetadata::get_bools(std::string_view key) const {
  NIBBLE_ASSIGN(const GgufEntry* entry, array(key, "an array of bools"));
  if (entry->type != GgufType::kBool) return wrong_type(*entry, "an array of bools");
  std::vector<bool> out;
  out.reserve(entry->count);
  for (std::byte b : entry->value) out.push_back(b != std::byte{0});
  return out;
}

}  // namespace nibble::checkpoint
