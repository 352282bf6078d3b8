// Which of a checkpoint's templates is used.
#include <fmt/format.h>

#include <algorithm>

#include "text/chat_template.h"

namespace nibble::text {
namespace {

using base::Json;

struct Named {
  std::string name;
  ChosenTemplate chosen;
};

// tokenizer_config.json's `chat_template`: a string, or a list of {name, template}.
Result<std::vector<Named>> named_in(const Json& document, std::string_view file) {
  std::vector<Named> found;
  const Json* value = document.find_set("chat_template");
  if (value == nullptr) return found;
  const std::string where = fmt::format("{}: chat_template", file);
  if (value->is_string()) {
    found.push_back({"default", {value->as_string(), where}});
    return found;
  }
  const auto malformed = [&](const Json& item) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: expected a string or a list of {{name, template}}, found {}",
                            where, item.describe()));
  };
  if (!value->is_array()) return malformed(*value);
  for (const Json& item : value->as_array()) {
    const Json* name = item.find("name");
    const Json* text = item.find("template");
    if (name == nullptr || text == nullptr || !name->is_string() || !text->is_string()) {
      return malformed(item);
    }
    found.push_back(
        {name->as_string(), {text->as_string(), fmt::format("{}: {}", where, name->as_string())}});
  }
  return found;
}

// The templates of the first place that has any: nibble mixes none, as transformers does not.
Result<std::vector<Named>> templates_of(const ChatTemplateSources& sources) {
  std::vector<Named> found;
  if (sources.chat_template_jinja) {
    found.push_back({"default", {*sources.chat_template_jinja, "chat_template.jinja"}});
  }
  for (const auto& [name, text] : sources.additional) {
    found.push_back({name, {text, fmt::format("additional_chat_templates/{}.jinja", name)}});
  }
  if (found.empty() && sources.tokenizer_config != nullptr) {
    NIBBLE_ASSIGN(found, named_in(*sources.tokenizer_config, "tokenizer_config.json"));
  }
  if (found.empty() && sources.chat_template_json != nullptr) {
    NIBBLE_ASSIGN(found, named_in(*sources.chat_template_json, "chat_template.json"));
  }
  if (found.empty()) {
    if (sources.gguf) found.push_back({"default", {*sources.gguf, "tokenizer.chat_template"}});
    for (const auto& [name, text] : sources.gguf_named) {
      found.push_back({name, {text, fmt::format("tokenizer.chat_template.{}", name)}});
    }
  }
  return found;
}

std::string names_of(const std::vector<Named>& templates) {
  std::vector<std::string> names;
  for (const Named& one : templates) names.push_back(one.name);
  std::sort(names.begin(), names.end());
  return fmt::format("{}", fmt::join(names, ", "));
}

const ChosenTemplate* find(const std::vector<Named>& templates, std::string_view name) {
  for (const Named& one : templates) {
    if (one.name == name) return &one.chosen;
  }
  return nullptr;
}

}  // namespace

Result<ChosenTemplate> choose_chat_template(const ChatTemplateSources& sources, bool has_tools) {
  NIBBLE_ASSIGN(const std::vector<Named> templates, templates_of(sources));
  if (sources.requested) {
    const std::string& asked = *sources.requested;
    if (const ChosenTemplate* named = find(templates, asked)) return *named;
    if (asked == "chatml") return ChosenTemplate{std::string(chatml_template()), "chatml"};
    if (asked.find('{') != asked.npos) return ChosenTemplate{asked, "the given chat template"};
    return fail(ErrorCode::kNotFound,
                fmt::format("there is no chat template named \"{}\"; this checkpoint has {}, and "
                            "\"chatml\" is built in",
                            asked, templates.empty() ? "none" : names_of(templates)));
  }
  if (templates.empty()) {
    return fail(ErrorCode::kNotFound,
                "this checkpoint has no chat template (looked for chat_template.jinja, "
                "additional_chat_templates/, tokenizer_config.json: chat_template, "
                "chat_template.json and GGUF's tokenizer.chat_template): it may be a base model, "
                "which completes plain text; to chat, take the model that was tuned for it, or put "
                "a chat_template.jinja into the folder");
  }
  const ChosenTemplate* chosen = has_tools ? find(templates, "tool_use") : nullptr;
  if (chosen == nullptr) chosen = find(templates, "default");
  if (chosen == nullptr) {
    return fail(ErrorCode::kNotFound,
                fmt::format("this checkpoint has several chat templates and none is called "
                            "\"default\"; ask for one of {} by name",
                            names_of(templates)));
  }
  return *chosen;
}

std::string_view chatml_template() {
  return "{% for message in messages %}"
         "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
         "{% endfor %}"
         "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
}

}  // namespace nibble::text
