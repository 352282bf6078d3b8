// nibble chat: a conversation, turn by turn.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string_view>

#include "cli/command.h"
#include "cli/input.h"
#include "cli/interrupt.h"
#include "cli/line_editor.h"
#include "cli/open.h"
#include "cli/options.h"
#include "cli/output_file.h"
#include "cli/progress.h"
#include "cli/report_json.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "cli/timings.h"

namespace nibble::cli {
namespace {

struct Arguments {
  Voice voice;
  Options options;
  GenerateOptions generate;
  std::string model;
  std::string system;
};

constexpr const char* kHelp =
    "/help          this list\n"
    "/reset         forget the conversation, keep the system message\n"
    "/system TEXT   set the system message and begin anew; without TEXT, show it\n"
    "/save FILE     write the conversation as a JSON list of {role, content}\n"
    "/quit          end (Ctrl-D too); Ctrl-C stops an answer\n"
    "A line that ends in \\ goes on in the next one.";

class Chat {
 public:
  Chat(const Arguments& arguments, const Model& model, const Tokenizer& tokenizer)
      : arguments_(arguments),
        model_(model),
        tokenizer_(tokenizer),
        session_(model),
        system_(arguments.system) {
    reset();
  }

  Result<void> talk();

 private:
  void reset() {
    messages_.clear();
    if (!system_.empty()) messages_.push_back({"system", system_});
  }
  bool command(const std::string& line);  // false: /quit
  void save(const std::string& path) const;
  Result<void> answer(const std::string& text);
  Result<std::vector<int32_t>> new_tokens();

  const Arguments& arguments_;
  const Model& model_;
  const Tokenizer& tokenizer_;
  Session session_;
  std::string system_;
  std::vector<ChatMessage> messages_;
  Output output_;
};

// The conversation's ids without those the session already holds.
Result<std::vector<int32_t>> Chat::new_tokens() {
  NIBBLE_ASSIGN(const std::string rendered, tokenizer_.render_chat(messages_json(messages_)));
  NIBBLE_ASSIGN(const std::vector<int32_t> all, tokenizer_.encode_rendered(rendered));
  if (static_cast<int64_t>(all.size()) >= model_.ctx()) {
    return fail(
        ErrorCode::kUnsupported,
        fmt::format("the conversation has {} tokens and the context holds {}; /reset begins "
                    "anew, --ctx makes it longer.",
                    all.size(), model_.ctx()));
  }
  const std::vector<int32_t>& held = session_.tokens();
  const size_t most = std::min(held.size(), all.size() - std::min<size_t>(all.size(), 1));
  const size_t common = static_cast<size_t>(
      std::mismatch(held.begin(), held.begin() + static_cast<std::ptrdiff_t>(most), all.begin())
          .first -
      held.begin());
  session_.truncate(static_cast<int64_t>(common));
  return std::vector<int32_t>(all.begin() + static_cast<std::ptrdiff_t>(common), all.end());
}

Result<void> Chat::answer(const std::string& text) {
  messages_.push_back({"user", text});
  Result<std::vector<int32_t>> ids = new_tokens();
  if (!ids) {
    messages_.pop_back();
    say_error(ids.error().message);
    return {};
  }
  const CatchInterrupt interrupt;
  ProgressLine progress(Unit::kTokens, interrupt);
  Result<void> written;
  Result<Generated> generated = session_.generate(
      *ids, arguments_.generate,
      [&](std::string_view piece) {
        progress.clear();
        written = output_.write(piece);
        return written && !output_.closed && !interrupt.requested();
      },
      progress.callback());
  progress.clear();
  NIBBLE_TRY(std::move(written));
  if (!generated) {
    messages_.pop_back();
    if (generated.error().code == ErrorCode::kCancelled) return output_.write("\n");
    if (generated.error().code == ErrorCode::kOutOfMemory) {  // what was said is kept
      NIBBLE_TRY(output_.write("\n"));
      say_error(generated.error().message + "; /save keeps the conversation, /reset begins anew.");
      return {};
    }
    return fail(generated.error());
  }
  NIBBLE_TRY(output_.write("\n"));
  messages_.push_back({"assistant", generated->text});
  detail(timings_line(*generated));
  if (generated->finish == "context") {
    warn("the context is full, so the answer ended early; /reset begins anew.");
  }
  return {};
}

void Chat::save(const std::string& path) const {
  if (path.empty()) {
    say_error("/save needs a file's name.");
    return;
  }
  const auto written = [&]() -> Result<void> {
    NIBBLE_ASSIGN(OutputFile file, OutputFile::create(path));
    NIBBLE_TRY(file.write(messages_json(messages_)));
    return file.finish();
  };
  if (auto ok = written(); ok) {
    note(fmt::format("saved {} messages to {}", messages_.size(), path));
  } else {
    say_error(ok.error().message);
  }
}

bool Chat::command(const std::string& line) {
  const size_t blank = std::min(line.find(' '), line.size());
  const std::string name = line.substr(0, blank);
  const size_t begin = line.find_first_not_of(' ', blank);
  const std::string rest = begin == std::string::npos ? "" : line.substr(begin);
  if (name == "/quit" || name == "/exit") return false;
  if (name == "/help") {
    note(kHelp);
  } else if (name == "/reset") {
    reset();
    note("the conversation is forgotten");
  } else if (name == "/system" && rest.empty()) {
    note(system_.empty() ? "there is no system message" : printable(system_));
  } else if (name == "/system") {
    system_ = rest;
    reset();
    note("the system message is set, and the conversation begins anew");
  } else if (name == "/save") {
    save(rest);
  } else {
    say_error(fmt::format("there is no {}; /help lists what there is.", name));
  }
  return true;
}

Result<void> Chat::talk() {
  const CatchInterrupt between_lines_and_answers;  // a Ctrl-C that comes late ends nothing
  LineEditor editor("> ", stdin_is_terminal() ? chat_history_file() : "");
  if (stdin_is_terminal()) note("/help lists the commands; Ctrl-D ends.");
  std::string line, text;
  while (!output_.closed) {
    const LineEditor::Event event = editor.read(line);
    if (event == LineEditor::Event::kEnd) {
      if (stdin_is_terminal()) note("");  // Ctrl-D leaves the cursor behind the prompt
      break;
    }
    if (event == LineEditor::Event::kInterrupt) {
      text.clear();
      note("\n(/quit or Ctrl-D ends)");
      continue;
    }
    if (!line.empty() && line.back() == '\\') {
      line.back() = '\n';
      text += line;
      continue;
    }
    text += line;
    if (text.find_first_not_of(" \t\n") == std::string::npos) {
      text.clear();
      continue;
    }
    if (auto ok = check_utf8(text, "the line"); !ok) {
      say_error(ok.error().message);
    } else if (text[0] == '/') {
      if (!command(text)) break;
    } else {
      NIBBLE_TRY(answer(text));
    }
    text.clear();
  }
  return {};
}

Result<int> chat(const Arguments& arguments) {
  set_voice(arguments.voice);
  if (arguments.voice.json) {
    return fail(ErrorCode::kUsage, "chat has no JSON form; /save writes the conversation as JSON.");
  }
  NIBBLE_TRY(check_utf8(arguments.system, "--system"));
  Result<Model> model = [&] {
    const CatchInterrupt interrupt;
    return open_model(arguments.model, arguments.options, interrupt);
  }();
  if (!model) return fail(model.error());
  NIBBLE_ASSIGN(const Tokenizer* tokenizer, tokenizer_of(*model));
  // A template that is missing, or refuses the system message, is said before anything is typed.
  std::vector<ChatMessage> first;
  if (!arguments.system.empty()) first.push_back({"system", arguments.system});
  first.push_back({"user", "hello"});
  NIBBLE_TRY(tokenizer->render_chat(messages_json(first)));
  Chat conversation(arguments, *model, *tokenizer);
  NIBBLE_TRY(conversation.talk());
  return 0;
}

}  // namespace

Command chat_command() {
  const auto arguments = std::make_shared<Arguments>();
  Command command{"chat", "talk, turn by turn"};
  command.about =
      "A conversation. Inside: /help, /reset, /system TEXT, /save FILE, /quit; Ctrl-C stops an "
      "answer and not the program. Answers go to stdout, all else to stderr; lines may come from a "
      "pipe. --verbose shows timings.";
  command.examples = {
      "nibble chat smollm2",
      "nibble chat ./Llama-3-8B-AWQ --system \"Answer in one sentence.\" --temp 0.2",
  };
  command.groups = {{"arguments",
                     {model_argument(arguments->model),
                      {"--system", "TEXT", "the system message", &arguments->system}}},
                    sampling_options(arguments->generate),
                    model_options(arguments->options),
                    voice_options(arguments->voice)};
  command.run = [arguments] { return chat(*arguments); };
  return command;
}

}  // namespace nibble::cli
