#include <cstddef>
#include <cstdint>
#include <string_view>

#include "text/jinja_interpreter.h"
#include "text/jinja_parser.h"

using namespace nibble::text::jinja;

namespace {

// What a small conversation looks like to a template.
Dict small_context(Budget& budget) {
  const auto text = [&](const char* s) { return make_string(budget, s); };
  const auto message = [&](const char* role, const char* content) {
    Dict dict;
    dict.set(text("role"), text(role));
    dict.set(text("content"), text(content));
    return make_dict(budget, std::move(dict));
  };
  Dict context;
  context.set(text("messages"),
              make_list(budget, {message("system", "Be \xC3\xBC."), message("user", "a,b  c")}));
  context.set(text("tools"), Value());
  context.set(text("add_generation_prompt"), Value(true));
  context.set(text("bos_token"), text("<s>"));
  context.set(text("x"), make_list(budget, {Value(1), Value(2.5), text("z")}));
  return context;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  try {
    const Body body = parse(source);
    Budget input{Limits{}};
    const Dict context = small_context(input);
    Limits limits;
    limits.steps = 50000;
    limits.bytes = 4 << 20;
    limits.one_value = 1 << 20;
    std::tm now{};
    now.tm_mday = 1;
    Interpreter interpreter(context, limits, now);
    (void)interpreter.render(body);
  } catch (const Trouble& trouble) {
    if (trouble.message.empty()) __builtin_trap();
  }
  return 0;
}
