#include "cli/help.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace nibble::cli {
namespace {

constexpr size_t kWidth = 96;       // of a line
constexpr size_t kHelpColumn = 36;  // where the explanation of an option begins

// `text` cut at blanks into lines of at most `width`.
std::vector<std::string> wrap(std::string_view text, size_t width) {
  std::vector<std::string> lines(1);
  while (!text.empty()) {
    const size_t blank = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, blank);
    text.remove_prefix(std::min(blank + 1, text.size()));
    if (!lines.back().empty() && lines.back().size() + 1 + word.size() > width)
      lines.emplace_back();
    if (!lines.back().empty()) lines.back() += ' ';
    lines.back() += word;
  }
  return lines;
}

struct ShowDefault {
  std::string operator()(Switch) const { return ""; }
  std::string operator()(const std::string* at) const { return *at; }
  std::string operator()(const std::optional<std::string>*) const { return ""; }
  std::string operator()(const std::vector<int64_t>* at) const {
    return fmt::format("{}", fmt::join(*at, ","));
  }
  std::string operator()(const std::vector<std::string>*) const { return ""; }
  std::string operator()(const std::vector<std::pair<std::string, std::string>>*) const {
    return "";
  }
  template <class Number>
  std::string operator()(const Number* at) const {
    return fmt::format("{}", *at);
  }
};

// "-n, --max-tokens N"
std::string spelled(const Option& option) {
  std::string names = option.names;
  const size_t comma = names.find(',');
  if (comma != std::string::npos) names.insert(comma + 1, " ");
  if (comma == std::string::npos && !option.positional()) names = "    " + names;
  return option.value.empty() ? names : names + " " + option.value;
}

std::string option_lines(const Option& option) {
  const std::string shown_default = default_of(option);
  std::string help = option.help;
  if (!shown_default.empty()) help += fmt::format(" (default: {})", shown_default);
  const std::vector<std::string> lines = wrap(help, kWidth - kHelpColumn);
  std::string text = fmt::format("  {:<{}}", spelled(option), kHelpColumn - 2);
  size_t first = 0;
  if (text.size() > kHelpColumn) {
    text += "\n";
  } else {
    text += lines[0] + "\n";
    first = 1;
  }
  for (size_t i = first; i < lines.size(); ++i) {
    text += fmt::format("{:{}}{}\n", "", kHelpColumn, lines[i]);
  }
  return text;
}

}  // namespace

std::string default_of(const Option& option) {
  if (option.positional() || !option.shown_default.empty()) return option.shown_default;
  return std::visit(ShowDefault{}, option.target);
}

std::string program_help(const std::vector<Command>& commands) {
  std::string text =
      "nibble opens a quantized checkpoint as it was downloaded, says what every layer holds and\n"
      "which kernel runs it, and runs it.\n\n"
      "usage: nibble COMMAND MODEL [OPTIONS]\n"
      "MODEL is a folder as downloaded from a hub, a .gguf file, or the name of a packaged "
      "model.\n\n";
  for (const Command& command : commands) {
    if (command.hidden) continue;
    text += fmt::format("  {:<9} {}\n            {}\n", command.name, command.summary,
                        command.examples.front());
  }
  text +=
      "\n`nibble COMMAND --help` lists a command's options and their defaults. Results go to "
      "stdout,\n"
      "everything else to stderr; --json, --quiet and --verbose work everywhere.\n"
      "exit codes: 0 done, 1 refused or failed, 2 wrong usage, 130 interrupted\n"
      "`nibble --version` prints version, compiler, and the ISAs and devices compiled in and "
      "found.\n";
  return text;
}

std::string command_help(const Command& command) {
  std::string usage = "usage: nibble " + command.name;
  for (const OptionGroup& group : command.groups) {
    for (const Option& option : group.options) {
      if (!option.positional()) continue;
      usage += option.required ? " " + option.names : " [" + option.names + "]";
    }
  }
  std::string text = usage + " [OPTIONS]\n\n";
  for (const std::string& line : wrap(command.about, kWidth)) text += line + "\n";
  text += "\nexamples:\n";
  for (const std::string& example : command.examples) text += "  " + example + "\n";
  for (const OptionGroup& group : command.groups) {
    text += "\n" + group.title + ":\n";
    for (const Option& option : group.options) text += option_lines(option);
  }
  return text;
}

}  // namespace nibble::cli
