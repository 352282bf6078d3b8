// nibble tokenize: text to ids.
#include <fmt/format.h>

#include <memory>
#include <optional>

#include "cli/command.h"
#include "cli/input.h"
#include "cli/options.h"
#include "cli/report_json.h"
#include "cli/table.h"
#include "cli/terminal.h"

namespace nibble::cli {
namespace {

struct Arguments {
  Voice voice;
  Options options;
  std::string model;
  std::optional<std::string> text;
  std::string messages;
  std::string tools;
};

std::string tokens_text(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  Table table({{"id", Align::kRight}, {"piece"}});
  for (const int32_t id : ids) {
    table.add({fmt::format("{}", id), printable(tokenizer.piece(id))});
  }
  return fmt::format("{}\n", fmt::join(ids, ",")) + table.text();
}

Result<int> tokenize_messages(const Arguments& arguments, const Tokenizer& tokenizer) {
  NIBBLE_ASSIGN(const std::string text, read_text_file(arguments.messages));
  NIBBLE_ASSIGN(MessagesFile file, split_messages_file(text, arguments.messages));
  if (!arguments.tools.empty()) {
    NIBBLE_ASSIGN(file.tools, read_text_file(arguments.tools));
  }
  NIBBLE_ASSIGN(const std::string rendered, tokenizer.render_chat(file.messages, file.tools));
  NIBBLE_ASSIGN(const std::vector<int32_t> ids, tokenizer.encode_rendered(rendered));
  if (arguments.voice.json) return finish(tokens_json(ids));
  return finish(rendered + "\n" + tokens_text(tokenizer, ids));
}

Result<int> tokenize_text(const Arguments& arguments, const Tokenizer& tokenizer) {
  std::string text;
  if (!arguments.text || *arguments.text == "-") {
    NIBBLE_ASSIGN(text, read_stdin());
  } else {
    text = *arguments.text;
  }
  NIBBLE_ASSIGN(const std::vector<int32_t> ids, tokenizer.encode(text));
  return finish(arguments.voice.json ? tokens_json(ids) : tokens_text(tokenizer, ids));
}

Result<int> tokenize(const Arguments& arguments) {
  set_voice(arguments.voice);
  if (!arguments.messages.empty() && arguments.text) {
    return fail(ErrorCode::kUsage, "tokenize takes TEXT or --messages, not both.");
  }
  if (arguments.messages.empty() && !arguments.text && stdin_is_terminal()) {
    return fail(ErrorCode::kUsage, "tokenize needs TEXT, a text on stdin, or --messages FILE.");
  }
  NIBBLE_ASSIGN(const Tokenizer tokenizer,
                Tokenizer::load(resolve_model(arguments.model), arguments.options));
  return arguments.messages.empty() ? tokenize_text(arguments, tokenizer)
                                    : tokenize_messages(arguments, tokenizer);
}

}  // namespace

Command tokenize_command() {
  const auto arguments = std::make_shared<Arguments>();
  Command command{"tokenize", "a text's token ids and pieces"};
  command.about =
      "Prints the token ids of a text (special tokens included, as the tokenizer adds them) on the "
      "first line, then each id with its piece; --json prints a JSON list of ids. A text from "
      "stdin "
      "is taken byte for byte. With --messages the chat template is rendered with its generation "
      "prompt; that text is printed, then its ids.";
  command.examples = {
      "nibble tokenize smollm2 \"Hello, world\"",
      "nibble tokenize smollm2 --messages conversation.json",
      "nibble tokenize smollm2 --json - < text.txt",
  };
  Option tools{"--tools", "FILE", "with --messages: a JSON list of tools", &arguments->tools};
  tools.idle = [arguments] {
    return arguments->messages.empty() ? "it belongs to --messages, which is not given" : "";
  };
  command.groups = {
      {"arguments",
       {model_argument(arguments->model),
        {"TEXT", "", "the text; - reads stdin, as a pipe does without it", &arguments->text},
        {"--messages", "FILE",
         "a JSON list of {role, content}, or {\"messages\": [...], \"tools\": [...]}",
         &arguments->messages},
        tools}},
      voice_options(arguments->voice)};
  command.run = [arguments] { return tokenize(*arguments); };
  return command;
}

}  // namespace nibble::cli
