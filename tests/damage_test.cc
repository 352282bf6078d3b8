// Every quantized folder of tests/golden, damaged in one place: a scale that is no number, a scale
// that is missing, a tensor that nobody knows, codes of another type. Each is refused by load and
// found by verify, with the layer and the tensor named.
//
// Left out: GGUF files, whose scales lie inside the blocks of the codes (schemes/gguf_test.cc
// damages those), and the folders that torch.save wrote, whose tensors have the names and types of
// folders that are here (their container is damaged in checkpoint/torch_file_test.cc).
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "nibble/nibble.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

const fs::path kGolden = fs::path(NIBBLE_SOURCE_DIR) / "tests/golden";

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

bool is_weights(const fs::path& file) { return file.extension() == ".safetensors"; }

std::vector<std::string> damaged_cases() {
  std::vector<std::string> out;
  for (const auto& scheme : fs::directory_iterator(kGolden)) {
    if (!scheme.is_directory()) continue;
    for (const auto& folder : fs::directory_iterator(scheme)) {
      if (!fs::exists(folder.path() / "expected/logits.safetensors")) continue;
      const auto files = fs::directory_iterator(folder);
      if (std::none_of(begin(files), end(files), [](const auto& f) { return is_weights(f); })) {
        continue;
      }
      out.push_back(fs::relative(folder.path(), kGolden).string());
    }
  }
  std::sort(out.begin(), out.end());
  return out;
}

struct Tensor {
  std::string name, dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};

// The header of a safetensors file, and where its tensors' bytes begin.
std::pair<nlohmann::json, size_t> read_header(const std::string& file) {
  uint64_t head = 0;
  std::memcpy(&head, file.data(), 8);
  return {nlohmann::json::parse(file.substr(8, head)), 8 + head};
}

// The tensors of all safetensors files of a folder.
std::vector<Tensor> read_tensors(const fs::path& folder) {
  std::vector<Tensor> out;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (!is_weights(entry)) continue;
    const std::string file = read_file(entry);
    const auto [header, data] = read_header(file);
    for (const auto& [name, what] : header.items()) {
      if (name == "__metadata__") continue;
      const size_t begin = what["data_offsets"][0], end = what["data_offsets"][1];
      out.push_back({name, what["dtype"], what["shape"], file.substr(data + begin, end - begin)});
    }
  }
  return out;
}

// What the headers say beside the tensors: TorchAO describes its own there.
nlohmann::json read_metadata(const fs::path& folder) {
  nlohmann::json out = {{"format", "pt"}};
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (!is_weights(entry)) continue;
    const auto [header, data] = read_header(read_file(entry));
    if (header.contains("__metadata__")) out.update(header["__metadata__"]);
  }
  return out;
}

// A copy of a folder that lives as long as this, with these tensors in one file.
class DamagedFolder {
 public:
  DamagedFolder(const fs::path& folder, const std::vector<Tensor>& tensors) {
    std::string name = (fs::temp_directory_path() / "nibble-damage-XXXXXX").string();
    path_ = mkdtemp(name.data());
    for (const auto& entry : fs::directory_iterator(folder)) {
      const bool index = entry.path().string().ends_with(".index.json");
      if (entry.is_regular_file() && !index && !is_weights(entry)) {
        fs::copy(entry, path_ / entry.path().filename());
      }
    }
    nlohmann::json header = {{"__metadata__", read_metadata(folder)}};
    size_t at = 0;
    for (const Tensor& t : tensors) {
      header[t.name] = {
          {"dtype", t.dtype}, {"shape", t.shape}, {"data_offsets", {at, at + t.bytes.size()}}};
      at += t.bytes.size();
    }
    const std::string text = header.dump();
    const uint64_t head = text.size();
    std::ofstream out(path_ / "model.safetensors", std::ios::binary);
    out.write(reinterpret_cast<const char*>(&head), 8);
    out << text;
    for (const Tensor& t : tensors) out << t.bytes;
  }
  ~DamagedFolder() { fs::remove_all(path_); }
  DamagedFolder(const DamagedFolder&) = delete;
  DamagedFolder& operator=(const DamagedFolder&) = delete;

  std::string path() const { return path_.string(); }

 private:
  fs::path path_;
};

Options exact() {
  Options options;
  options.precision = "exact";
  options.threads = 1;
  return options;
}

// Elements of a scale that are no number; none where every code is one.
std::vector<std::string> no_numbers(const std::string& dtype, const std::string& folder) {
  const auto bytes = [](auto value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof value);
  };
  if (dtype == "F32") return {bytes(0x7f800000u), bytes(0x7fc00000u)};
  if (dtype == "F16") return {bytes(uint16_t{0x7c00}), bytes(uint16_t{0x7e00})};
  if (dtype == "BF16") return {bytes(uint16_t{0x7f80}), bytes(uint16_t{0x7fc0})};
  if (dtype == "F8_E4M3") return {bytes(uint8_t{0x7f})};
  if (folder == "quark/mx") return {bytes(uint8_t{0x80})};  // exponents without a bias
  if (folder.starts_with("bitsandbytes/")) return {};       // codes of scales
  if (dtype == "F8_E8M0" || dtype == "U8") return {bytes(uint8_t{0xff})};
  return {};
}

class Damage : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    folder_ = kGolden / GetParam();
    tensors_ = read_tensors(folder_);
    const auto plan = inspect(folder_.string(), exact());
    ASSERT_TRUE(plan) << plan.error().message;
    find_cache_scales(*plan);
    const fs::path weights = folder_ / "expected/weights_crc32.json";
    if (!fs::exists(weights)) return;
    const auto expected = nlohmann::json::parse(read_file(weights));
    // The first module of each kind that is stored as codes: of the same tensors and types.
    std::set<std::string> kinds;
    for (const auto& [name, what] : expected.items()) {
      Module module = {name, scales_of(name, *plan)};
      std::string kind;
      for (const Tensor& t : tensors_) {
        if (t.name.starts_with(name + ".")) kind += t.name.substr(name.size()) + " " + t.dtype;
      }
      if (!module.scales.empty() && kinds.insert(kind).second) modules_.push_back(module);
    }
  }

  struct Module {
    std::string name;
    std::vector<size_t> scales;  // its tensors that are scales and used
    std::string suffix_of(const Tensor& t) const { return t.name.substr(name.size() + 1); }
  };

  // A refusal that names the layer and the tensor.
  static testing::AssertionResult names(const std::string& text, const std::string& module,
                                        const std::string& suffix) {
    if (text.find(module) != text.npos && text.find(suffix) != text.npos) {
      return testing::AssertionSuccess();
    }
    return testing::AssertionFailure()
           << "\"" << text << "\" does not name " << module << " and " << suffix;
  }

  static void expect_refused(const DamagedFolder& folder, const std::string& module,
                             const std::string& suffix) {
    const auto model = Model::load(folder.path(), exact());
    EXPECT_TRUE(names(model ? "it loads" : model.error().message, module, suffix));
    const auto report = verify(folder.path(), exact());
    std::string findings = "nothing found";
    if (!report) findings = report.error().message;
    if (report && !report->findings.empty()) findings.clear();
    for (size_t i = 0; report && i < report->findings.size(); ++i) {
      findings += report->findings[i].where + ": " + report->findings[i].what + "\n";
    }
    EXPECT_TRUE(names(findings, module, suffix));
  }

  std::vector<size_t> scales_of(const std::string& module, const Plan& plan) const {
    std::vector<size_t> out;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const std::string& name = tensors_[i].name;
      if (!name.starts_with(module + ".")) continue;
      const std::string suffix = name.substr(module.size() + 1);
      if (is_unused(name, plan) || is_of_cache(name)) continue;
      const bool scale = suffix.find("scale") != suffix.npos ||
                         suffix.find("absmax") != suffix.npos || suffix == "SCB";
      if (scale) out.push_back(i);
    }
    return out;
  }

  static bool is_unused(const std::string& name, const Plan& plan) {
    return std::any_of(plan.unused.begin(), plan.unused.end(),
                       [&](const UnusedTensor& u) { return u.name == name; });
  }

  static bool is_of_cache(const std::string& name) {
    return name.ends_with("k_scale") || name.ends_with("v_scale") || name.ends_with("output_scale");
  }

  void find_cache_scales(const Plan& plan) {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const std::string& name = tensors_[i].name;
      if (is_of_cache(name) && !is_unused(name, plan)) cache_scales_.push_back(i);
    }
  }

  fs::path folder_;
  std::vector<Tensor> tensors_;
  std::vector<size_t> cache_scales_;
  std::vector<Module> modules_;
};

TEST_P(Damage, a_scale_that_is_no_number_is_refused) {
  if (modules_.empty()) GTEST_SKIP() << "no layer has a scale";
  for (const Module& module : modules_) {
    for (const size_t i : module.scales) {
      for (const std::string& code : no_numbers(tensors_[i].dtype, GetParam())) {
        SCOPED_TRACE(tensors_[i].name + " " + tensors_[i].dtype);
        std::vector<Tensor> damaged = tensors_;
        damaged[i].bytes.replace(0, code.size(), code);
        expect_refused(DamagedFolder(folder_, damaged), module.name, module.suffix_of(tensors_[i]));
      }
    }
  }
}

TEST_P(Damage, a_scale_that_is_missing_is_refused) {
  if (modules_.empty()) GTEST_SKIP() << "no layer has a scale";
  for (const Module& module : modules_) {
    for (const size_t i : module.scales) {
      const std::string suffix = module.suffix_of(tensors_[i]);
      SCOPED_TRACE(tensors_[i].name);
      // Tools fold it into the norm before where there is one: its absence says so.
      if (suffix == "pre_quant_scale") continue;
      std::vector<Tensor> damaged = tensors_;
      damaged.erase(damaged.begin() + static_cast<ptrdiff_t>(i));
      expect_refused(DamagedFolder(folder_, damaged), module.name, suffix);
    }
  }
}

TEST_P(Damage, a_scale_of_the_cache_that_is_no_number_or_missing_is_refused) {
  if (cache_scales_.empty()) GTEST_SKIP() << "no scale of the cache is used";
  for (const size_t i : cache_scales_) {
    const std::string& name = tensors_[i].name;
    SCOPED_TRACE(name);
    const std::string layer = name.substr(0, name.find(".self_attn"));
    const std::string last = name.substr(name.rfind('.') + 1);
    for (const std::string& code : no_numbers(tensors_[i].dtype, GetParam())) {
      std::vector<Tensor> damaged = tensors_;
      damaged[i].bytes.replace(0, code.size(), code);
      expect_refused(DamagedFolder(folder_, damaged), layer, last);
    }
    std::vector<Tensor> damaged = tensors_;
    damaged.erase(damaged.begin() + static_cast<ptrdiff_t>(i));
    expect_refused(DamagedFolder(folder_, damaged), layer, last);
  }
}

TEST_P(Damage, a_tensor_that_nobody_knows_is_refused) {
  const std::string module =
      modules_.empty() ? "model.layers.0.mlp.up_proj" : modules_.front().name;
  for (const std::string& name : {module, std::string("model.layers.0.mystery")}) {
    std::vector<Tensor> damaged = tensors_;
    damaged.push_back({name + ".weight_mystery", "F32", {2}, std::string(8, '\0')});
    expect_refused(DamagedFolder(folder_, damaged), name, "weight_mystery");
  }
}

TEST_P(Damage, codes_of_another_type_are_refused) {
  if (modules_.empty()) GTEST_SKIP() << "no layer has codes";
  if (GetParam().starts_with("qoq/")) GTEST_SKIP() << "two codes a byte, of s8 as of u8";
  if (GetParam() == "hqq/b3_g32") GTEST_SKIP() << "view_as_float: the same bytes are called floats";
  static const std::vector<std::string> kCodes = {"weight",        "qweight",     "weight_packed",
                                                  "W_q",           "compressed",  "weight_blocks",
                                                  "_weight_qdata", "weight:qdata"};
  for (const Module& module : modules_) {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const Tensor& t = tensors_[i];
      if (!t.name.starts_with(module.name + ".")) continue;
      const std::string suffix = module.suffix_of(t);
      if (std::find(kCodes.begin(), kCodes.end(), suffix) == kCodes.end()) continue;
      const std::string other = t.dtype == "I32"                        ? "F32"
                                : t.dtype == "U8"                       ? "I8"
                                : t.dtype == "F16" || t.dtype == "BF16" ? "I16"
                                : t.dtype == "F32"                      ? "I32"
                                                                        : "U8";
      SCOPED_TRACE(t.name + " " + t.dtype + " as " + other);
      std::vector<Tensor> damaged = tensors_;
      damaged[i].dtype = other;
      expect_refused(DamagedFolder(folder_, damaged), module.name, suffix);
    }
  }
}

std::string test_name(const testing::TestParamInfo<std::string>& param) {
  std::string name = param.param;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(folders, Damage, testing::ValuesIn(damaged_cases()), test_name);

}  // namespace
}  // namespace nibble
