#include "checkpoint/torch_file.h"

#include <gtest/gtest.h>

#include "checkpoint/checkpoint.h"
#include "checkpoint/torch_test_files.h"

namespace nibble::checkpoint {
namespace {

using tensor::DType;

const std::string kTensor = pickled_tensor("HalfStorage", "0", 4, {2, 2}, {2, 1});

TEST(torch_file, nested_dicts_are_tensors_with_dotted_names) {
  const std::string bytes = torch_bytes(
      dict({{"lm_head", dict({{"weight", kTensor}, {"bits", integer(4)}, {"none", "N"}})},
            {"", dict({{"root", kTensor}})},
            {"list", "](" + kTensor + kTensor + "e"},
            {"plain.name", kTensor}}),
      {{"0", "abcdefgh"}});
  const auto header = read_torch(bytes);
  ASSERT_TRUE(header) << header.error().message;
  ASSERT_EQ(header->tensors.size(), 5u);
  EXPECT_EQ(header->tensors[0].name, "lm_head.weight");
  EXPECT_EQ(header->tensors[0].dtype, DType::kF16);
  EXPECT_EQ(header->tensors[0].shape, (tensor::Shape{2, 2}));
  EXPECT_EQ(bytes.substr(header->tensors[0].offset, header->tensors[0].bytes), "abcdefgh");
  EXPECT_EQ(header->tensors[1].name, "root");
  EXPECT_EQ(header->tensors[3].name, "list.1");
  EXPECT_EQ(header->tensors[4].name, "plain.name");
  EXPECT_TRUE(header->strides[0].empty());
  EXPECT_TRUE(header->warnings.empty());
}

TEST(torch_file, ordered_dicts_parameters_and_types_are_known) {
  const std::string ordered = name_of("collections", "OrderedDict") + ")R";
  const std::string parameter =
      name_of("torch._utils", "_rebuild_parameter") + "(" + kTensor + "\x89" + ordered + "tR";
  const std::string size = name_of("torch", "Size") + "(" + tuple({2, 2}) + "tR";
  const std::string sized = ordered + "(" + text("w") + parameter + text("shape") + size +
                            text("dtype") + name_of("torch", "bfloat16") + text("device") +
                            name_of("torch", "device") + "(" + text("cuda") + "tR" + "u";
  // As torch leaves it: state_dict()._metadata is set on the dict.
  const std::string built = sized + "}" + text("_metadata") + ordered + "sb";
  const auto header = read_torch(torch_bytes(built, {{"0", "abcdefgh"}}));
  ASSERT_TRUE(header) << header.error().message;
  ASSERT_EQ(header->tensors.size(), 1u);
  EXPECT_EQ(header->tensors[0].name, "w");
}

TEST(torch_file, newer_types_have_their_type_beside_the_bytes) {
  const std::string pickle = name_of("torch._utils", "_rebuild_tensor_v3") + "((" +
                             text("storage") + name_of("torch.storage", "UntypedStorage") +
                             text("0") + text("cpu") + integer(8) + "tQ" + integer(1) + tuple({7}) +
                             tuple({1}) + "\x89" + name_of("collections", "OrderedDict") + ")R" +
                             name_of("torch", "float8_e4m3fn") + "tR";
  const std::string bytes = torch_bytes(dict({{"w", pickle}}), {{"0", "abcdefgh"}});
  const auto header = read_torch(bytes);
  ASSERT_TRUE(header) << header.error().message;
  EXPECT_EQ(header->tensors[0].dtype, DType::kE4M3);
  EXPECT_EQ(bytes.substr(header->tensors[0].offset, header->tensors[0].bytes), "bcdefgh");
}

TEST(torch_file, tensors_may_share_bytes_begin_inside_and_lie_in_another_order) {
  TempFolder folder;
  folder.write("config.json", R"({"model_type": "llama"})")
      .write("pytorch_model.bin",
             torch_bytes(dict({{"a", pickled_tensor("ByteStorage", "0", 8, {2, 3}, {1, 2}, 1)},
                               {"b", pickled_tensor("ByteStorage", "0", 8, {3}, {1}, 5)},
                               {"c", pickled_tensor("ByteStorage", "0", 8, {1, 4}, {99, 2})}}),
                         {{"0", "abcdefgh"}}));
  for (const bool map : {true, false}) {
    const auto c = Checkpoint::open(folder.path(), {.mmap = map});
    ASSERT_TRUE(c) << c.error().message;
    EXPECT_EQ(c->kind(), CheckpointKind::kTorch);
    const std::pair<const char*, const char*> wanted[] = {
        {"a", "bdfceg"}, {"b", "fgh"}, {"c", "aceg"}};
    for (const auto& [name, bytes] : wanted) {
      const auto view = c->view(*c->find(name));
      ASSERT_TRUE(view) << view.error().message;
      EXPECT_EQ(std::string(reinterpret_cast<const char*>(view->data), view->bytes), bytes) << name;
      c->drop(*c->find(name));
    }
  }
}

TEST(torch_file, nothing_is_ever_run) {
  EXPECT_EQ(error_of_pickle(name_of("posix", "system") + "(" + text("rm") + "tR"),
            "m.bin: the pickle asks for posix.system, which no plain state dict does; nibble reads "
            "tensors and never runs what a file asks for: save the model as safetensors "
            "(save_pretrained does)");
  EXPECT_EQ(error_of_pickle(text("builtins") + text("eval") + "\x93"),
            "m.bin: the pickle asks for builtins.eval, which no plain state dict does; nibble "
            "reads tensors and never runs what a file asks for: save the model as safetensors "
            "(save_pretrained does)");
  EXPECT_EQ(error_of_pickle("(S'x'\n"),
            "m.bin: the pickle has the opcode 0x53, which no plain state dict does; nibble reads "
            "tensors and never runs what a file asks for: save the model as safetensors "
            "(save_pretrained does)");
  EXPECT_EQ(error_of_pickle(name_of("torch", "float16") + ")R"),
            "m.bin: the pickle calls what is no function, which no plain state dict does; nibble "
            "reads tensors and never runs what a file asks for: save the model as safetensors "
            "(save_pretrained does)");
  EXPECT_EQ(error_of_pickle(integer(1) + "}b"),
            "m.bin: the pickle sets the state of what has none, which no plain state dict does; "
            "nibble reads tensors and never runs what a file asks for: save the model as "
            "safetensors (save_pretrained does)");
  EXPECT_EQ(error_of_pickle(std::string("\x8a\x09", 2) + std::string(9, 'x')),
            "m.bin: the pickle holds an integer of more than 64 bits, which no plain state dict "
            "does; nibble reads tensors and never runs what a file asks for: save the model as "
            "safetensors (save_pretrained does)");
}

struct Hostile {
  const char* what;
  std::string pickle;
  const char* message;
};

class HostilePickle : public testing::TestWithParam<Hostile> {};

TEST_P(HostilePickle, is_refused_with_its_sentence) {
  EXPECT_EQ(error_of_pickle(GetParam().pickle), std::string("m.bin: ") + GetParam().message);
}

std::string with_tensor(const std::string& tensor) { return dict({{"w", tensor}}); }
std::string deep(int count) {
  std::string out = kTensor;
  for (int i = 0; i < count; ++i) out = dict({{"d", out}});
  return out;
}

const Hostile kPickles[] = {
    {"empty_stack", "", "the pickle is damaged at its byte 2: the stack is empty"},
    {"left_over", "NN", "the pickle is damaged at its byte 4: values are left when it ends"},
    {"no_mark", "t", "the pickle is damaged at its byte 2: there is no mark on the stack"},
    {"below_the_mark", "N(\x85", "the pickle is damaged at its byte 4: the stack is empty"},
    {"ends_in_a_value", "X\xff\xff\xff\xff",
     "the pickle is damaged at its byte 2: it ends inside a value"},
    {"odd_items", "}(Nu", "the pickle is damaged at its byte 5: a key has no value"},
    {"set_in_no_dict", "](NNu",
     "the pickle is damaged at its byte 6: items are set in what is no dict"},
    {"nothing_remembered", "h\x07",
     "the pickle is damaged at its byte 2: nothing was remembered as 7"},
    {"one_tensor", kTensor, "it holds one tensor, not a state dict (names and their tensors)"},
    {"a_list", "]", "it holds something, not a state dict (names and their tensors)"},
    {"inside_itself", "}q\1" + text("d") + std::string("h\1s"),
     "d.d.d.d.d.d.d.d.d.d.d.d.d.d.d.d: dicts lie more than 16 deep in each other"},
    {"too_deep", deep(18),
     "d.d.d.d.d.d.d.d.d.d.d.d.d.d.d.d: dicts lie more than 16 deep in each other"},
    {"a_storage_alone", with_tensor(storage("HalfStorage", "0", 4)),
     "w: a storage without a tensor around it"},
    {"key_of_another_kind", "}" + name_of("torch", "int8") + kTensor + "s",
     ": a key of this dict is no short text"},
    {"twice", dict({{"a", dict({{"b", kTensor}})}, {"a.b", kTensor}}),
     "a.b: this name stands twice in the dicts"},
    {"no_name", dict({{"", kTensor}}), "a tensor has no name"},
    {"storage_missing", with_tensor(pickled_tensor("HalfStorage", "7", 4, {4}, {1})),
     "w: the archive has no entry data/7, which holds its numbers; the file is not complete, "
     "download it again"},
    {"storage_of_another_size", with_tensor(pickled_tensor("HalfStorage", "0", 5, {4}, {1})),
     "w: its storage has 5 elements of 2 bytes, the entry data/0 8 bytes"},
    {"beyond_the_storage", with_tensor(pickled_tensor("HalfStorage", "0", 4, {2, 2}, {3, 1})),
     "w: its last element would lie behind the 8 bytes of its storage"},
    {"strides_that_overflow",
     with_tensor(pickled_tensor("HalfStorage", "0", 4, {2, 2}, {2147483647, 2147483647})),
     "w: its last element would lie behind the 8 bytes of its storage"},
    {"repeated", with_tensor(pickled_tensor("HalfStorage", "0", 4, {1000, 4}, {0, 1})),
     "w: a view that repeats its elements, 8000 bytes out of 8"},
    {"negative_shape", with_tensor(pickled_tensor("HalfStorage", "0", 4, {-1}, {1})),
     "w: its shape has what is no integer, or one below 0"},
    {"strides_missing", with_tensor(pickled_tensor("HalfStorage", "0", 4, {2, 2}, {1})),
     "w: shape (2, 2), 1 strides and the offset 0 make no tensor"},
    {"offset_below_0", with_tensor(pickled_tensor("HalfStorage", "0", 4, {1}, {1}, -1)),
     "w: shape (1), 1 strides and the offset -1 make no tensor"},
    {"no_storage", with_tensor(name_of("torch._utils", "_rebuild_tensor_v2") + "(NNNNtR"),
     "w: what should be its storage is none"},
};

INSTANTIATE_TEST_SUITE_P(torch_file, HostilePickle, testing::ValuesIn(kPickles),
                         [](const auto& row) { return std::string(row.param.what); });

TEST(torch_file, a_dict_that_doubles_itself_is_refused_soon) {
  std::string pickle = dict({{"w", kTensor}}) + "q\1";
  for (char level = 1; level < 15; ++level) {
    const std::string again = std::string("h") + level;
    std::vector<std::pair<std::string, std::string>> items;
    for (int i = 0; i < 8; ++i) items.emplace_back(std::to_string(i), again);
    pickle += dict(items) + "q" + static_cast<char>(level + 1);
  }
  std::string whole = "](" + pickle.substr(0);
  whole += "e" + std::string("0h\x0f");
  const auto header = read_torch(torch_bytes(whole, {{"0", "abcdefgh"}}));
  ASSERT_FALSE(header);
  EXPECT_TRUE(header.error().message == "m.bin: more than the 1048576 tensors that nibble reads" ||
              header.error().message ==
                  "m.bin: the dicts hold more than the 2097152 values that nibble reads")
      << header.error().message;
}

TEST(torch_file, other_files_are_named_for_what_they_are) {
  EXPECT_EQ(error_of("\x80\x02\x8a\x0a"),
            "m.bin: this file is in the format of PyTorch before 1.6 (2020), a pickle without an "
            "archive; load it with PyTorch and save the model as safetensors");
  EXPECT_EQ(error_of("hello"), "m.bin: this is no file of torch.save: it begins with \"hello\"");
  EXPECT_EQ(error_of("version https://git-lfs.github.com/spec/v1\n"),
            "m.bin: this is a Git LFS pointer, not the file itself; run \"git lfs pull\" in that "
            "folder, or download the file");
  EXPECT_EQ(error_of(zip_bytes({{"a", "x"}})),
            "m.bin: this zip archive has no entry data.pkl, so torch.save did not write it");
  EXPECT_EQ(error_of(zip_bytes({{"a/data.pkl", pickled("}")}, {"b/data.pkl", pickled("}")}})),
            "m.bin: the archive has two pickles, a/data.pkl and b/data.pkl");
  EXPECT_EQ(error_of(zip_bytes({{"a/data.pkl", pickled("}")}, {"a/constants.pkl", ""}})),
            "m.bin: this is a TorchScript program, not a state dict");
  EXPECT_EQ(error_of(zip_bytes({{"a/data.pkl", pickled("}")}, {"a/byteorder", "big"}})),
            "m.bin: its byte order is \"big\"");
  EXPECT_EQ(error_of(zip_bytes({{"a/data.pkl", ""}})),
            "m.bin: the pickle is damaged at its byte 0: it does not begin as protocol 2 to 5 "
            "does");
}

TEST(torch_file, storages_of_no_tensor_are_a_warning) {
  const auto header =
      read_torch(torch_bytes(dict({{"w", kTensor}}), {{"0", "abcdefgh"}, {"1", "x"}}));
  ASSERT_TRUE(header) << header.error().message;
  ASSERT_EQ(header->warnings.size(), 1u);
  EXPECT_EQ(header->warnings[0], "m.bin: 1 storages belong to no tensor, the first is data/1");
}

}  // namespace
}  // namespace nibble::checkpoint
