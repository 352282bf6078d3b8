#include "cli/input.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <memory>

#include "cli/table.h"

namespace nibble::cli {

Result<std::string> read_stdin() {
  std::string text;
  std::array<char, 1 << 16> piece;
  while (true) {
    const ssize_t got = ::read(STDIN_FILENO, piece.data(), piece.size());
    if (got == 0) return text;
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return fail(ErrorCode::kIo, fmt::format("stdin could not be read: {}", strerror(errno)));
    }
    text.append(piece.data(), static_cast<size_t>(got));
  }
}

Result<std::string> read_text_file(const std::string& path) {
  if (path == "-") return read_stdin();
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  const std::unique_ptr<std::FILE, Close> file(std::fopen(path.c_str(), "rb"));
  if (file == nullptr) {
    return fail(errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
                fmt::format("{}: could not be opened: {}", path, strerror(errno)));
  }
  std::string text;
  std::array<char, 1 << 16> piece;
  while (const size_t got = std::fread(piece.data(), 1, piece.size(), file.get())) {
    text.append(piece.data(), got);
  }
  if (std::ferror(file.get()) != 0) {
    return fail(ErrorCode::kIo, fmt::format("{}: could not be read: {}", path, strerror(errno)));
  }
  return text;
}

Result<void> check_utf8(std::string_view text, std::string_view what) {
  for (size_t at = 0; at < text.size();) {
    const size_t length = character_length(text.substr(at));
    if (length == 0) {
      return fail(ErrorCode::kCorrupt, fmt::format("{} is not UTF-8 at byte {} (0x{:02x}).", what,
                                                   at, static_cast<unsigned char>(text[at])));
    }
    at += length;
  }
  return {};
}

Result<void> check_out(std::string_view out, bool json) {
  if (out != "-" || !json) return {};
  return fail(ErrorCode::kUsage, "--out - and --json both write to stdout: leave out one of them.");
}

Result<std::vector<int32_t>> parse_tokens(std::string_view text, std::string_view option) {
  std::vector<int32_t> tokens;
  constexpr std::string_view kBlanks = " \t\n";
  size_t at = std::min(text.find_first_not_of(kBlanks), text.size());
  while (true) {
    const size_t end = std::min(text.find_first_of(", \t\n", at), text.size());
    const std::string_view word = text.substr(at, end - at);
    int32_t id = 0;
    const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc() || stop != word.data() + word.size() || id < 0) {
      return fail(ErrorCode::kUsage,
                  fmt::format("{}: expected token ids like 1,2,3, found \"{}\".", option, word));
    }
    tokens.push_back(id);
    // A comma, blanks, or both part two ids; behind a comma one must follow.
    at = std::min(text.find_first_not_of(kBlanks, end), text.size());
    if (at == text.size()) break;
    if (text[at] == ',') at = std::min(text.find_first_not_of(kBlanks, at + 1), text.size());
  }
  return tokens;
}

Result<void> check_tokens(const std::vector<int32_t>& tokens, int64_t vocab_size) {
  for (const int32_t id : tokens) {
    if (id >= vocab_size) {
      return fail(ErrorCode::kUsage,
                  fmt::format("--tokens: there is no token {}; the model has {} tokens, 0 to {}.",
                              id, vocab_size, vocab_size - 1));
    }
  }
  return {};
}

}  // namespace nibble::cli
