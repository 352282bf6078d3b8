#include "checkpoint/gguf.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>

#include "checkpoint/gguf_types.h"
#include "checkpoint/test_files.h"

namespace nibble::checkpoint {
namespace {

using tensor::DType;

Result<GgufHeader> parse(std::string_view file) {
  return parse_gguf(as_bytes(file), file.size(), "m.gguf");
}

constexpr uint32_t kU8 = 0, kU16 = 2, kU32 = 4, kS32 = 5, kF32 = 6, kBool = 7, kString = 8,
                   kArray = 9, kU64 = 10, kS64 = 11, kF64 = 12;
constexpr uint32_t kTypeF32 = 0, kTypeQ4_1 = 3;

std::string str(std::string_view text) { return raw<uint64_t>(text.size()) + std::string(text); }
std::string start(uint64_t tensors, uint64_t pairs, uint32_t version = 3) {
  return "GGUF" + raw(version) + raw(tensors) + raw(pairs);
}
std::string pair(std::string_view key, uint32_t type, std::string_view value) {
  return str(key) + raw(type) + std::string(value);
}
std::string array(uint32_t type, uint64_t count, std::string_view elements) {
  return raw(type) + raw(count) + std::string(elements);
}
std::string tensor_entry(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
                         uint64_t offset) {
  std::string out = str(name) + raw(static_cast<uint32_t>(dims.size()));
  for (uint64_t dim : dims) out += raw(dim);
  return out + raw(type) + raw(offset);
}
// The header padded to the alignment, then the data.
std::string with_data(std::string header, size_t data_bytes, size_t alignment = 32) {
  header.resize((header.size() + alignment - 1) / alignment * alignment);
  return header + std::string(data_bytes, 'd');
}

TEST(gguf, values_of_every_type_are_read) {
  const std::string file =
      start(0, 15) + pair("u8", kU8, raw<uint8_t>(200)) + pair("s8", 1, raw<int8_t>(-3)) +
      pair("u16", kU16, raw<uint16_t>(65535)) + pair("s16", 3, raw<int16_t>(-300)) +
      pair("u32", kU32, raw<uint32_t>(4'000'000'000)) + pair("s32", kS32, raw<int32_t>(-7)) +
      pair("f32", kF32, raw(0.5f)) + pair("bool", kBool, raw<uint8_t>(1)) +
      pair("string", kString, str("llama")) + pair("u64", kU64, raw<uint64_t>(UINT64_MAX)) +
      pair("s64", kS64, raw<int64_t>(INT64_MIN)) + pair("f64", kF64, raw(1e300)) +
      pair("strings", kArray, array(kString, 3, str("a") + str("") + str("c\0d"))) +
      pair("ints", kArray, array(kS32, 2, raw<int32_t>(-1) + raw<int32_t>(2))) +
      pair("bools", kArray, array(kBool, 2, std::string_view("\1\0", 2)));
  const auto header = parse(file);
  ASSERT_TRUE(header) << header.error().message;
  const GgufMetadata& m = header->metadata;
  EXPECT_EQ(m.entries().size(), 15u);
  EXPECT_EQ(m.entries()[8].key, "string");  // in file order
  EXPECT_EQ(*m.get_int("u8"), 200);
  EXPECT_EQ(*m.get_int("s8"), -3);
  EXPECT_EQ(*m.get_int("u16"), 65535);
  EXPECT_EQ(*m.get_int("s16"), -300);
  EXPECT_EQ(*m.get_int("u32"), 4'000'000'000);
  EXPECT_EQ(*m.get_int("s32"), -7);
  EXPECT_EQ(*m.get_int("s64"), INT64_MIN);
  EXPECT_EQ(*m.get_uint("u64"), UINT64_MAX);
  EXPECT_EQ(*m.get_double("f32"), 0.5);
  EXPECT_EQ(*m.get_double("f64"), 1e300);
  EXPECT_EQ(*m.get_double("s32"), -7.0);
  EXPECT_TRUE(*m.get_bool("bool"));
  EXPECT_EQ(*m.get_string("string"), "llama");
  EXPECT_EQ(*m.get_strings("strings"), (std::vector<std::string_view>{"a", "", "c"}));
  EXPECT_EQ(*m.get_ints("ints"), (std::vector<int64_t>{-1, 2}));
  EXPECT_EQ(*m.get_doubles("ints"), (std::vector<double>{-1, 2}));
  EXPECT_EQ(*m.get_floats("ints"), (std::vector<float>{-1, 2}));
  EXPECT_EQ(*m.get_bools("bools"), (std::vector<bool>{true, false}));
  EXPECT_EQ(*m.get_int_or("absent", 9), 9);
  EXPECT_EQ(*m.get_double_or("absent", 0.25), 0.25);
  EXPECT_TRUE(*m.get_bool_or("absent", true));
  EXPECT_EQ(*m.get_string_or("absent", "x"), "x");
}

TEST(gguf, a_wrong_type_names_file_key_expected_and_found) {
  const std::string file = start(0, 5) + pair("s", kString, str("no\x1b")) +
                           pair("u", kU64, raw<uint64_t>(UINT64_MAX)) +
                           pair("n", kS32, raw<int32_t>(-7)) + pair("f", kF32, raw(0.5f)) +
                           pair("a", kArray, array(kU64, 1, raw<uint64_t>(UINT64_MAX)));
  const auto header = parse(file);
  ASSERT_TRUE(header) << header.error().message;
  const GgufMetadata& m = header->metadata;
  EXPECT_EQ(m.get_int("s").error().message,
            "m.gguf: s: expected an integer, found the string \"no?\"");
  EXPECT_EQ(m.get_int("u").error().message,
            "m.gguf: u: expected an integer below 2^63, found the u64 18446744073709551615");
  EXPECT_EQ(m.get_int("f").error().message, "m.gguf: f: expected an integer, found the f32 0.5");
  EXPECT_EQ(m.get_uint("n").error().message,
            "m.gguf: n: expected an integer that is not negative, found the s32 -7");
  EXPECT_EQ(m.get_double("s").error().message,
            "m.gguf: s: expected a number, found the string \"no?\"");
  EXPECT_EQ(m.get_bool("n").error().message, "m.gguf: n: expected a bool, found the s32 -7");
  EXPECT_EQ(m.get_string("n").error().message, "m.gguf: n: expected a string, found the s32 -7");
  EXPECT_EQ(m.get_string("a").error().message,
            "m.gguf: a: expected a string, found an array of 1 u64");
  EXPECT_EQ(m.get_ints("n").error().message,
            "m.gguf: n: expected an array of integers, found the s32 -7");
  EXPECT_EQ(m.get_ints("a").error().message,
            "m.gguf: a: expected an array of integers below 2^63, found an array of 1 u64");
  EXPECT_EQ(m.get_strings("a").error().message,
            "m.gguf: a: expected an array of strings, found an array of 1 u64");
  EXPECT_EQ(m.get_bools("a").error().message,
            "m.gguf: a: expected an array of bools, found an array of 1 u64");
  EXPECT_EQ(m.get_int("gone").error().message, "m.gguf: key \"gone\" is missing");
  EXPECT_EQ(m.get_strings("gone").error().message, "m.gguf: key \"gone\" is missing");
  // A fallback is for what is absent, not for what is wrong.
  EXPECT_FALSE(m.get_int_or("s", 1));
  EXPECT_FALSE(m.get_string_or("n", "x"));
}

TEST(gguf, shapes_come_rows_first_and_offsets_from_the_file) {
  for (uint32_t version : {2u, 3u}) {
    const std::string file = with_data(
        start(3, 1, version) + pair("general.alignment", kU32, raw<uint32_t>(64)) +
            tensor_entry("b", {64, 2}, kTypeQ4_1, 64) + tensor_entry("a", {3, 2, 1}, kTypeF32, 0) +
            tensor_entry("s", {}, kTypeF32, 192),
        196, 64);
    const auto header = parse(file);
    ASSERT_TRUE(header) << header.error().message;
    EXPECT_EQ(header->version, version);
    EXPECT_EQ(header->data_offset % 64, 0u);
    ASSERT_EQ(header->tensors.size(), 3u);
    EXPECT_EQ(header->tensors[0].name, "b");
    EXPECT_EQ(header->tensors[0].shape, (tensor::Shape{2, 64}));
    EXPECT_EQ(header->tensors[0].bytes, 80u);
    EXPECT_EQ(header->tensors[0].offset, header->data_offset + 64);
    EXPECT_EQ(header->tensors[1].shape, (tensor::Shape{1, 2, 3}));
    EXPECT_EQ(header->tensors[2].shape, tensor::Shape{});
    EXPECT_TRUE(header->warnings.empty());
  }
}

TEST(gguf, every_type_number_is_mapped_or_refused_by_name) {
  int mapped = 0;
  for (uint32_t id = 0; id < 100; ++id) {
    const GgmlType* type = find_ggml_type(id);
    const auto header = parse(with_data(start(1, 0) + tensor_entry("w", {256}, id, 0), 256 * 8));
    if (type != nullptr && type->dtype) {
      ++mapped;
      ASSERT_TRUE(header) << id << ": " << header.error().message;
      EXPECT_EQ(header->tensors[0].dtype, *type->dtype);
      EXPECT_EQ(find_ggml_type(*type->dtype), type);
    } else {
      ASSERT_FALSE(header) << id;
      EXPECT_EQ(header.error().code, ErrorCode::kUnsupported);
      EXPECT_NE(header.error().message.find(fmt::format("tensor type {} ", id)), std::string::npos)
          << header.error().message;
    }
  }
  EXPECT_EQ(mapped, 33);
  EXPECT_EQ(parse(with_data(start(1, 0) + tensor_entry("w", {256}, 31, 0), 256)).error().message,
            "m.gguf: w: tensor type 31 (Q4_0_4_4) has been removed from the format (it was q4_0 "
            "repacked for one CPU): use the q4_0 file");
}

TEST(gguf, bytes_after_the_last_tensor_are_a_warning) {
  const auto header = parse(with_data(start(1, 0) + tensor_entry("w", {8}, kTypeF32, 0), 33));
  ASSERT_TRUE(header) << header.error().message;
  ASSERT_EQ(header->warnings.size(), 1u);
  EXPECT_EQ(header->warnings[0], "m.gguf: the last 1 bytes belong to no tensor");
}

TEST(gguf, a_head_that_ends_early_says_so) {
  const std::string file = with_data(start(1, 2) + pair("a", kString, str("text")) +
                                         pair("b", kArray, array(kU32, 2, "12345678")) +
                                         tensor_entry("w", {8}, kTypeF32, 0),
                                     32);
  const auto whole = parse(file);
  ASSERT_TRUE(whole) << whole.error().message;
  const size_t header_end = file.rfind(std::string(8, '\0')) + 8;
  ASSERT_GT(header_end, 100u);
  for (size_t have = 4; have < whole->data_offset; ++have) {
    bool ended_early = false;
    const auto header = parse_gguf(as_bytes(file).first(have), file.size(), "m.gguf", &ended_early);
    EXPECT_NE(header.has_value(), ended_early) << have;
  }
  // The whole file cut there is no reason to read on.
  for (size_t have = 4; have < file.size(); ++have) {
    bool ended_early = true;
    EXPECT_FALSE(parse_gguf(as_bytes(file).first(have), have, "m.gguf", &ended_early)) << have;
    EXPECT_FALSE(ended_early);
  }
}

struct Hostile {
  const char* what;
  std::string bytes;
  const char* message;  // after "m.gguf: "
};

class HostileGguf : public testing::TestWithParam<Hostile> {};

TEST_P(HostileGguf, is_refused_with_its_sentence) {
  const auto header = parse(GetParam().bytes);
  ASSERT_FALSE(header);
  EXPECT_EQ(header.error().message, std::string("m.gguf: ") + GetParam().message);
}

std::string one_pair(std::string_view key, uint32_t type, std::string_view value) {
  return start(0, 1) + pair(key, type, value);
}
std::string one_tensor(const std::vector<uint64_t>& dims, uint32_t type, uint64_t offset,
                       size_t data_bytes) {
  return with_data(start(1, 0) + tensor_entry("w", dims, type, offset), data_bytes);
}

const Hostile kHostile[] = {
    {"empty_file", "", "the file is empty; download it again"},
    {"lfs_pointer", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n",
     "this is a Git LFS pointer, not the file itself; run \"git lfs pull\" in that folder, or "
     "download the file"},
    {"web_page", "<html></html>",
     "this is a web page (it begins with \"<html\"), perhaps a login or error page saved in the "
     "file's place; download it again"},
    {"wrong_magic", "GGML\1\0\0\0", "a GGUF file begins with \"GGUF\", this one with \"GGML\""},
    {"two_bytes", "GG", "a GGUF file begins with \"GGUF\", this one with \"GG\""},
    {"no_version", "GGUF\3",
     "the header: 4 bytes are needed at byte 4 of the file, 1 are left; it is cut short or "
     "damaged, "
     "download it again"},
    {"version_1", "GGUF" + raw<uint32_t>(1) + raw<uint32_t>(0) + raw<uint32_t>(0),
     "GGUF version 1 is not read; convert it with a llama.cpp of 2023, or download a newer file"},
    {"version_4", start(0, 0, 4), "GGUF version 4 is unknown; versions 2 and 3 are read"},
    {"version_0", start(0, 0, 0), "GGUF version 0 is unknown; versions 2 and 3 are read"},
    {"big_endian", start(0, 0, 0x03000000),
     "this file is big-endian (for s390x and the like); use a little-endian one"},
    {"no_counts", "GGUF" + raw<uint32_t>(3) + raw<uint64_t>(0),
     "the header: 8 bytes are needed at byte 16 of the file, 0 are left; it is cut short or "
     "damaged, "
     "download it again"},
    {"too_many_pairs", start(0, 2) + std::string(25, '\0'),
     "2 key-value pairs are announced, 25 bytes follow"},
    {"too_many_tensors", start(2, 0) + std::string(47, '\0'),
     "2 tensors are announced, 47 bytes follow"},
    {"count_of_2_64", start(UINT64_MAX, UINT64_MAX),
     "18446744073709551615 key-value pairs and 18446744073709551615 tensors are announced; nibble "
     "reads at most 1048576 of each"},
    // Keys and values.
    {"empty_key", one_pair("", kU32, raw<uint32_t>(1)),
     "key-value pair 1: its name has 0 bytes; 1 to 65535 are allowed"},
    {"key_of_65536", one_pair(std::string(65536, 'k'), kU32, raw<uint32_t>(1)),
     "key-value pair 1: its name has 65536 bytes; 1 to 65535 are allowed"},
    {"key_beyond_the_file", start(0, 1) + raw<uint64_t>(UINT64_MAX) + "abcdefgh",
     "key-value pair 1: 18446744073709551615 bytes are needed at byte 32 of the file, 8 are left; "
     "it "
     "is cut short or damaged, download it again"},
    {"key_twice",
     start(0, 2) + pair("k", kU32, raw<uint32_t>(1)) + pair("k", kU32, raw<uint32_t>(1)),
     "k: this key stands twice"},
    {"value_type_13", one_pair("k", 13, raw<uint64_t>(0)), "k: value type 13 is unknown"},
    {"value_cut", one_pair("key", kU64, raw<uint32_t>(1)),
     "key: 1 values of u64 are announced, 4 bytes follow; it is cut short or damaged, download it "
     "again"},
    {"bool_of_2", one_pair("k", kBool, raw<uint8_t>(2)), "k: a bool must be 0 or 1, found 2"},
    {"bool_of_2_in_an_array", one_pair("k", kArray, array(kBool, 2, "\1\2")),
     "k: a bool must be 0 or 1, found 2"},
    {"string_beyond_the_file", one_pair("k", kString, raw<uint64_t>(9) + "12345678"),
     "k: 9 bytes are needed at byte 45 of the file, 8 are left; it is cut short or damaged, "
     "download "
     "it again"},
    {"array_beyond_the_file", one_pair("k", kArray, array(kU64, UINT64_MAX, "12345678")),
     "k: 18446744073709551615 values of u64 are announced, 8 bytes follow; it is cut short or "
     "damaged, download it again"},
    {"array_of_unknown", one_pair("k", kArray, array(77, 1, "12345678")),
     "k: value type 77 is unknown"},
    {"array_of_arrays", one_pair("k", kArray, array(kArray, 1, array(kU8, 1, "x"))),
     "k: an array of arrays is not read"},
    {"last_string_of_an_array",
     one_pair("k", kArray, array(kString, 2, str("a") + raw<uint64_t>(1))),
     "k: 1 bytes are needed at byte 66 of the file, 0 are left; it is cut short or damaged, "
     "download "
     "it again"},
    // Alignment.
    {"alignment_0", one_pair("general.alignment", kU32, raw<uint32_t>(0)),
     "general.alignment: expected a power of two from 8 to 1073741824, found 0"},
    {"alignment_48", one_pair("general.alignment", kU32, raw<uint32_t>(48)),
     "general.alignment: expected a power of two from 8 to 1073741824, found 48"},
    {"alignment_huge", one_pair("general.alignment", kU64, raw(uint64_t{1} << 63)),
     "general.alignment: expected a power of two from 8 to 1073741824, found 9223372036854775808"},
    {"alignment_is_text", one_pair("general.alignment", kString, str("32")),
     "general.alignment: expected an integer that is not negative, found the string \"32\""},
    // Tensors.
    {"empty_tensor_name", with_data(start(1, 0) + tensor_entry("", {8}, kTypeF32, 0), 32),
     "tensor 1: its name has 0 bytes; 1 to 65535 are allowed"},
    {"tensor_twice",
     with_data(
         start(2, 0) + tensor_entry("w", {8}, kTypeF32, 0) + tensor_entry("w", {8}, kTypeF32, 32),
         64),
     "w: this name stands twice"},
    {"five_dimensions", one_tensor({1, 1, 1, 1, 1}, kTypeF32, 0, 4),
     "w: 5 dimensions; at most 4 are allowed"},
    {"negative_dimension", one_tensor({UINT64_MAX}, kTypeF32, 0, 4),
     "w: dimension 0 is 18446744073709551615, more than 2^63"},
    {"elements_overflow", one_tensor({uint64_t{1} << 32, uint64_t{1} << 31}, kTypeF32, 0, 4),
     "w: shape (2147483648, 4294967296) has more than 2^63 elements"},
    {"bytes_overflow", one_tensor({uint64_t{1} << 62}, kTypeF32, 0, 4),
     "w: shape (4611686018427387904) of f32 takes more than 2^63 bytes"},
    {"ragged_block", one_tensor({48, 2}, kTypeQ4_1, 0, 64),
     "w: shape (2, 48) of q4_1 does not divide into blocks of 32 along its last dimension"},
    {"unknown_tensor_type", one_tensor({8}, 4242, 0, 32), "w: tensor type 4242 is unknown"},
    {"removed_tensor_type", one_tensor({32}, 4, 0, 32),
     "w: tensor type 4 (Q4_2) has been removed from the format"},
    {"crooked_offset", one_tensor({8}, kTypeF32, 16, 64),
     "w: offset 16 is no multiple of the alignment 32"},
    {"offset_beyond_the_file", one_tensor({8}, kTypeF32, uint64_t{1} << 63, 32),
     "w: 32 bytes at offset 9223372036854775808 of the data, of which the file has 32; it is cut "
     "short, download it again"},
    {"one_byte_short", one_tensor({8}, kTypeF32, 0, 31),
     "w: 32 bytes at offset 0 of the data, of which the file has 31; it is cut short, download it "
     "again"},
    {"no_data", start(1, 0) + tensor_entry("w", {8}, kTypeF32, 0),
     "the file ends at byte 57, before its data at byte 64; it is cut short, download it again"},
    {"empty_tensor_and_no_data", start(1, 0) + tensor_entry("w", {0}, kTypeF32, 0),
     "the file ends at byte 57, before its data at byte 64; it is cut short, download it again"},
    {"overlap",
     with_data(
         start(2, 0) + tensor_entry("b", {8}, kTypeF32, 32) + tensor_entry("a", {16}, kTypeF32, 0),
         64),
     "b: begins at byte 32 of the data, inside a, which ends at 64"},
    {"tensor_cut", start(1, 0) + tensor_entry("weight", {8}, kTypeF32, 0).substr(0, 32),
     "weight: 8 bytes are needed at byte 54 of the file, 2 are left; it is cut short or damaged, "
     "download it again"},
};

INSTANTIATE_TEST_SUITE_P(gguf, HostileGguf, testing::ValuesIn(kHostile),
                         [](const auto& row) { return std::string(row.param.what); });

}  // namespace
}  // namespace nibble::checkpoint
