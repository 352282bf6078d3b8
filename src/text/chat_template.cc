#include "text/chat_template.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "text/jinja_interpreter.h"
#include "text/jinja_parser.h"

namespace nibble::text {
namespace {

using base::Json;
using jinja::Budget;
using jinja::Dict;
using jinja::Trouble;
using jinja::Value;

Error error_of(const Trouble& trouble, std::string_view where) {
  const std::string place =
      trouble.line > 0 ? fmt::format("{}, line {}", where, trouble.line) : std::string(where);
  if (trouble.code == ErrorCode::kUnsupported) {
    return {trouble.code, fmt::format("{}: the chat template uses what nibble cannot do: {}", place,
                                      trouble.message)};
  }
  if (trouble.code == ErrorCode::kCorrupt) {
    return {trouble.code, fmt::format("{}: not a valid chat template: {}", place, trouble.message)};
  }
  return {trouble.code, fmt::format("{}: the chat template does not fit this conversation: {}",
                                    place, trouble.message)};
}

// Runs `work`; its trouble, and memory that runs out, become an error.
template <class T, class Work>
Result<T> guarded(std::string_view where, Work work) {
  try {
    return Result<T>(work());
  } catch (const Trouble& trouble) {
    return fail(error_of(trouble, where));
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kOutOfMemory,
                fmt::format("{}: no memory left to render the chat template", where));
  }
}

Value to_value(Budget& budget, const Json& json) {
  const jinja::Level level(budget);
  if (json.is_bool()) return Value(json.as_bool());
  if (json.is_int()) return Value(json.as_int());
  if (json.is_double()) return Value(json.as_double());
  if (json.is_string()) return jinja::make_string(budget, json.as_string());
  if (json.is_array()) {
    std::vector<Value> items;
    items.reserve(json.as_array().size());
    for (const Json& item : json.as_array()) items.push_back(to_value(budget, item));
    return jinja::make_list(budget, std::move(items));
  }
  if (json.is_object()) {
    Dict dict;
    for (const auto& [key, item] : json.as_object()) {
      dict.set(jinja::make_string(budget, key), to_value(budget, item));
    }
    return jinja::make_dict(budget, std::move(dict));
  }
  return Value();
}

// A message as transformers hands it on: without null members, its reasoning under both of the
// names that templates read (`thinking` first, `reasoning_content` where it stood or last).
Value message_value(Budget& budget, const Json& message) {
  const Json* reasoning = nullptr;
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    if (reasoning == nullptr) reasoning = message.find_set(name);
  }
  Dict dict;
  const auto set = [&](std::string key, const Json& value) {
    dict.set(jinja::make_string(budget, std::move(key)), to_value(budget, value));
  };
  if (reasoning != nullptr) set("thinking", *reasoning);
  for (const auto& [key, value] : message.as_object()) {
    if (!value.is_null()) set(key, value);
  }
  if (reasoning != nullptr) set("reasoning_content", *reasoning);
  return jinja::make_dict(budget, std::move(dict));
}

Dict context_of(Budget& budget, const Json& messages, const Json* tools,
                const ChatVariables& variables) {
  Dict context;
  const auto set = [&](std::string_view name, Value value) {
    context.set(jinja::make_string(budget, std::string(name)), std::move(value));
  };
  if (variables.bos_token) set("bos_token", jinja::make_string(budget, *variables.bos_token));
  if (variables.eos_token) set("eos_token", jinja::make_string(budget, *variables.eos_token));
  set("documents", Value());
  if (variables.extra.is_object()) {
    for (const auto& [name, value] : variables.extra.as_object())
      set(name, to_value(budget, value));
  }
  std::vector<Value> list;
  for (const Json& message : messages.as_array()) list.push_back(message_value(budget, message));
  set("messages", jinja::make_list(budget, std::move(list)));
  set("tools", tools != nullptr ? to_value(budget, *tools) : Value());
  if (variables.extra.find("add_generation_prompt") == nullptr) {
    set("add_generation_prompt", Value(variables.add_generation_prompt));
  }
  return context;
}

Result<void> check_input(const Json& messages, const Json* tools, const ChatVariables& variables) {
  if (!messages.is_array() || messages.as_array().empty()) {
    return fail(ErrorCode::kUsage,
                fmt::format("the messages of a chat must be a list with at least "
                            "one message, found {}",
                            messages.describe()));
  }
  for (const Json& message : messages.as_array()) {
    if (!message.is_object()) {
      return fail(ErrorCode::kUsage,
                  fmt::format("a message of a chat must be an object with a role, "
                              "found {}",
                              message.describe()));
    }
  }
  if (tools != nullptr && !tools->is_array() && !tools->is_null()) {
    return fail(
        ErrorCode::kUsage,
        fmt::format("the tools of a chat must be a list of schemas, found {}", tools->describe()));
  }
  if (!variables.extra.is_null() && !variables.extra.is_object()) {
    return fail(ErrorCode::kUsage,
                fmt::format("the extra variables of a chat template must be an object, found {}",
                            variables.extra.describe()));
  }
  return {};
}

}  // namespace

struct ChatTemplate::Parsed {
  std::string where;
  jinja::Body body;
};

Result<ChatTemplate> ChatTemplate::parse(std::string_view source, std::string_view where) {
  return guarded<ChatTemplate>(where, [&] {
    auto parsed = std::make_shared<Parsed>();
    parsed->where = std::string(where);
    parsed->body = jinja::parse(source);
    ChatTemplate result;
    result.parsed_ = std::move(parsed);
    return result;
  });
}

Result<std::string> ChatTemplate::render(const Json& messages, const Json* tools,
                                         const ChatVariables& variables) const {
  NIBBLE_TRY(check_input(messages, tools, variables));
  return guarded<std::string>(parsed_->where, [&] {
    // The conversation is the caller's: it is not charged against what the template may use.
    jinja::Limits generous;
    generous.steps = generous.bytes = generous.one_value = SIZE_MAX;
    Budget input(generous);
    const Dict context = context_of(input, messages, tools, variables);
    jinja::Interpreter interpreter(context, jinja::Limits{}, variables.now);
    return interpreter.render(parsed_->body);
  });
}

const std::string& ChatTemplate::where() const { return parsed_->where; }

}  // namespace nibble::text
