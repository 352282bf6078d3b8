#include "checkpoint/safetensors.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "checkpoint/test_files.h"

namespace nibble::checkpoint {
namespace {

using tensor::DType;

// As open() does it: the length first, then the header.
Result<SafetensorsHeader> parse(std::string_view file) {
  const auto bytes = as_bytes(file);
  NIBBLE_ASSIGN(const uint64_t head, safetensors_head_bytes(bytes, bytes.size(), "m.safetensors"));
  return parse_safetensors_header(bytes.first(head), bytes.size(), "m.safetensors");
}

std::string one(std::string_view entry, std::string_view data = "") {
  return safetensors_bytes(fmt::format("{{\"w\":{}}}", entry), data);
}

TEST(safetensors, names_types_shapes_and_places_are_read) {
  const auto header =
      parse(safetensors_bytes(R"({"__metadata__":{"format":"pt","a\u00e9":"x"},)"
                              R"("b":{"dtype":"F16","shape":[2,1],"data_offsets":[4,8]},)"
                              R"("a":{"shape":[],"data_offsets":[0,4],"dtype":"F32"}}   )",
                              "12345678"));
  ASSERT_TRUE(header) << header.error().message;
  ASSERT_EQ(header->tensors.size(), 2u);
  EXPECT_EQ(header->tensors[0].name, "a");  // in the order of the bytes
  EXPECT_EQ(header->tensors[0].dtype, DType::kF32);
  EXPECT_EQ(header->tensors[0].shape, tensor::Shape{});
  EXPECT_EQ(header->tensors[0].bytes, 4u);
  EXPECT_EQ(header->tensors[1].name, "b");
  EXPECT_EQ(header->tensors[1].shape, (tensor::Shape{2, 1}));
  EXPECT_EQ(header->tensors[1].offset, header->tensors[0].offset + 4);
  ASSERT_EQ(header->metadata.size(), 2u);
  EXPECT_EQ(header->metadata[0], (std::pair<std::string, std::string>("format", "pt")));
  EXPECT_EQ(header->metadata[1].first, "a\u00e9");
}

TEST(safetensors, every_dtype_of_the_format_is_known) {
  struct Row {
    const char* name;
    DType dtype;
    int bytes_of_8;
  };
  const Row rows[] = {{"BOOL", DType::kBool, 8},    {"U8", DType::kU8, 8},
                      {"I8", DType::kS8, 8},        {"U16", DType::kU16, 16},
                      {"I16", DType::kS16, 16},     {"U32", DType::kU32, 32},
                      {"I32", DType::kS32, 32},     {"U64", DType::kU64, 64},
                      {"I64", DType::kS64, 64},     {"F16", DType::kF16, 16},
                      {"BF16", DType::kBF16, 16},   {"F32", DType::kF32, 32},
                      {"F64", DType::kF64, 64},     {"C64", DType::kC64, 64},
                      {"F8_E4M3", DType::kE4M3, 8}, {"F8_E4M3FNUZ", DType::kE4M3FNUZ, 8},
                      {"F8_E5M2", DType::kE5M2, 8}, {"F8_E5M2FNUZ", DType::kE5M2FNUZ, 8},
                      {"F8_E8M0", DType::kE8M0, 8}, {"F4", DType::kE2M1, 4},
                      {"F6_E2M3", DType::kE2M3, 6}, {"F6_E3M2", DType::kE3M2, 6}};
  for (const Row& row : rows) {
    const auto header =
        parse(one(fmt::format(R"({{"dtype":"{}","shape":[8,1],"data_offsets":[0,{}]}})", row.name,
                              row.bytes_of_8),
                  std::string(static_cast<size_t>(row.bytes_of_8), 'x')));
    ASSERT_TRUE(header) << header.error().message;
    EXPECT_EQ(header->tensors[0].dtype, row.dtype) << row.name;
    EXPECT_EQ(safetensors_name(row.dtype), row.name);
  }
  EXPECT_EQ(safetensors_name(DType::kQ4_0), "");
}

TEST(safetensors, no_tensors_and_empty_tensors_are_fine) {
  EXPECT_TRUE(parse(safetensors_bytes("{}")));
  EXPECT_TRUE(parse(safetensors_bytes(R"({"__metadata__":null})")));
  const auto header = parse(safetensors_bytes(
      R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
      R"("e":{"dtype":"F32","shape":[3,0],"data_offsets":[2,2]},)"
      R"("f":{"dtype":"F32","shape":[0,9223372036854775807],"data_offsets":[0,0]},)"
      R"("b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
      "xyz"));
  ASSERT_TRUE(header) << header.error().message;
  EXPECT_EQ(header->tensors.size(), 4u);
}

TEST(safetensors, a_header_whose_length_looks_like_a_pickle_is_read) {
  std::string header = "{}";
  header.resize(0x280, ' ');  // the bytes 80 02, with which pickles begin
  EXPECT_TRUE(parse(safetensors_bytes(header)));
}

struct Hostile {
  const char* what;
  std::string bytes;
  const char* message;  // after "m.safetensors: "
};

class HostileSafetensors : public testing::TestWithParam<Hostile> {};

TEST_P(HostileSafetensors, is_refused_with_its_sentence) {
  const auto header = parse(GetParam().bytes);
  ASSERT_FALSE(header);
  EXPECT_EQ(header.error().message, std::string("m.safetensors: ") + GetParam().message);
}

std::string many(std::string_view text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

const Hostile kHostile[] = {
    // Not a safetensors file at all.
    {"empty_file", "", "the file is empty; download it again"},
    {"short_file", "abc",
     "the file has 3 bytes, fewer than the 8 that hold a safetensors header's length; download it "
     "again"},
    {"lfs_pointer",
     "version https://git-lfs.github.com/spec/v1\noid "
     "sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32"
     "b1258daaa5e2ca24d17e2393\nsize 12345\n",
     "this is a Git LFS pointer, not the file itself; run \"git lfs pull\" in that folder, or "
     "download the file"},
    {"web_page", "\n<!DOCTYPE html><html><body>Access denied</body></html>",
     "this is a web page (it begins with \"<!DOCTYPE\"), perhaps a login or error page saved in "
     "the "
     "file's place; download it again"},
    {"zip_pickle", std::string("PK\x03\x04", 4) + std::string(60, '\0'),
     "this is a file of torch.save under a safetensors name; call it pytorch_model.bin and open "
     "the folder again"},
    {"pickle", "\x80\x02}q\1(X\4...",
     "this is a file of torch.save under a safetensors name; call it pytorch_model.bin and open "
     "the folder again"},
    {"json_text", "{\"error\":\"Repository not found\"}",
     "a header of 2482168881970750075 bytes is announced, the format allows 100000000; this is no "
     "safetensors file, or it is damaged"},
    // The length.
    {"header_of_100_000_001", raw<uint64_t>(100'000'001) + "{}",
     "a header of 100000001 bytes is announced, the format allows 100000000; this is no "
     "safetensors "
     "file, or it is damaged"},
    {"header_beyond_the_file", raw<uint64_t>(3) + "{}",
     "a header of 3 bytes is announced, but only 2 follow; it is cut short, download it again"},
    {"header_length_overflows", raw<uint64_t>(UINT64_MAX) + "{}",
     "a header of 18446744073709551615 bytes is announced, the format allows 100000000; this is no "
     "safetensors file, or it is damaged"},
    {"no_header", raw<uint64_t>(0) + "{}", "the header is empty"},
    // The JSON.
    {"space_first", safetensors_bytes(" {}"), "the header must begin with \"{\", found \" \""},
    {"a_list", safetensors_bytes("[]"), "the header must begin with \"{\", found \"[\""},
    {"cut_json", safetensors_bytes("{\"w\":"),
     "the header is not valid JSON at its byte 6: syntax error while parsing value - unexpected "
     "end "
     "of input; expected '[', '{', or a literal"},
    {"two_documents", safetensors_bytes("{}{}"),
     "the header is not valid JSON at its byte 3: syntax error while parsing value - unexpected "
     "'{'; "
     "expected end of input"},
    {"broken_utf8", safetensors_bytes("{\"\xff\":1}"),
     "the header is not valid JSON at its byte 3: syntax error while parsing object key - invalid "
     "string: ill-formed UTF-8 byte; last read: '\"?'; expected string literal"},
    {"zero_byte_padding", safetensors_bytes(std::string_view("{}\0", 3)),
     "the header has a zero byte at its byte 3; JSON has none"},
    // The metadata.
    {"metadata_number", safetensors_bytes(R"({"__metadata__":{"format":1}})"),
     "__metadata__: format: expected a string, found 1"},
    {"metadata_nested", safetensors_bytes(R"({"__metadata__":{"format":{}}})"),
     "__metadata__: format: expected a string, found an object"},
    {"metadata_is_a_string", safetensors_bytes(R"({"__metadata__":"pt"})"),
     "__metadata__: expected an object of strings, found \"pt\""},
    {"metadata_twice", safetensors_bytes(R"({"__metadata__":{},"__metadata__":{}})"),
     "\"__metadata__\" stands twice in the header"},
    {"metadata_key_twice", safetensors_bytes(R"({"__metadata__":{"a":"1","a":"2"}})"),
     "__metadata__: \"a\" stands twice"},
    // A tensor's entry.
    {"tensor_is_a_number", one("1"),
     "w: expected an object with dtype, shape and data_offsets, found 1"},
    {"tensor_is_a_list", one("[]"),
     "w: expected an object with dtype, shape and data_offsets, found a list"},
    {"tensor_is_null", one("null"),
     "w: expected an object with dtype, shape and data_offsets, found null"},
    {"no_dtype", one(R"({"shape":[1],"data_offsets":[0,1]})", "x"), "w: dtype is missing"},
    {"no_shape", one(R"({"dtype":"U8","data_offsets":[0,1]})", "x"), "w: shape is missing"},
    {"no_offsets", one(R"({"dtype":"U8","shape":[1]})", "x"), "w: data_offsets is missing"},
    {"unknown_key", one(R"({"dtype":"U8","stride":[1],"shape":[1],"data_offsets":[0,1]})", "x"),
     "w: has a key \"stride\", which the format does not have"},
    {"key_twice", one(R"({"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]})", "x"),
     "w: \"dtype\" stands twice"},
    {"name_twice",
     safetensors_bytes(R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                       R"("w":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                       "xx"),
     "w: this name stands twice in the header"},
    {"unknown_dtype", one(R"({"dtype":"F8_E4M3FN","shape":[1],"data_offsets":[0,1]})", "x"),
     "w: unknown dtype \"F8_E4M3FN\""},
    {"dtype_is_a_number", one(R"({"dtype":8,"shape":[1],"data_offsets":[0,1]})", "x"),
     "w: dtype: expected a string, found 8"},
    {"dtype_is_a_list", one(R"({"dtype":["U8"],"shape":[1],"data_offsets":[0,1]})", "x"),
     "w: dtype: expected a string, found a list"},
    {"shape_is_a_number", one(R"({"dtype":"U8","shape":1,"data_offsets":[0,1]})", "x"),
     "w: shape: expected a list, found 1"},
    {"negative_shape", one(R"({"dtype":"U8","shape":[-1],"data_offsets":[0,1]})", "x"),
     "w: shape: expected integers that are not negative, found -1"},
    {"real_shape", one(R"({"dtype":"U8","shape":[1.0],"data_offsets":[0,1]})", "x"),
     "w: shape: expected integers that are not negative, found 1.0"},
    {"shape_beyond_2_63",
     one(R"({"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,1]})"),
     "w: shape: expected integers that are not negative, found 9223372036854775808"},
    {"nested_shape", one(R"({"dtype":"U8","shape":[[1]],"data_offsets":[0,1]})", "x"),
     "w: shape: expected integers that are not negative, found a list"},
    {"shape_of_65",
     one(fmt::format(R"({{"dtype":"U8","shape":[1{}],"data_offsets":[0,1]}})", many(",1", 64))),
     "w: shape has more than 64 dimensions"},
    {"one_offset", one(R"({"dtype":"U8","shape":[1],"data_offsets":[0]})", "x"),
     "w: data_offsets: expected 2 numbers, found 1"},
    {"three_offsets", one(R"({"dtype":"U8","shape":[1],"data_offsets":[0,1,2]})", "x"),
     "w: data_offsets: expected 2 numbers, found 3"},
    {"negative_offset", one(R"({"dtype":"U8","shape":[1],"data_offsets":[-1,0]})", "x"),
     "w: data_offsets: expected integers that are not negative, found -1"},
    {"offset_beyond_2_64",
     one(R"({"dtype":"U8","shape":[1],"data_offsets":[0,18446744073709551616]})"),
     "w: data_offsets: expected integers that are not negative, found 18446744073709551616"},
    // Sizes.
    {"offsets_backwards", one(R"({"dtype":"U8","shape":[1],"data_offsets":[1,0]})", "x"),
     "w: data_offsets [1, 0] end before they begin"},
    {"too_few_bytes", one(R"({"dtype":"F32","shape":[2,3],"data_offsets":[0,23]})"),
     "w: shape (2, 3) of F32 takes 24 bytes, data_offsets [0, 23] hold 23"},
    {"product_overflows",
     one(R"({"dtype":"U8","shape":[4294967296,4294967296,1],"data_offsets":[0,0]})"),
     "w: shape (4294967296, 4294967296, 1) of U8 is no whole number of bytes, or more than 2^63"},
    {"bytes_overflow", one(R"({"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]})"),
     "w: shape (2305843009213693952) of F64 is no whole number of bytes, or more than 2^63"},
    {"half_a_byte", one(R"({"dtype":"F4","shape":[3],"data_offsets":[0,2]})"),
     "w: shape (3) of F4 is no whole number of bytes, or more than 2^63"},
    // The tiling.
    {"one_byte_short", one(R"({"dtype":"U8","shape":[4],"data_offsets":[0,4]})", "abc"),
     "w: ends at byte 4 of the data, of which the file has 3; it is cut short, download it again"},
    {"one_byte_long", one(R"({"dtype":"U8","shape":[4],"data_offsets":[0,4]})", "abcde"),
     "the last 1 bytes belong to no tensor; the file does not match its header, download it again"},
    {"hole_at_start", one(R"({"dtype":"U8","shape":[1],"data_offsets":[1,2]})", "ab"),
     "w: begins at byte 1 of the data, but the bytes from 0 on belong to no tensor"},
    {"hole_between",
     safetensors_bytes(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                       R"("b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
                       "xyz"),
     "b: begins at byte 2 of the data, but the bytes from 1 on belong to no tensor"},
    {"overlap",
     safetensors_bytes(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                       R"("b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
                       "xyz"),
     "b: begins at byte 1 of the data, inside a, which ends at 2"},
    {"same_bytes_twice",
     safetensors_bytes(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                       R"("b":{"dtype":"I8","shape":[2],"data_offsets":[0,2]}})",
                       "xy"),
     "b: begins at byte 0 of the data, inside a, which ends at 2"},
    {"empty_tensor_in_a_hole",
     safetensors_bytes(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[1,1]},)"
                       R"("b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
                       "xy"),
     "a: begins at byte 1 of the data, inside b, which ends at 2"},
    {"offset_plus_bytes_wraps",
     one(R"({"dtype":"U8","shape":[2],"data_offsets":[18446744073709551613,18446744073709551615]})"),
     "w: ends at byte 18446744073709551615 of the data, of which the file has 0; it is cut short, "
     "download it again"},
    // Names that would spoil a terminal.
    {"control_characters",
     safetensors_bytes("{\"a\\u001b[2J\\u0000\":{\"dtype\":\"U8\",\"shape\":[1]}}"),
     "a?[2J?: data_offsets is missing"},
};

INSTANTIATE_TEST_SUITE_P(safetensors, HostileSafetensors, testing::ValuesIn(kHostile),
                         [](const auto& row) { return std::string(row.param.what); });

TEST(safetensors, a_long_name_is_cut_in_messages) {
  const auto header = parse(safetensors_bytes(fmt::format("{{\"{}\":1}}", many("name", 25'000))));
  ASSERT_FALSE(header);
  EXPECT_LT(header.error().message.size(), 300u);
}

TEST(safetensors, more_tensors_than_any_model_has_are_refused) {
  std::string text = "{";
  for (int i = 0; i <= 1 << 20; ++i) {
    text += fmt::format(R"("{}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}},)", i);
  }
  text.back() = '}';
  const auto header = parse(safetensors_bytes(text));
  ASSERT_FALSE(header);
  EXPECT_EQ(
      header.error().message,
      "m.safetensors: 1048576: the header has more than the 1048576 tensors that nibble reads");
}

TEST(safetensors, more_metadata_than_any_model_has_is_refused) {
  std::string text = R"({"__metadata__":{)";
  for (int i = 0; i <= 1 << 20; ++i) text += fmt::format(R"("{}":"",)", i);
  text.back() = '}';
  const auto header = parse(safetensors_bytes(text + "}"));
  ASSERT_FALSE(header);
  EXPECT_EQ(header.error().message,
            "m.safetensors: __metadata__: more than the 1048576 pairs that nibble reads");
}

}  // namespace
}  // namespace nibble::checkpoint
