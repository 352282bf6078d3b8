#include "cli/completion.h"

#include <fmt/format.h>

#include <memory>

#include "cli/help.h"
#include "cli/terminal.h"
#include "nibble/nibble.h"

namespace nibble::cli {
namespace {

std::vector<const Command*> shown(const std::vector<Command>& commands) {
  std::vector<const Command*> list;
  for (const Command& command : commands) {
    if (!command.hidden) list.push_back(&command);
  }
  return list;
}

std::vector<const Option*> named_options(const Command& command) {
  std::vector<const Option*> list;
  for (const OptionGroup& group : command.groups) {
    for (const Option& option : group.options) {
      if (!option.positional()) list.push_back(&option);
    }
  }
  return list;
}

// "-n" of "-n,--max-tokens"; "" when there is no short name.
std::string short_name(const Option& option) {
  const size_t comma = option.names.find(',');
  return comma == std::string::npos ? "" : option.names.substr(0, comma);
}

// Within single quotes of zsh's _arguments and of fish.
std::string quoted(const std::string& text, const std::string& also) {
  std::string out;
  for (const char c : text) {
    if (c == '\'') {
      out += "'\\''";
    } else {
      if (also.find(c) != std::string::npos) out += '\\';
      out += c;
    }
  }
  return out;
}

}  // namespace

std::string bash_completion(const std::vector<Command>& commands) {
  std::string names, cases, values;
  for (const Command* command : shown(commands)) {
    names += (names.empty() ? "" : " ") + command->name;
    std::string options = "--help";
    for (const Option* option : named_options(*command)) {
      options += " " + option->name();
      if (!option->words.empty()) {
        values += fmt::format("    {} {}) words=\"{}\" ;;\n", command->name, option->name(),
                              fmt::join(option->words, " "));
      }
    }
    cases += fmt::format("    {}) words=\"{}\" ;;\n", command->name, options);
  }
  // A pattern of `case` may not hold a blank outside quotes.
  std::string quoted_values;
  for (size_t begin = 0; begin < values.size();) {
    const size_t end = values.find('\n', begin);
    const std::string line = values.substr(begin, end - begin);
    const size_t close = line.find(')');
    quoted_values += "    \"" + line.substr(4, close - 4) + "\"" + line.substr(close) + "\n";
    begin = end + 1;
  }
  return "# bash completion of nibble\n"
         "_nibble() {\n"
         "  local current=\"${COMP_WORDS[COMP_CWORD]}\" command=\"${COMP_WORDS[1]}\" words=\"\"\n"
         "  COMPREPLY=()\n"
         "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
         "    COMPREPLY=($(compgen -W \"" +
         names +
         " --help --version\" -- \"$current\"))\n"
         "    return\n"
         "  fi\n"
         "  case \"$command ${COMP_WORDS[COMP_CWORD-1]}\" in\n" +
         quoted_values +
         "  esac\n"
         "  if [ -z \"$words\" ] && [[ \"$current\" == -* ]]; then\n"
         "    case \"$command\" in\n" +
         cases +
         "    esac\n"
         "  fi\n"
         "  if [ -n \"$words\" ]; then\n"
         "    COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
         "  else\n"
         "    COMPREPLY=($(compgen -f -- \"$current\"))\n"
         "  fi\n"
         "}\n"
         "complete -o filenames -F _nibble nibble\n";
}

std::string zsh_completion(const std::vector<Command>& commands) {
  std::string list, cases;
  for (const Command* command : shown(commands)) {
    list += fmt::format("    '{}:{}'\n", command->name, quoted(command->summary, ":"));
    cases += fmt::format("    {})\n      _arguments \\\n", command->name);
    for (const Option* option : named_options(*command)) {
      const std::string help = quoted(option->help, "[]:");
      std::string action;
      if (!option->words.empty()) {
        action = fmt::format(":value:({})", fmt::join(option->words, " "));
      } else if (!option->is_switch()) {
        action = ":" + quoted(option->value, "[]:") + ":_files";
      }
      cases += fmt::format("        '{}[{}]{}' \\\n", option->name(), help, action);
    }
    cases += "        '--help[show this command]' '*:file:_files'\n      ;;\n";
  }
  return "#compdef nibble\n"
         "_nibble() {\n"
         "  local -a commands\n"
         "  commands=(\n" +
         list +
         "  )\n"
         "  if (( CURRENT == 2 )); then\n"
         "    _describe command commands\n"
         "    return\n"
         "  fi\n"
         "  local command=$words[2]\n"
         "  shift words\n"
         "  (( CURRENT-- ))\n"
         "  case $command in\n" +
         cases +
         "  esac\n"
         "}\n"
         "_nibble \"$@\"\n";
}

std::string fish_completion(const std::vector<Command>& commands) {
  std::string text = "# fish completion of nibble\n";
  for (const Command* command : shown(commands)) {
    text += fmt::format("complete -c nibble -n __fish_use_subcommand -f -a {} -d '{}'\n",
                        command->name, quoted(command->summary, ""));
  }
  for (const Command* command : shown(commands)) {
    for (const Option* option : named_options(*command)) {
      std::string line = fmt::format("complete -c nibble -n '__fish_seen_subcommand_from {}' -l {}",
                                     command->name, option->name().substr(2));
      const std::string letter = short_name(*option);
      if (!letter.empty()) line += " -s " + letter.substr(1);
      if (!option->words.empty()) {
        line += fmt::format(" -x -a '{}'", fmt::join(option->words, " "));
      } else if (!option->is_switch()) {
        line += " -r";
      }
      text += line + fmt::format(" -d '{}'\n", quoted(option->help, ""));
    }
  }
  return text;
}

namespace {

// Text for troff: no line may begin with a dot or a quote, and dashes are typed as they are.
std::string roff(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else {
      out += c;
    }
  }
  return out.empty() || (out[0] != '.' && out[0] != '\'') ? out : "\\&" + out;
}

}  // namespace

std::string manual_page(const std::vector<Command>& commands, const std::string& version) {
  std::string text = fmt::format(
      ".TH NIBBLE 1 \"\" \"nibble {}\"\n"
      ".SH NAME\nnibble \\- open quantized checkpoints as they were downloaded, and run them\n"
      ".SH SYNOPSIS\n.B nibble\n.I COMMAND MODEL\n[OPTIONS]\n.SH COMMANDS\n",
      version);
  for (const Command* command : shown(commands)) {
    text += fmt::format(".SS {}\n{}\n", command->name, roff(command->about));
    for (const std::string& example : command->examples) {
      text += fmt::format(".PP\n.RS 4\n{}\n.RE\n", roff(example));
    }
    for (const OptionGroup& group : command->groups) {
      for (const Option& option : group.options) {
        const std::string shown_default = default_of(option);
        text += fmt::format(
            ".TP\n.B {} {}\n{}{}\n", roff(option.names), roff(option.value), roff(option.help),
            shown_default.empty() ? "" : fmt::format(" (default: {})", roff(shown_default)));
      }
    }
  }
  return text +
         ".SH EXIT STATUS\n0 done, 1 refused or failed, 2 wrong usage, 130 interrupted.\n"
         ".SH ENVIRONMENT\n.TP\n.B NIBBLE_MODELS\nwhere packaged models lie (default: "
         "~/.cache/nibble/models)\n.TP\n.B NO_COLOR\nno colors, when it is set\n";
}

Command completion_command() {
  const auto kind = std::make_shared<std::string>();
  Command command{"completion", "print a shell completion or the manual page"};
  command.about = "Prints the completion for a shell, or the manual page.";
  command.examples = {"nibble completion bash"};
  Option which{"KIND",     "", "bash, zsh, fish or man",
               kind.get(), "", {"bash", "zsh", "fish", "man"}};
  which.required = true;
  command.groups = {{"arguments", {which}}};
  command.hidden = true;
  command.run = [kind]() -> Result<int> {
    const std::vector<Command> commands = all_commands();
    if (*kind == "bash") return finish(bash_completion(commands));
    if (*kind == "zsh") return finish(zsh_completion(commands));
    if (*kind == "fish") return finish(fish_completion(commands));
    return finish(manual_page(commands, version().version));
  };
  return command;
}

}  // namespace nibble::cli
