// Templates that try to exhaust the machine, and what nibble says to each.
#include <gtest/gtest.h>

#include <ctime>
#include <string>

#include "text/chat_template.h"

namespace nibble::text {
namespace {

using base::Json;

std::string repeat(std::string_view s, size_t n) {
  std::string out;
  for (size_t i = 0; i < n; ++i) out += s;
  return out;
}

Result<std::string> render(std::string_view source, const char* messages = nullptr) {
  auto json = base::parse_json(
      messages != nullptr ? messages : R"([{"role": "user", "content": "hello"}])", "test");
  if (!json) return fail(json.error());
  NIBBLE_ASSIGN(const ChatTemplate chat, ChatTemplate::parse(source, "t"));
  return chat.render(*json, nullptr, {});
}

// Seconds of processor time, which does not depend on what else the machine does.
double processor_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// Refused, with these words, in well under the five seconds that anything may take.
void expect_refused(std::string_view source, std::string_view words) {
  const double begin = processor_seconds();
  const auto result = render(source);
  const double took = processor_seconds() - begin;
  const std::string shown(source.substr(0, 200));
  ASSERT_FALSE(result) << shown << "\nrendered " << result->size() << " bytes";
  EXPECT_NE(result.error().message.find(words), std::string::npos)
      << shown << "\nsaid: " << result.error().message;
  EXPECT_LT(result.error().message.size(), 500u);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr double kLimit = 60;  // checked code is some ten times slower
#else
  constexpr double kLimit = 4;
#endif
  EXPECT_LT(took, kLimit) << shown;
}

TEST(chat_template_hostile, a_loop_that_never_ends_is_refused) {
  const std::string loop = "{% for a in range(100000) %}";
  expect_refused(repeat(loop, 4) + repeat("{% endfor %}", 4), "more than 10000000 steps");
  expect_refused("{% for x in range(10**12) %}{% endfor %}", "Range too big");
  expect_refused("{{ range(10**18) }}", "beyond 2**53");
  expect_refused(
      "{% set ns = namespace(s='a') %}{% for i in range(99999) %}{% for j in range(99999) %}"
      "{% set ns.s = ns.s|upper %}{% endfor %}{% endfor %}",
      "steps");
  expect_refused("{% for i in range(99999) %}{{ range(99999)|list|length }}{% endfor %}",
                 "more than");
  expect_refused("{% for i in range(99999) %}{{ range(99999)|sort|sum }}{% endfor %}", "more than");
}

// Sixty times what `expression` makes of ns.s. (Three tests, since sanitizers take half a minute
// for each.)
std::string doubled(const std::string& expression) {
  return "{% set ns = namespace(s='abcd') %}{% for i in range(60) %}{% set ns.s = " + expression +
         " %}{% endfor %}{{ ns.s|length }}";
}

TEST(chat_template_hostile, doubling_is_refused) {
  expect_refused(doubled("ns.s ~ ns.s"), "bytes");
  expect_refused(doubled("ns.s + ns.s"), "bytes");
  expect_refused(doubled("ns.s * 2"), "bytes");
  expect_refused(doubled("ns.s|replace('a', 'aaaaaaaa')"), "bytes");
}

TEST(chat_template_hostile, doubling_with_lists_is_refused) {
  expect_refused(doubled("[ns.s, ns.s]") + "{{ ns.s|tojson }}", "steps");
  expect_refused(doubled("[ns.s, ns.s]") + "{{ ns.s }}", "steps");
  expect_refused(doubled("[ns.s, ns.s]|join"), "bytes");
  expect_refused(doubled("(ns.s|list + ns.s|list)"), "more than");
}

TEST(chat_template_hostile, doubling_with_formats_is_refused) {
  expect_refused(doubled("'{0}{0}'.format(ns.s)"), "bytes");
  expect_refused(doubled("'%s%s' % (ns.s, ns.s)"), "bytes");
  expect_refused(doubled("ns.s|escape|replace('a', '<<<<<<<<')|string"), "bytes");
}

TEST(chat_template_hostile, a_huge_width_is_refused) {
  expect_refused("{{ 'x' * 10**15 }}", "bytes");
  expect_refused("{{ [0] * 10**15 }}", "bytes");
  expect_refused("{{ 'x'|center(10**15) }}", "bytes");
  expect_refused("{{ 'x'.ljust(10**15) }}", "bytes");
  expect_refused("{{ 'x'.zfill(10**15) }}", "bytes");
  expect_refused("{{ 'x'|indent(10**15, true) }}", "bytes");
  expect_refused("{{ [1]|tojson(indent=10**15) }}", "bytes");
  expect_refused("{{ '%1000000000000d' % 1 }}", "bytes");
  expect_refused("{{ '%*d' % (10**15, 1) }}", "bytes");
  expect_refused("{{ '{:1000000000000}'.format(1) }}", "bytes");
  expect_refused("{{ [1]|batch(10**15, 0)|list }}", "bytes");
  expect_refused("{{ [1]|slice(10**15)|list }}", "more than");
  expect_refused("{{ 10**19 }}", "beyond 64 bits");
  expect_refused("{{ 9999999999999999999 }}", "beyond 64 bits");
}

TEST(chat_template_hostile, depth_is_refused) {
  expect_refused(std::string("{{ ") + repeat("(", 100000) + "1" + repeat(")", 100000) + " }}",
                 "too deeply");
  expect_refused(std::string("{{ ") + repeat("[", 100000) + repeat("]", 100000) + " }}",
                 "too deeply");
  expect_refused(std::string("{{ ") + repeat("{1:", 100000) + "1" + repeat("}", 100000) + " }}",
                 "too deeply");
  expect_refused(std::string("{{ ") + repeat("not ", 100000) + "1 }}", "too deeply");
  expect_refused(std::string("{{ ") + repeat("-", 100000) + "1 }}", "too deeply");
  expect_refused(std::string("{{ 1") + repeat(" + 1", 100000) + " }}", "nested more than");
  expect_refused(std::string("{{ x") + repeat(".a", 100000) + " }}", "nested more than");
  expect_refused(std::string("{{ x") + repeat("|string", 100000) + " }}", "nested more than");
  expect_refused(std::string("{{ 1") + repeat(" if 1 else 1", 100000) + " }}", "too deeply");
  expect_refused(std::string("{{ f") + repeat("(f", 100000) + repeat(")", 100000) + " }}",
                 "too deeply");
  expect_refused(repeat("{% if 1 %}", 100000) + repeat("{% endif %}", 100000), "blocks nested");
  expect_refused(repeat("{% for x in [1] %}", 100) + repeat("{% endfor %}", 100), "blocks nested");
}

TEST(chat_template_hostile, recursion_is_refused) {
  expect_refused("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "levels deep");
  expect_refused("{% macro f(x=f()) %}{% endmacro %}{{ f() }}", "levels deep");
  expect_refused("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", "levels deep");
  expect_refused("{% macro f() %}{% call f() %}{{ caller() }}{% endcall %}{% endmacro %}{{ f() }}",
                 "levels deep");
  expect_refused(
      "{% set ns = namespace(l=[]) %}{% for i in range(99999) %}{% set ns.l = [ns.l] %}"
      "{% endfor %}",
      "values nested");
  expect_refused(
      "{% set ns = namespace(l={}) %}{% for i in range(99999) %}{% set ns.l = {1: ns.l} %}"
      "{% endfor %}",
      "values nested");
  expect_refused("{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}", "levels deep");
  expect_refused(
      "{% macro f() %}{% for i in range(10) %}{{ f() }}{% endfor %}{% endmacro %}{{ f() }}",
      "levels deep");
  expect_refused(
      "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}"
      "{{ f(60) }}",
      "steps");
}

TEST(chat_template_hostile, a_long_chain_of_namespaces_is_let_go_of_without_recursion) {
  const auto result = render(
      "{% set o = namespace(last=namespace()) %}{% set o.first = o.last %}"
      "{% for i in range(20000) %}{% set n = namespace() %}{% set t = o.last %}{% set t.next = n %}"
      "{% set o.last = n %}{% endfor %}{% set o.first = none %}done");
  ASSERT_TRUE(result) << result.error().message;
  EXPECT_EQ(*result, "done");
}

TEST(chat_template_hostile, searching_takes_linear_time) {
  const std::string setup =
      "{% set a = 'a' * 1000000 %}{% set b = 'a' * 500000 ~ 'b' ~ 'a' * 500 %}";
  for (const char* search :
       {"{{ b in a }}", "{{ a.find(b) }}", "{{ a.rfind(b) }}", "{{ a.count(b) }}",
        "{{ a.split(b)|length }}", "{{ a.rsplit(b)|length }}", "{{ a.replace(b, '')|length }}",
        "{{ a.partition(b)|length }}", "{{ a.strip(b)|length }}"}) {
    const double begin = processor_seconds();
    const auto result = render(setup + search);
    EXPECT_LT(processor_seconds() - begin, 1) << search << (result ? "" : result.error().message);
  }
}

TEST(chat_template_hostile, what_is_not_closed_is_refused_with_its_line) {
  expect_refused("a\n{% if x %}", "inside the block 'if' that line 2 begins; it needs {% endif %}");
  expect_refused("\n\n{{ x", "line 3: not a valid chat template: expected '}}', found the end");
  expect_refused("{# ", "a comment begun with {# has no #}");
  expect_refused("{% raw %}x", "a raw block has no {% endraw %}");
  expect_refused("{{ 'x }}", "a string begun with ' is not closed");
  expect_refused("{{ '\\", "a string begun with ' is not closed");
  expect_refused("{% for x in y %}{% if %}", "expected an expression, found '%}'");
  expect_refused("{{ (1 }}", "'}' stands where ')' is needed");
  expect_refused("{{ 1) }}", "')' closes nothing");
}

TEST(chat_template_hostile, bytes_that_are_not_text_are_refused) {
  expect_refused("\xff", "not UTF-8 at byte 0");
  expect_refused("ab\xed\xa0\x80", "not UTF-8 at byte 2");
  expect_refused("\xc0\xaf", "not UTF-8 at byte 0");
  expect_refused("{{ '\\ud83d' }}", "surrogate");
  expect_refused("{{ '\\U00110000' }}", "not 8 hexadecimal digits of a character");
  expect_refused(std::string(5 << 20, 'x'), "larger than 4194304 bytes");
}

TEST(chat_template_hostile, a_deep_message_renders_or_is_refused_by_its_parser) {
  const std::string deep = std::string("[{\"role\": ") + repeat("[", 60) + repeat("]", 60) + "}]";
  const auto result = render("{{ messages|tojson }}{{ messages }}", deep.c_str());
  ASSERT_TRUE(result) << result.error().message;
  const std::string deeper = std::string("[") + repeat("[", 1000) + repeat("]", 1000) + "]";
  EXPECT_FALSE(render("{{ messages }}", deeper.c_str()));
}

}  // namespace
}  // namespace nibble::text
