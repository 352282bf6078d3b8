#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>

#include "checkpoint/checkpoint.h"
#include "checkpoint/gguf_writer.h"
#include "checkpoint/safetensors_writer.h"
#include "checkpoint/test_files.h"

namespace nibble::checkpoint {
namespace {

using tensor::DType;
using tensor::TensorInfo;

TensorInfo info_of(std::string name, DType dtype, tensor::Shape shape) {
  TensorInfo info;
  info.name = std::move(name);
  info.dtype = dtype;
  info.shape = std::move(shape);
  return info;
}

std::string read_back(const Checkpoint& c, std::string_view name) {
  const auto view = c.view(*c.find(name));
  return view ? std::string(reinterpret_cast<const char*>(view->data), view->bytes)
              : view.error().message;
}

TEST(safetensors_writer, what_is_written_is_read_again) {
  TempFolder folder;
  auto writer = SafetensorsWriter::create(
      folder.at("model.safetensors"),
      {info_of("b\"\u00e9\n", DType::kU8, {3}), info_of("a", DType::kF32, {1, 2}),
       info_of("q", DType::kE2M1, {2, 4}), info_of("z", DType::kF64, {0})},
      {{"format", "pt"}, {"k\"", "v"}});
  ASSERT_TRUE(writer) << writer.error().message;
  EXPECT_EQ(writer->tensors()[0].name, "z");
  EXPECT_EQ(writer->tensors()[1].name, "a");
  EXPECT_EQ(writer->tensors()[2].name, "b\"\u00e9\n");
  for (const TensorInfo& t : writer->tensors()) {
    ASSERT_TRUE(writer->append(as_bytes(std::string(t.bytes, t.name[0]))));
  }
  EXPECT_FALSE(std::filesystem::exists(folder.at("model.safetensors")));
  ASSERT_TRUE(writer->finish());
  EXPECT_FALSE(std::filesystem::exists(folder.at("model.safetensors.part")));
  folder.write("config.json", "{}");
  const auto c = Checkpoint::open(folder.path());
  ASSERT_TRUE(c) << c.error().message;
  EXPECT_EQ(c->metadata().find("k\"")->second, "v");
  EXPECT_EQ(read_back(*c, "a"), "aaaaaaaa");
  EXPECT_EQ(read_back(*c, "b\"\u00e9\n"), "bbb");
  EXPECT_EQ(read_back(*c, "q"), "qqqq");
  EXPECT_EQ(c->find("a")->shape, (tensor::Shape{1, 2}));
  EXPECT_EQ(c->find("a")->offset % 8, 0u);
}

TEST(safetensors_writer, what_the_format_cannot_hold_is_refused) {
  TempFolder folder;
  const auto error = [&](std::vector<TensorInfo> tensors) {
    const auto writer = SafetensorsWriter::create(folder.at("m"), std::move(tensors), {});
    return writer ? std::string("(accepted)") : writer.error().message.substr(folder.path().size());
  };
  EXPECT_EQ(error({info_of("w", DType::kQ4_0, {32})}), "/m: w: safetensors has no type q4_0");
  EXPECT_EQ(error({info_of("w", DType::kE2M1, {3})}), "/m: w: shape (3) of e2m1 cannot be written");
  EXPECT_EQ(error({info_of("\xff", DType::kU8, {3})}), "/m: the name ? is not UTF-8");
  EXPECT_EQ(error({info_of("w", DType::kU8, {3}), info_of("w", DType::kU8, {3})}),
            "/m: w: this name stands twice in the header");
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(safetensors_writer, an_unfinished_file_leaves_nothing_behind) {
  TempFolder folder;
  {
    auto writer = SafetensorsWriter::create(folder.at("m"), {info_of("w", DType::kU8, {3})}, {});
    ASSERT_TRUE(writer) << writer.error().message;
    EXPECT_FALSE(writer->append(as_bytes("four")));
    EXPECT_FALSE(writer->finish());
    EXPECT_FALSE(std::filesystem::is_empty(folder.path()));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(gguf_writer, what_is_written_is_read_again) {
  for (uint32_t alignment : {32u, 256u}) {
    TempFolder folder;
    GgufWriter writer;
    writer.add_string("general.architecture", "llama");
    writer.add_number("general.alignment", alignment);
    writer.add_number("n", int8_t{-5});
    writer.add_number("x", 1.5f);
    writer.add_bool("b", true);
    writer.add_numbers<int32_t>("types", std::array<int32_t, 3>{1, 2, -3});
    writer.add_strings("tokens", std::array<std::string_view, 3>{"a", "", "\xff"});
    writer.add_tensor("a", DType::kF32, {2, 3});
    writer.add_tensor("q", DType::kQ4_1, {2, 32});
    ASSERT_TRUE(writer.begin(folder.at("m.gguf")));
    ASSERT_TRUE(writer.append(as_bytes(std::string(24, 'a'))));
    ASSERT_TRUE(writer.append(as_bytes(std::string(40, 'q'))));
    ASSERT_TRUE(writer.finish());
    const auto c = Checkpoint::open(folder.at("m.gguf"));
    ASSERT_TRUE(c) << c.error().message;
    EXPECT_TRUE(c->warnings().empty());
    EXPECT_EQ(*c->gguf()->get_int("n"), -5);
    EXPECT_EQ(*c->gguf()->get_double("x"), 1.5);
    EXPECT_TRUE(*c->gguf()->get_bool("b"));
    EXPECT_EQ(*c->gguf()->get_ints("types"), (std::vector<int64_t>{1, 2, -3}));
    EXPECT_EQ(*c->gguf()->get_strings("tokens"), (std::vector<std::string_view>{"a", "", "\xff"}));
    EXPECT_EQ(read_back(*c, "a"), std::string(24, 'a'));
    EXPECT_EQ(read_back(*c, "q"), std::string(40, 'q'));
    EXPECT_EQ(c->find("a")->shape, (tensor::Shape{2, 3}));
    EXPECT_EQ(c->find("q")->offset % alignment, 0u);
    // Every pair of one file can be carried into another.
    GgufWriter copy;
    for (const GgufEntry& entry : c->gguf()->entries()) copy.add_entry(entry);
    ASSERT_TRUE(copy.begin(folder.at("copy.gguf")));
    ASSERT_TRUE(copy.finish());
    const auto again = Checkpoint::open(folder.at("copy.gguf"));
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_EQ(again->gguf()->entries().size(), 7u);
    EXPECT_EQ(again->gguf()->get_strings("tokens")->at(2), "\xff");
  }
}

TEST(gguf_writer, what_the_format_cannot_hold_is_refused) {
  TempFolder folder;
  GgufWriter twice;
  twice.add_bool("k", true);
  twice.add_bool("k", true);
  EXPECT_FALSE(twice.begin(folder.at("m")));
  GgufWriter type;
  type.add_tensor("w", DType::kE4M3, {4});
  EXPECT_EQ(type.begin(folder.at("m")).error().message,
            folder.at("m") + ": w: shape (4) of e4m3 cannot be written to a GGUF");
  GgufWriter crooked;
  crooked.add_number("general.alignment", uint32_t{48});
  EXPECT_FALSE(crooked.begin(folder.at("m")));
  GgufWriter unopened;
  EXPECT_FALSE(unopened.append(as_bytes("x")));
  EXPECT_FALSE(unopened.finish());
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

// A split model of two files, with the claims that each file makes about itself.
struct Claim {
  uint16_t number;
  uint16_t count;
  int32_t tensors;
  const char* tensor;
};
std::string error_of_split(const std::array<Claim, 2>& claims) {
  TempFolder folder;
  for (size_t i = 0; i < 2; ++i) {
    GgufWriter writer;
    writer.add_number("split.no", claims[i].number);
    writer.add_number("split.count", claims[i].count);
    writer.add_number("split.tensors.count", claims[i].tensors);
    writer.add_tensor(claims[i].tensor, DType::kF32, {1});
    if (!writer.begin(folder.at(fmt::format("m-0000{}-of-00002.gguf", i + 1))) ||
        !writer.append(as_bytes("1234")) || !writer.finish()) {
      return "(cannot write)";
    }
  }
  const auto c = Checkpoint::open(folder.path());
  return c ? "" : c.error().message;
}

TEST(checkpoint, the_files_of_a_split_gguf_must_agree) {
  EXPECT_EQ(error_of_split({{{0, 2, 2, "a"}, {1, 2, 2, "b"}}}), "");
  EXPECT_EQ(
      error_of_split({{{0, 2, 2, "a"}, {0, 2, 2, "b"}}}),
      "m-00002-of-00002.gguf: its keys split.no and split.count say file 1 of 2, its name says "
      "2 of 2");
  EXPECT_EQ(
      error_of_split({{{0, 3, 2, "a"}, {1, 3, 2, "b"}}}),
      "m-00001-of-00002.gguf: its keys split.no and split.count say file 1 of 3, its name says "
      "1 of 2");
  EXPECT_EQ(error_of_split({{{0, 2, 3, "a"}, {1, 2, 3, "b"}}}),
            "m-00001-of-00002.gguf: split.tensors.count says 3, the 2 files hold 2");
  EXPECT_EQ(error_of_split({{{0, 2, 2, "a"}, {1, 2, 2, "a"}}}),
            "m-00002-of-00002.gguf: a: this tensor is also in m-00001-of-00002.gguf; keep the file "
            "that belongs to the model");
}

TEST(checkpoint, one_file_of_a_split_gguf_under_another_name_says_so) {
  TempFolder folder;
  GgufWriter writer;
  writer.add_number("split.no", uint16_t{0});
  writer.add_number("split.count", uint16_t{3});
  ASSERT_TRUE(writer.begin(folder.at("m.gguf")));
  ASSERT_TRUE(writer.finish());
  EXPECT_EQ(Checkpoint::open(folder.at("m.gguf")).error().message,
            "m.gguf: this is one of 3 files of a split model; keep the names that end in "
            "-00001-of-00003.gguf, all in one folder");
}

}  // namespace
}  // namespace nibble::checkpoint
