#include "checkpoint/torch_subclass.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/torch_test_files.h"

namespace nibble::checkpoint {
namespace {

using Items = std::vector<std::pair<std::string, std::string>>;

const std::string kTensor = pickled_tensor("HalfStorage", "0", 4, {2, 2}, {2, 1});
const std::string kEmptyOrdered = name_of("collections", "OrderedDict") + ")R";

std::string ao(std::string_view name) { return name_of("torchao.some.where", name); }
// Class(size), as torch.save writes it.
std::string subclass(const std::string& type, const std::string& state,
                     const std::string& size = tuple({2, 4})) {
  return name_of("torch._tensor", "_rebuild_from_type_v2") + "(" +
         name_of("torch._utils", "_rebuild_wrapper_subclass") + type + "(" + type +
         name_of("torch", "bfloat16") + size + tuple({4, 1}) + integer(0) +
         name_of("torch.serialization", "_get_layout") + text("torch.strided") + "\x85R" +
         name_of("torch", "device") + text("cpu") + "\x85R\x89t" + state + "tR";
}
std::string int4(const Items& state) { return subclass(ao("Int4Tensor"), dict(state)); }
std::string real(double value) {
  std::string bytes = raw(value);
  return "G" + std::string(bytes.rbegin(), bytes.rend());
}
std::string enumeration(std::string_view type, const std::string& value) {
  return ao(type) + value + "\x85R";
}
std::string object(std::string_view type, const std::string& arguments = ")") {
  return ao(type) + arguments + "\x81";
}

Result<TorchHeader> read_items(const Items& items) {
  return read_torch(torch_bytes(dict(items), {{"0", "abcdefgh"}}));
}
// The JSON of a parameter with one attribute `a`, from behind its key to "dtype".
std::string json_of(const std::string& value) {
  const auto header = read_items({{"w", int4({{"a", value}})}});
  if (!header) return header.error().message;
  const std::string& json = header->subclasses.at(0).json;
  const std::string_view begin = R"({"_type":"Int4Tensor","_data":{"a":)";
  const std::string_view end =
      R"(,"dtype":{"_type":"torch.dtype","_data":"bfloat16"},"shape":[2,4]},)"
      R"("_tensor_data_names":[]})";
  EXPECT_TRUE(json.starts_with(begin) && json.ends_with(end)) << json;
  EXPECT_TRUE(base::parse_json(json, "json"));
  return json.substr(begin.size(), json.size() - begin.size() - end.size());
}

TEST(torch_subclass, is_tensors_named_by_attributes_and_a_json_text) {
  const auto header = read_items(
      {{"up.weight", int4({{"qdata", kTensor}, {"none", "N"}, {"scale", kTensor}})},
       {"norm", kTensor},
       {"down",
        dict({{"weight",
               subclass(ao("Outer"),
                        dict({{"inner", subclass(ao("Inner"), dict({{"int_data", kTensor}}), ")")},
                              {"bits", integer(4)}}))}})}});
  ASSERT_TRUE(header) << header.error().message;
  ASSERT_EQ(header->tensors.size(), 4u);
  EXPECT_EQ(header->tensors[0].name, "up.weight.qdata");
  EXPECT_EQ(header->tensors[1].name, "up.weight.scale");
  EXPECT_EQ(header->tensors[1].dtype, tensor::DType::kF16);
  EXPECT_EQ(header->tensors[2].name, "norm");
  EXPECT_EQ(header->tensors[3].name, "down.weight.inner.int_data");
  ASSERT_EQ(header->subclasses.size(), 2u);
  EXPECT_EQ(header->subclasses[0].name, "up.weight");
  EXPECT_EQ(header->subclasses[0].json,
            R"({"_type":"Int4Tensor","_data":{"none":null,"dtype":{"_type":"torch.dtype",)"
            R"("_data":"bfloat16"},"shape":[2,4]},"_tensor_data_names":["qdata","scale"]})");
  EXPECT_EQ(header->subclasses[1].name, "down.weight");
  EXPECT_EQ(header->subclasses[1].first, 3u);
  EXPECT_EQ(header->subclasses[1].count, 1u);
  EXPECT_EQ(header->subclasses[1].json,
            R"({"_type":"Outer","_data":{"inner":{"_type":"Inner","_data":{"dtype":{"_type":)"
            R"("torch.dtype","_data":"bfloat16"},"shape":[]},"_tensor_data_names":["int_data"]},)"
            R"("bits":4,"dtype":{"_type":"torch.dtype","_data":"bfloat16"},"shape":[2,4]},)"
            R"("_tensor_data_names":[]})");
  EXPECT_TRUE(header->warnings.empty());
}

TEST(torch_subclass, values_become_json) {
  EXPECT_EQ(json_of("N"), "null");
  EXPECT_EQ(json_of("\x88"), "true");
  EXPECT_EQ(json_of(integer(-7)), "-7");
  EXPECT_EQ(json_of(real(-0.375)), "-0.375");
  EXPECT_EQ(json_of(real(2)), "2.0");
  EXPECT_EQ(json_of(text("a \"b\" \xc3\xa9")), "\"a \\\"b\\\" \xc3\xa9\"");
  EXPECT_EQ(json_of(tuple({1, 32})), "[1,32]");
  EXPECT_EQ(json_of("](" + integer(1) + text("x") + "]e"), R"([1,"x",[]])");
  EXPECT_EQ(json_of(name_of("torch", "Size") + tuple({2, 4}) + "\x85R"), "[2,4]");
  EXPECT_EQ(json_of(dict({{"k", integer(1)}, {"l", dict({})}})), R"({"k":1,"l":{}})");
  EXPECT_EQ(json_of(name_of("torch", "float8_e4m3fn")),
            R"({"_type":"torch.dtype","_data":"float8_e4m3fn"})");
  for (int bits = 1; bits < 8; ++bits) {
    for (const std::string type : {"int", "uint"}) {
      const std::string name = type + std::to_string(bits);
      EXPECT_EQ(json_of(name_of("torch", name)),
                R"({"_type":"torch.dtype","_data":")" + name + "\"}");
    }
  }
  EXPECT_EQ(json_of(ao("_int8_asymm_per_token_quant")),
            R"({"_type":"function","_data":"_int8_asymm_per_token_quant"})");
}

TEST(torch_subclass, members_of_enums_have_their_names) {
  const std::pair<std::string, const char*> rows[] = {
      {enumeration("KernelPreference", text("auto")), "KernelPreference AUTO"},
      {enumeration("MappingType", integer(1)), "MappingType SYMMETRIC"},
      {enumeration("MappingType", integer(2)), "MappingType SYMMETRIC_NO_CLIPPING_ERR"},
      {enumeration("MappingType", integer(3)), "MappingType ASYMMETRIC"},
      {enumeration("ZeroPointDomain", integer(1)), "ZeroPointDomain INT"},
      {enumeration("ZeroPointDomain", integer(2)), "ZeroPointDomain FLOAT"},
      {enumeration("ZeroPointDomain", integer(3)), "ZeroPointDomain NONE"},
      {enumeration("TorchAODType", integer(4)), "TorchAODType INT4"},
      {name_of("__builtin__", "getattr") + ao("MappingType") + text("ASYMMETRIC") + "\x86R",
       "MappingType ASYMMETRIC"},
      {name_of("builtins", "getattr") + ao("Custom") + text("camelCase") + "\x86R",
       "Custom camelCase"},
  };
  for (const auto& [value, wanted] : rows) {
    const std::string_view both = wanted;
    const size_t space = both.find(' ');
    EXPECT_EQ(json_of(value), R"({"_type":")" + std::string(both.substr(0, space)) +
                                  R"(","_data":")" + std::string(both.substr(space + 1)) + "\"}");
  }
}

TEST(torch_subclass, objects_have_their_fields) {
  EXPECT_EQ(json_of(object("PlainLayout")), R"({"_type":"PlainLayout","_data":{}})");
  EXPECT_EQ(json_of(object("PerRow") + dict({{"dim", integer(-1)}}) + "b"),
            R"({"_type":"PerRow","_data":{"dim":-1}})");
  EXPECT_EQ(json_of(object("PerRow") + dict({{"dim", integer(-1)}}) + "N\x86" + "b"),
            R"({"_type":"PerRow","_data":{"dim":-1}})");
  EXPECT_EQ(json_of(object("Kwargs") + dict({{"granularity", object("PerTensor")}}) + "b"),
            R"({"_type":"Kwargs","_data":{"granularity":{"_type":"PerTensor","_data":{}}}})");
  EXPECT_EQ(json_of(object("Float8MMConfig", "\x89\x88\x89\x87")),
            R"({"_type":"Float8MMConfig","_data":{"emulate":false,"use_fast_accum":true,)"
            R"("pad_inner_dim":false}})");
  EXPECT_EQ(json_of(object("ScaledMMConfig", "(\x89\x88\x89\x88t")),
            R"({"_type":"ScaledMMConfig","_data":{"emulate":false,"use_fast_accum":true,)"
            R"("fp8_output":false,"pad_inner_dim":true}})");
}

TEST(torch_subclass, the_state_may_have_a_dtype_a_shape_slots_and_a_mark_of_parameters) {
  const auto header =
      read_items({{"w", subclass(ao("T"), "(" +
                                              dict({{"dtype", name_of("torch", "int4")},
                                                    {"_is_param", "\x88"},
                                                    {"shape", tuple({7})}}) +
                                              dict({{"slot", integer(1)}}) + "t")}});
  ASSERT_TRUE(header) << header.error().message;
  EXPECT_EQ(header->subclasses[0].json,
            R"({"_type":"T","_data":{"dtype":{"_type":"torch.dtype","_data":"int4"},"shape":[7]},)"
            R"("_tensor_data_names":[]})");
}

TEST(torch_subclass, may_be_a_parameter_and_stand_at_two_places) {
  const std::string parameter = name_of("torch._utils", "_rebuild_parameter") + "(" +
                                int4({{"qdata", kTensor}}) + "\x89" + kEmptyOrdered + "tR";
  const auto header = read_items({{"embed", parameter + "q\x63"}, {"head", "h\x63"}});
  ASSERT_TRUE(header) << header.error().message;
  ASSERT_EQ(header->tensors.size(), 2u);
  EXPECT_EQ(header->tensors[0].name, "embed.qdata");
  EXPECT_EQ(header->tensors[1].name, "head.qdata");
  EXPECT_EQ(header->tensors[0].offset, header->tensors[1].offset);
  ASSERT_EQ(header->subclasses.size(), 2u);
  EXPECT_EQ(header->subclasses[0].json, header->subclasses[1].json);
}

TEST(torch_subclass, names_may_be_those_of_protocol_4) {
  const std::string type = text("torchao.quantization") + text("Int4Tensor") + "\x93";
  const auto header = read_items({{"w", subclass(type, dict({{"f", ao("f")}}))}});
  ASSERT_TRUE(header) << header.error().message;
  EXPECT_TRUE(header->subclasses[0].json.starts_with(R"({"_type":"Int4Tensor",)"));
}

std::string never(std::string_view what) {
  return "the pickle " + std::string(what) +
         ", which no plain state dict does; nibble reads tensors and never runs what a file asks "
         "for: save the model as safetensors (save_pretrained does)";
}
std::string with(const std::string& value) { return dict({{"w", value}}); }
std::string with_attribute(const std::string& value) { return with(int4({{"a", value}})); }
// _rebuild_from_type_v2 of what is given.
std::string rebuilt(const std::string& parts) {
  return with(name_of("torch._tensor", "_rebuild_from_type_v2") + "(" + parts + "tR");
}
std::string wrapped(const std::string& rest) {
  return rebuilt(name_of("torch._utils", "_rebuild_wrapper_subclass") + ao("T") + rest);
}

struct Hostile {
  const char* what;
  std::string pickle;
  std::string message;
};

class HostileSubclass : public testing::TestWithParam<Hostile> {};

TEST_P(HostileSubclass, is_refused_with_its_sentence) {
  EXPECT_EQ(error_of_pickle(GetParam().pickle), "m.bin: " + GetParam().message);
}

const char* const kNotTogether =
    "w: a tensor subclass that is not put together as those of torchao are";
const char* const kArguments =
    "w: the arguments of this tensor subclass are not its class, a dtype and a size";
const char* const kOutside = "w: something of torchao that is no tensor and no attribute of one";

const Hostile kHostile[] = {
    // Names.
    {"another_module", with(name_of("torchao", "evil")), never("asks for torchao.evil")},
    {"a_module_that_begins_alike", with(name_of("torchaos.x", "evil")),
     never("asks for torchaos.x.evil")},
    {"no_identifier", with(name_of("torchao.x", "e vil")), never("asks for torchao.x.e vil")},
    {"a_long_name", with(name_of("torchao.x", std::string(201, 'n'))),
     never("asks for torchao.x." + std::string(190, 'n') + "...")},
    {"torch_tensor", rebuilt(kTensor + name_of("torch", "Tensor")), never("asks for torch.Tensor")},
    {"getattr_alone", with(name_of("builtins", "getattr")), never("asks for builtins.getattr")},
    {"getattr_of_a_module",
     with(name_of("__builtin__", "getattr") + text("posix") + text("system") + "\x86R"),
     never("asks for __builtin__.getattr")},
    {"getattr_of_a_computed_name", with(name_of("builtins", "getattr") + ao("T") + "N\x86R"),
     never("asks for builtins.getattr")},
    // Calls.
    {"a_call", with_attribute(ao("f") + ")R"),
     never("calls f of torchao with what is no value of an enum")},
    {"a_call_with_a_list", with_attribute(ao("f") + "]\x85R"),
     never("calls f of torchao with what is no value of an enum")},
    {"the_wrapper_alone", with(name_of("torch._utils", "_rebuild_wrapper_subclass") + ")R"),
     never("calls what is no function")},
    {"an_object_of_another", with(name_of("collections", "OrderedDict") + ")\x81"),
     never("has the opcode 0x81")},
    {"an_object_with_no_tuple", with(ao("T") + "N\x81"),
     "the pickle is damaged at its byte 33: the arguments of a call are no tuple"},
    {"two_states", with(object("T") + "}b}b"), never("sets the state of what has none")},
    {"state_of_a_subclass", with(int4({}) + "}b"), never("sets the state of what has none")},
    // Places.
    {"a_class_outside", with(ao("T")), kOutside},
    {"an_enum_outside", with(enumeration("T", integer(1))), kOutside},
    {"an_object_outside", with(object("T")), kOutside},
    // The subclass.
    {"another_function", rebuilt(name_of("torch._utils", "_rebuild_tensor_v2") + ao("T") + ")}"),
     kNotTogether},
    {"a_function_missing", rebuilt(""), kNotTogether},
    {"too_many_parts", wrapped(")}N"), kNotTogether},
    {"no_class", rebuilt(name_of("torch._utils", "_rebuild_wrapper_subclass") + "N)}"),
     kNotTogether},
    {"no_arguments", wrapped(")}"), kArguments},
    {"arguments_of_another_kind", wrapped("N}"), kArguments},
    {"arguments_of_another_class", wrapped("(" + ao("U") + name_of("torch", "int8") + ")t}"),
     kArguments},
    {"arguments_without_dtype", wrapped("(" + ao("T") + "N)t}"), kArguments},
    {"no_size", with(subclass(ao("T"), "}", "N")),
     "w: its shape is no tuple of at most 16 integers from 0 on"},
    {"a_size_below_0", with(subclass(ao("T"), "}", tuple({-1}))),
     "w: its shape is no tuple of at most 16 integers from 0 on"},
    {"many_dimensions", with(subclass(ao("T"), "}", tuple(std::vector<int32_t>(17, 1)))),
     "w: its shape is no tuple of at most 16 integers from 0 on"},
    {"no_state", with(subclass(ao("T"), "N")), "w: the state of this tensor subclass is no dict"},
    {"no_name", dict({{"", int4({})}}), "a tensor has no name"},
    {"a_name_twice", dict({{"w", int4({})}, {"w", kTensor}}),
     "w: this name stands twice in the dicts"},
    {"a_subclass_twice", dict({{"w", int4({})}, {"w", int4({})}}),
     "w: this name stands twice in the dicts"},
    // Attributes.
    {"an_attribute_twice", with(int4({{"a", "N"}, {"a", "N"}})),
     "w.a: this attribute stands twice"},
    {"a_number_as_key", with(subclass(ao("T"), "}" + integer(1) + "Ns")),
     "w: a key of this dict is no short text"},
    {"an_empty_key", with(int4({{"", "N"}})), "w: a key of this dict is no short text"},
    {"a_long_key", with(int4({{std::string(513, 'k'), "N"}})),
     "w: a key of this dict is no short text"},
    {"a_number_as_key_within", with_attribute("}" + integer(1) + "Ns"),
     "w.a: a key of this dict is no short text"},
    {"a_long_name_within", with(int4({{std::string(512, 'k'), "N"}})),
     "w." + std::string(118, 'k') + "...: a name of more than 512 bytes"},
    {"a_tensor_within", with_attribute(dict({{"b", kTensor}})),
     "w.a.b: a tensor inside of an attribute; nibble reads those that are attributes"},
    {"a_subclass_within", with_attribute("]" + int4({}) + "a"),
     "w.a: a tensor inside of an attribute; nibble reads those that are attributes"},
    {"a_storage", with_attribute(storage("HalfStorage", "0", 4)),
     "w.a: a tensor inside of an attribute; nibble reads those that are attributes"},
    {"a_function_of_torch", with_attribute(name_of("torch._utils", "_rebuild_tensor_v2")),
     "w.a: _rebuild_tensor_v2 as an attribute"},
    {"not_a_number", with_attribute(real(std::numeric_limits<double>::quiet_NaN())),
     "w.a: an attribute that is no finite number"},
    {"broken_text", with_attribute(text("\xff")),
     "w.a: an attribute with a text that has control characters or is not UTF-8"},
    {"text_with_a_zero", with_attribute(text(std::string_view("a\0b", 3))),
     "w.a: an attribute with a text that has control characters or is not UTF-8"},
    {"an_enum_without_such_a_member", with_attribute(enumeration("MappingType", integer(4))),
     "w.a: torchao's MappingType has no member 4 that nibble knows"},
    {"an_enum_from_0", with_attribute(enumeration("MappingType", integer(0))),
     "w.a: torchao's MappingType has no member 0 that nibble knows"},
    {"an_unknown_enum", with_attribute(enumeration("Colour", integer(1))),
     "w.a: torchao's Colour has no member 1 that nibble knows"},
    {"an_object_with_arguments", with_attribute(object("T", integer(1) + "\x85")),
     "w.a: torchao's T made of 1 arguments is not known"},
    {"an_mm_config_of_two", with_attribute(object("Float8MMConfig", "\x88\x88\x86")),
     "w.a: torchao's Float8MMConfig made of 2 arguments is not known"},
    {"a_named_tuple_with_a_state",
     with_attribute(object("Float8MMConfig", "\x88\x88\x88\x87") + "}b"),
     "w.a: torchao's Float8MMConfig made of 3 arguments is not known"},
    {"an_object_with_another_state", with_attribute(object("T") + "]b"),
     "w.a: the state of torchao's T is no dict"},
    // Limits.
    {"a_long_text", with_attribute(text(std::string(16385, 'x'))),
     "w.a: attributes of more than 16384 bytes"},
    {"many_attributes",
     with_attribute("](" +
                    [] {
                      std::string out;
                      for (int i = 0; i < 9000; ++i) out += "\x4b\x01";
                      return out;
                    }() +
                    "e"),
     "w.a: attributes of more than 16384 bytes"},
    {"a_list_inside_itself", with_attribute("]q\1h\1a"),
     "w.a: dicts lie more than 16 deep in each other"},
    {"a_state_inside_itself", with(subclass(ao("T"), "}q\1" + text("s") + "h\1s")),
     "w.s.s.s.s.s.s.s.s.s.s.s.s.s.s.s: dicts lie more than 16 deep in each other"},
    {"an_object_inside_itself", with_attribute(object("T") + "q\1}" + text("o") + "h\1sb"),
     "w.a.o.o.o.o.o.o.o.o.o.o.o.o.o.o: dicts lie more than 16 deep in each other"},
};

INSTANTIATE_TEST_SUITE_P(torch_subclass, HostileSubclass, testing::ValuesIn(kHostile),
                         [](const auto& row) { return std::string(row.param.what); });

// A value that doubles itself, level by level, through what is remembered.
std::string doubling(const std::string& first, int levels) {
  std::string out = "](" + first + "q\1";
  for (char level = 1; level < levels; ++level) {
    out += "](";
    for (int i = 0; i < 8; ++i) out += std::string("h") + level;
    out += std::string("eq") + static_cast<char>(level + 1);
  }
  return out + "e";
}

TEST(torch_subclass, values_that_double_themselves_are_refused_soon) {
  EXPECT_EQ(error_of_pickle(with_attribute(doubling("]", 15))),
            "m.bin: w.a: attributes of more than 16384 bytes");
  // The same parameter in many places: each is short, all are not.
  std::string whole = "}(" + text("0") + int4({{"a", text(std::string(16000, 'x'))}}) + "q\1";
  for (int i = 1; i < 4200; ++i) whole += text(std::to_string(i)) + "h\1";
  EXPECT_EQ(error_of_pickle(whole + "u"),
            "m.bin: the attributes of its tensors take more than the 67108864 bytes that nibble "
            "reads");
  std::string list = "](";
  for (int i = 0; i < 8000; ++i) list += "\x4b\x01";
  whole = "}(" + text("0") + int4({{"a", list + "e"}}) + "q\1";
  for (int i = 1; i < 300; ++i) whole += text(std::to_string(i)) + "h\1";
  EXPECT_EQ(error_of_pickle(whole + "u"),
            "m.bin: the dicts hold more than the 2097152 values that nibble reads");
}

TEST(torch_subclass, an_index_lists_parameters_not_their_tensors) {
  const std::string first = torch_bytes(
      dict({{"a.weight", int4({{"qdata", kTensor}, {"scale", kTensor}})}, {"norm", kTensor}}),
      {{"0", "abcdefgh"}});
  const std::string second =
      torch_bytes(dict({{"b.weight", int4({{"scale", kTensor}})}}), {{"0", "ijklmnop"}});
  const std::string begin = R"({"weight_map": {"a.weight": "pytorch_model-1.bin")";
  TempFolder folder;
  folder.write("config.json", "{}")
      .write("pytorch_model-1.bin", first)
      .write("pytorch_model-2.bin", second)
      .write("pytorch_model.bin.index.json",
             begin + R"(, "norm": "pytorch_model-1.bin", "b.weight": "pytorch_model-2.bin"}})");
  const auto c = Checkpoint::open(folder.path());
  ASSERT_TRUE(c) << c.error().message;
  EXPECT_TRUE(c->warnings().empty());
  EXPECT_EQ(c->tensors().size(), 4u);
  EXPECT_EQ(c->find("b.weight.scale")->file, 1u);
  EXPECT_EQ(c->find("b.weight"), nullptr);
  EXPECT_EQ(c->metadata().size(), 2u);
  EXPECT_EQ(c->metadata().count("a.weight"), 1u);
  const auto view = c->view(*c->find("b.weight.scale"));
  ASSERT_TRUE(view);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(view->data), view->bytes), "ijklmnop");

  folder.write("pytorch_model.bin.index.json", begin + R"(, "norm": "pytorch_model-2.bin"}})");
  EXPECT_EQ(Checkpoint::open(folder.path()).error().message,
            "pytorch_model.bin.index.json: norm: the index says it is in pytorch_model-2.bin, "
            "which does not hold it (pytorch_model-1.bin does); index and shards are not of one "
            "download");
  folder.write("pytorch_model.bin.index.json",
               R"({"weight_map": {"a.weight": "pytorch_model-2.bin", "norm": )"
               R"("pytorch_model-1.bin"}})");
  EXPECT_EQ(Checkpoint::open(folder.path()).error().message,
            "pytorch_model.bin.index.json: a.weight: the index says it is in pytorch_model-2.bin, "
            "which does not hold it (pytorch_model-1.bin does); index and shards are not of one "
            "download");
  folder.write("pytorch_model.bin.index.json",
               begin + R"(, "a.weight.scale": "pytorch_model-1.bin", "norm": )"
                       R"("pytorch_model-2.bin"}})");
  EXPECT_EQ(Checkpoint::open(folder.path()).error().message,
            "pytorch_model.bin.index.json: a.weight.scale: the index says it is in "
            "pytorch_model-1.bin, which does not hold it; index and shards are not of one "
            "download");
  folder.write("pytorch_model.bin.index.json", R"({"weight_map": {"norm": "pytorch_model-1.bin",)"
                                               R"( "b.weight": "pytorch_model-2.bin"}})");
  const auto omitted = Checkpoint::open(folder.path());
  ASSERT_TRUE(omitted) << omitted.error().message;
  ASSERT_EQ(omitted->warnings().size(), 1u);
  EXPECT_EQ(omitted->warnings()[0],
            "pytorch_model.bin.index.json: 1 stored tensors are not in the index, the first is "
            "pytorch_model-1.bin: a.weight");
}

TEST(torch_subclass, a_parameter_in_two_files_is_the_first_or_refused) {
  TempFolder folder;
  folder.write("config.json", "{}")
      .write("pytorch_model-1.bin", torch_bytes(with(int4({{"a", integer(1)}})), {}))
      .write("pytorch_model-2.bin",
             torch_bytes(dict({{"w", int4({{"a", integer(2)}})}, {"v", kTensor}}),
                         {{"0", "abcdefgh"}}))
      .write("pytorch_model.bin.index.json",
             R"({"weight_map": {"w": "pytorch_model-1.bin", "v": "pytorch_model-2.bin"}})");
  const auto c = Checkpoint::open(folder.path());
  ASSERT_TRUE(c) << c.error().message;
  EXPECT_NE(c->metadata().at("w").find("\"a\":1"), std::string::npos);
  ASSERT_EQ(c->warnings().size(), 1u);
  EXPECT_EQ(
      c->warnings()[0],
      R"(pytorch_model-2.bin: __metadata__: w is "{"_type":"Int4Tensor","_data":{"a":2,"dt..." )"
      R"(here and "{"_type":"Int4Tensor","_data":{"a":1,"dt..." in an earlier file, whose )"
      R"(value is used)");

  folder
      .write("pytorch_model-1.bin",
             torch_bytes(with(int4({{"qdata", kTensor}})), {{"0", "abcdefgh"}}))
      .write("pytorch_model-2.bin",
             torch_bytes(dict({{"w", int4({{"qdata", kTensor}})}, {"v", kTensor}}),
                         {{"0", "abcdefgh"}}));
  EXPECT_EQ(Checkpoint::open(folder.path()).error().message,
            "pytorch_model-2.bin: w.qdata: this tensor is also in pytorch_model-1.bin; keep the "
            "file that belongs to the model");
}

}  // namespace
}  // namespace nibble::checkpoint
