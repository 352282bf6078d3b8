// Chat templates: a conversation -> the text a model was trained to continue.
//
//   NIBBLE_ASSIGN(ChosenTemplate chosen, choose_chat_template(sources, tools != nullptr));
//   NIBBLE_ASSIGN(ChatTemplate chat, ChatTemplate::parse(chosen.text, chosen.where));
//   NIBBLE_ASSIGN(std::string prompt, chat.render(messages, tools, variables));
//
// Templates are written in Jinja; they are rendered as transformers' apply_chat_template (5.24)
// renders them: sandboxed, trim_blocks and lstrip_blocks on, loop controls, `generation` blocks,
// raise_exception, strftime_now, and tojson without HTML escapes.
#pragma once

#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "nibble/result.h"

namespace nibble::text {

// What a template sees beside the messages.
struct ChatVariables {
  std::optional<std::string> bos_token;  // not given: undefined in the template
  std::optional<std::string> eos_token;
  bool add_generation_prompt = false;
  // An object: enable_thinking, documents, other special tokens ... Its members win over those
  // above. Null: none.
  base::Json extra;
  // The local time for strftime_now, which is an error without it.
  std::optional<std::tm> now;
};

class ChatTemplate {
 public:
  // `where` names the source in messages ("tokenizer_config.json: chat_template"). Errors: kCorrupt
  // for what is not a template, kUnsupported for a construct nibble does not have; with the line.
  static Result<ChatTemplate> parse(std::string_view source, std::string_view where);

  // `messages`: an array of objects with `role` and what else the template asks for (content as a
  // string or a list of parts, tool_calls ...). As in transformers, members that are null are left
  // out of each message, and reasoning_content, thinking and reasoning stand for each other.
  // `tools`: an array of JSON schemas; nullptr: none in the template.
  // Errors: kUsage if the template refuses the messages (its own words are in the message) or does
  // not fit them; kUnsupported for a construct nibble does not have and for a rendering beyond the
  // limits on steps, depth and size.
  Result<std::string> render(const base::Json& messages, const base::Json* tools,
                             const ChatVariables& variables) const;

  const std::string& where() const;

 private:
  struct Parsed;
  std::shared_ptr<const Parsed> parsed_;
};

// The places a checkpoint may keep its templates in; the caller reads the files.
struct ChatTemplateSources {
  // A template that the user names or gives: "chatml", a name from a list of templates, or (if it
  // holds a "{") the template itself. Wins over all others.
  std::optional<std::string> requested;
  std::optional<std::string> chat_template_jinja;  // chat_template.jinja
  // additional_chat_templates/NAME.jinja: (NAME, text)
  std::vector<std::pair<std::string, std::string>> additional;
  const base::Json* tokenizer_config = nullptr;    // tokenizer_config.json: chat_template
  const base::Json* chat_template_json = nullptr;  // chat_template.json, of processors
  std::optional<std::string> gguf;                 // tokenizer.chat_template
  // tokenizer.chat_template.NAME: (NAME, text)
  std::vector<std::pair<std::string, std::string>> gguf_named;
};

struct ChosenTemplate {
  std::string text;
  std::string where;  // for messages: "chat_template.jinja", "tokenizer_config.json: chat_template"
};

// Which template a conversation is rendered with. Files of their own win over
// tokenizer_config.json, as in transformers; then chat_template.json, then GGUF. Of several with
// names, "tool_use" is taken if there are tools, else "default". Errors: kNotFound if there is none
// (nibble never guesses one), or none of the name asked for; kCorrupt if a source is not of the
// form it must have.
Result<ChosenTemplate> choose_chat_template(const ChatTemplateSources& sources, bool has_tools);

// The template that `requested = "chatml"` stands for.
std::string_view chatml_template();

}  // namespace nibble::text
