#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "api/model.h"
#include "api/tokenizer.h"
#include "api/verify.h"
#include "base/sha256.h"
#include "checkpoint/file.h"
#include "kernels/sample/sample.h"

namespace nibble::api {
namespace {

namespace fs = std::filesystem;
using checkpoint::Checkpoint;

bool is_sha256(std::string_view text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == text.npos;
}

fs::path folder_of(const Checkpoint& checkpoint) {
  const fs::path path = checkpoint.path();
  std::error_code ignored;
  return fs::is_directory(path, ignored) ? path : path.parent_path();
}

// What the download says of a file, or "".
std::string expected_sha256(const fs::path& folder, const std::string& file) {
  std::error_code error;
  // A hub's cache keeps large files under their digest and links to them.
  if (const fs::path target = fs::read_symlink(folder / file, error); !error) {
    if (std::string name = target.filename().string(); is_sha256(name)) return name;
  }
  // A download into a folder leaves three lines for each file: commit, etag, time. The etag of a
  // large file is its digest.
  const std::string name = file + ".metadata";
  const fs::path metadata = folder / ".cache" / "huggingface" / "download" / name;
  constexpr uint64_t kMost = 1024;
  auto opened = checkpoint::File::open(metadata.string(), name, /*map=*/false);
  if (!opened || opened->size() > kMost) return {};
  std::string text(opened->size(), '\0');
  if (!opened->read(0, reinterpret_cast<std::byte*>(text.data()), text.size())) return {};
  const size_t begin = text.find('\n') + 1;
  std::string etag = text.substr(begin, std::min(text.find('\n', begin), text.size()) - begin);
  return is_sha256(etag) ? etag : std::string();
}

void verify_token_ids(const base::Json& config, int64_t vocab, VerifyReport& report) {
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    const base::Json* found = config.find_set(key);
    if (found == nullptr) continue;
    const base::JsonArray one = {*found};
    for (const base::Json& id : found->is_array() ? found->as_array() : one) {
      if (id.is_int() && id.as_int() < vocab) continue;  // below 0: some tools' "none"
      report.findings.push_back(
          {"generation_config.json",
           fmt::format("{}: expected a token id below {}, found {}", key, vocab, id.describe())});
    }
  }
}

void verify_sampling(const base::Json& config, VerifyReport& report) {
  kernels::SampleSettings sample;
  float top_k = 0;
  const std::pair<const char*, float*> reals[] = {{"temperature", &sample.temperature},
                                                  {"top_k", &top_k},
                                                  {"top_p", &sample.top_p},
                                                  {"min_p", &sample.min_p},
                                                  {"repetition_penalty", &sample.repeat_penalty}};
  for (const auto& [key, at] : reals) {
    const base::Json* found = config.find_set(key);
    if (found == nullptr) continue;
    if (!found->is_number()) {
      report.findings.push_back(
          {"generation_config.json",
           fmt::format("{}: expected a number, found {}", key, found->describe())});
      continue;
    }
    *at = static_cast<float>(found->as_double());
  }
  sample.top_k = api::top_k_said(top_k);
  if (auto ok = kernels::check(sample); !ok) {
    report.findings.push_back({"generation_config.json", ok.error().message});
  }
}

}  // namespace

void verify_documents(const Checkpoint& checkpoint, const load::LoadPlan& plan,
                      VerifyReport& report) {
  auto tokenizer = load_tokenizer(checkpoint);
  if (!tokenizer) {
    if (tokenizer.error().code == ErrorCode::kNotFound) {
      report.notes.push_back(tokenizer.error().message);
    } else {
      report.findings.push_back({checkpoint.path(), tokenizer.error().message});
    }
  } else {
    const Tokenizer::Impl& impl = **tokenizer;
    if (!impl.chat && !impl.chat_missing) {
      report.findings.push_back({checkpoint.path(), impl.chat_error});
    }
    if (impl.tokenizer.vocab_size() > plan.spec.vocab) {
      report.notes.push_back(
          fmt::format("the tokenizer has {} tokens and the model {}: those above have no "
                      "embedding",
                      impl.tokenizer.vocab_size(), plan.spec.vocab));
    }
  }
  if (const base::Json* config = checkpoint.generation_config(); config != nullptr) {
    verify_token_ids(*config, plan.spec.vocab, report);
    verify_sampling(*config, report);
  }
}

uint64_t checksum_bytes(const Checkpoint& checkpoint) {
  uint64_t total = 0;
  for (uint32_t i = 0; i < checkpoint.file_count(); ++i) {
    if (!expected_sha256(folder_of(checkpoint), checkpoint.file_name(i)).empty()) {
      total += checkpoint.file_bytes(i);
    }
  }
  return total;
}

Result<void> verify_checksums(const Checkpoint& checkpoint, VerifyReport& report,
                              const std::function<bool(uint64_t bytes)>& progress) {
  const fs::path folder = folder_of(checkpoint);
  int checked = 0;
  for (uint32_t i = 0; i < checkpoint.file_count(); ++i) {
    const std::string& name = checkpoint.file_name(i);
    const std::string expected = expected_sha256(folder, name);
    if (expected.empty()) continue;
    NIBBLE_ASSIGN(const checkpoint::File file,
                  checkpoint::File::open((folder / name).string(), name, /*map=*/false));
    base::Sha256 hash;
    std::vector<std::byte> piece(size_t{1} << 20);
    for (uint64_t at = 0; at < file.size(); at += piece.size()) {
      const uint64_t some = std::min<uint64_t>(piece.size(), file.size() - at);
      NIBBLE_TRY(file.read(at, piece.data(), some));
      hash.update({piece.data(), some});
      if (!progress(some)) return fail(ErrorCode::kCancelled, "verifying was cancelled");
    }
    ++checked;
    if (const std::string found = hash.hex(); found != expected) {
      report.findings.push_back(
          {name, fmt::format("its SHA-256 is {}, and {} when it was downloaded; download it again",
                             found, expected)});
    }
  }
  if (checked > 0) report.notes.push_back(fmt::format("SHA-256 of {} files compared", checked));
  return {};
}

}  // namespace nibble::api
