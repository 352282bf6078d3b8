"""Templates that exercise each construct: one a line, or (blocks) one after each `#### name`."""

LINES_EXPRESSIONS = r"""
{{ 1 + 2 * 3 - 4 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 2 ** 10 }} {{ 2 ** -1 }}
{{ 7.5 // 2 }} {{ -7.5 // 2 }} {{ 7.5 % 2 }} {{ -7.5 % 2 }} {{ 1e3 }} {{ 1_000 }} {{ 0x1F }} {{ 0b101 }} {{ 0o17 }} {{ 1.5e-7 }} {{ 1e16 }} {{ 1e15 }} {{ 123456789.123 }}
{{ 0.1 + 0.2 }} {{ 1 / 3 }} {{ 1e300 * 1e10 }} {{ -1e300 * 1e10 }} {{ 100000000000000000.0 }} {{ 0.0001 }} {{ 0.00001 }} {{ 5.0 }} {{ -0.0 }}
{{ -2 ** 2 }} {{ 2 ** 3 ** 2 }} {{ -seven|abs }} {{ (-seven)|abs }} {{ +seven }} {{ - -seven }}
{{ true + 1 }} {{ true * 3 }} {{ -true }} {{ true == 1 }} {{ 1 == 1.0 }} {{ "1" == 1 }} {{ none == false }}
{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 3 > 2 >= 2 != 1 }} {{ 1 == 1 == 1 }} {{ "a" < "b" }} {{ [1, 2] < [1, 3] }} {{ (1, 2) < (1, 2, 3) }}
{{ "a" ~ 1 ~ none ~ true ~ 1.0 ~ [1] ~ missing }} {{ "a" + "b" * 3 }} {{ 3 * "ab" }} {{ [1] + [2] }} {{ [0] * 3 }} {{ (1,) + (2,) }} {{ "x" * -1 }}
{{ 1 if yes }} {{ 1 if no }} {{ 1 if no else 2 }} {{ 1 if no else 2 if no else 3 }} {{ (1 if no) is defined }}
{{ not yes }} {{ not not yes }} {{ yes and "a" }} {{ no and "a" }} {{ "" or "b" }} {{ zero or none or "c" }} {{ yes and no or seven }} {{ not yes or no }}
{{ 3 in numbers }} {{ 4 in numbers }} {{ 4 not in numbers }} {{ "ell" in "Hello" }} {{ "" in "x" }} {{ "b" in prices }} {{ "z" not in prices }} {{ 1 in (1, 2) }} {{ "x" in missing }} {{ not 3 in numbers }}
{{ [1, "a", 2.5, none, true, [2], {"k": (1, 2)}, (3,)] }} {{ () }} {{ (1,) }} {{ {} }} {{ [] }} {{ {"a": 1, 2: "b", none: 3, (1, 2): 4} }} {{ {1: "a", 1.0: "b", true: "c"} }}
{{ [1, 2, 3,] }} {{ {"a": 1,} }} {{ (1, 2,) }} {{ 1, 2 }} {{ [missing] }}
{{ 'it''s' }} {{ "con" "cat" }} {{ "a\tb\\n\x41\u00e9\U0001F642\101\q" }} {{ 'single "double"' }} {{ "line\
joined" }}
{{ messages[0].role }} {{ messages[-1]["content"] }} {{ messages[0]["role"].upper() }} {{ messages.0.role }} {{ numbers.1 }}
{{ prices.items() | list }} {{ prices["items"] }} {{ prices.A }} {{ prices.get("A") }} {{ prices.get("zz") }} {{ prices.get("zz", 5) }} {{ prices.zz }} {{ prices.zz is defined }}
{{ numbers[1:3] }} {{ numbers[:2] }} {{ numbers[-2:] }} {{ numbers[::2] }} {{ numbers[::-1] }} {{ numbers[4:1:-1] }} {{ numbers[10:] }} {{ numbers[-100:2] }} {{ numbers[::-3] }} {{ numbers[none:2] }}
{{ wide[0:3] }}|{{ wide[-3:] }}|{{ wide[::-1] }}|{{ wide[4] }}|{{ wide[4:10] }}|{{ wide | length }}|{{ text[2:5] }}|{{ "abc"[5:] }}|{{ "abc"[-1] }}|{{ (1, 2, 3)[1:] }}
{{ range(5) }} {{ range(1, 5) | list }} {{ range(10, 0, -3) | list }} {{ range(5)[2] }} {{ range(5)[-1] }} {{ range(10)[2:8:3] | list }} {{ range(3) | length }} {{ 2 in range(3) }} {{ range(0) | list }} {{ range(1, 10, 2) }}
{{ dict(a=1, b=2) }} {{ dict([("x", 1)]) }} {{ dict({"a": 1}, b=2) }} {{ dict() }}
{{ numbers[1] }} {{ numbers[100] is defined }} {{ numbers["x"] is defined }} {{ "abc"[10] is defined }} {{ none.x is defined }} {{ seven.x is defined }}
{{ (1, 2) == (1, 2) }} {{ [1, 2] == [1, 2.0] }} {{ (1, 2) == [1, 2] }} {{ {"a": 1, "b": 2} == {"b": 2, "a": 1} }} {{ missing == other }} {{ missing != 1 }} {{ [1] != [2] }}
{{ 9223372036854775807 }} {{ -9223372036854775807 - 1 }} {{ 9007199254740993 == 9007199254740992.0 }} {{ 9007199254740993 > 9007199254740992.0 }}
{{ namespace(a=1).a }} {{ cycler("a", "b").next() }} {{ joiner("|")() }} {{ [1, 2, 3][numbers[3]] }} {{ {"a": {"b": [10, 20]}}.a.b[1] }} {{ (numbers | first) + 1 }} {{ "%s-%s" % (1, "x") }}
"""

LINES_STRINGS = r"""
[{{ text.strip() }}] [{{ text.lstrip() }}] [{{ text.rstrip() }}] [{{ "xxaxx".strip("x") }}] [{{ "abcba".lstrip("ab") }}] [{{ "abcba".rstrip("ab") }}] [{{ " 日 ".strip() }}]
{{ "a,b,,c".split(",") }} {{ "a b  c ".split() }} {{ "a b  c ".split(none, 1) }} {{ "a,b,c".split(",", 1) }} {{ "abc".split("x") }} {{ "".split() }} {{ "".split(",") }} {{ "a--b".split("--") }} {{ " a ".split(" ") }}
{{ "a,b,,c".rsplit(",", 1) }} {{ "a b  c ".rsplit() }} {{ "a b  c ".rsplit(none, 1) }} {{ "a.b.c".rsplit(".", maxsplit=1) }} {{ "x".rsplit("y") }} {{ "aXXbXXc".rsplit("XX") }}
{{ lines.splitlines() }} {{ lines.splitlines(true) }} {{ "".splitlines() }} {{ "a\n\nb\n".splitlines() }}
{{ "a=b=c".partition("=") }} {{ "abc".partition("=") }} {{ "a=b=c".rpartition("=") }} {{ "abc".rpartition("=") }}
{{ wide.upper() }} {{ wide.lower() }} {{ wide.title() }} {{ wide.capitalize() }} {{ wide.swapcase() }} {{ "ΑΣ Σ ΑΣΑ ΑΣ.".lower() }} {{ "İI".lower() }}
{{ "they're bill's 1st o'clock".title() }} {{ "hELLO wORLD".capitalize() }} {{ "ǆ".title() }}
{{ "hello".startswith("he") }} {{ "hello".startswith(("x", "he")) }} {{ "hello".startswith("l", 2) }} {{ "hello".startswith("l", 2, 3) }} {{ "hello".endswith("lo") }} {{ "hello".endswith(("x", "lo")) }} {{ "hello".endswith("l", 0, 4) }} {{ "".startswith("") }} {{ "a".startswith("", 5) }}
{{ "hello".find("l") }} {{ "hello".find("z") }} {{ "hello".rfind("l") }} {{ "日本語日".find("語") }} {{ "日本語日".rfind("日") }} {{ "hello".find("l", 3) }} {{ "hello".find("l", -2) }} {{ "hello".find("") }} {{ "hello".index("e") }} {{ "hello".rindex("l") }}
{{ "banana".count("a") }} {{ "banana".count("ana") }} {{ "banana".count("a", 2) }} {{ "日日".count("") }} {{ "x".count("y") }}
{{ "banana".replace("a", "o") }} {{ "banana".replace("a", "o", 2) }} {{ "abc".replace("", "-") }} {{ "日本".replace("", "-") }} {{ "abc".replace("b", "") }} {{ "aaa".replace("aa", "b") }} {{ "abc".replace("", "-", 2) }} {{ "x".replace("x", "y", 0) }}
{{ "-".join(["a", "b"]) }} {{ "".join("日本") }} {{ ", ".join({"a": 1, "b": 2}) }} {{ "x".join([]) }}
{{ "abc".removeprefix("a") }} {{ "abc".removesuffix("c") }} {{ "abc".removeprefix("x") }}
[{{ "x".center(6) }}] [{{ "x".center(5, "*") }}] [{{ "ab".center(5) }}] [{{ "x".ljust(4, ".") }}] [{{ "日".rjust(3) }}] [{{ "-7".zfill(5) }}] [{{ "7".zfill(3) }}] [{{ "long".center(2) }}]
{{ "abc1".isalnum() }} {{ "abc".isalpha() }} {{ "12".isdigit() }} {{ "²".isdigit() }} {{ "½".isnumeric() }} {{ "12".isdecimal() }} {{ "".isalpha() }} {{ " \t".isspace() }} {{ "aB".isupper() }} {{ "AB1".isupper() }} {{ "ab1".islower() }} {{ "é".isascii() }} {{ "日".isalpha() }} {{ "1".isupper() }}
{{ "{} and {}".format(1, "x") }} {{ "{0}{1}{0}".format("a", "b") }} {{ "{a.role}/{b[1]}".format(a=messages[0], b=numbers) }} {{ "{{}}".format() }} {{ "{!r:>6}|{:<4}|{:^5}|{:*^7}".format("a", "b", "c", "d") }}
{{ "{:d} {:5d} {:05d} {:+d} {:,} {:x} {:X} {:#x} {:o} {:b} {:_b}".format(42, 42, -42, 42, 1234567, 255, 255, 255, 8, 5, 1234) }} {{ "{:<5}|{:>5}|{:^5}".format(1, 2, 3) }}
{{ "{:.2f} {:8.3f} {:08.3f} {:e} {:.3g} {:g} {:%} {:.1%} {:+.1f} {:,.2f} {:.3} {}".format(3.14159, 3.14159, -3.14159, 12345.678, 12345.678, 0.00001, 0.25, 0.256, 2.0, 1234567.891, 3.14159, 1e20) }}
{{ "{:{w}.{p}f}".format(3.14159, w=8, p=1) }} {{ "{:.3}|{:>{n}}".format("abcdef", "x", n=3) }} {{ "{:s}".format("x") }} {{ "{}".format(none) }} {{ "{}".format([1]) }} {{ "{:d}".format(true) }} {{ "{}".format(true) }}
{{ "%s %r %d %i %5d|%-5d|%05d %x %X %o %e %.2f %g %c %%" % ("a", "b", 1, 2.7, 3, 4, -5, 255, 255, 8, 1234.5, 3.14159, 0.0001, "z") }}
{{ "%(a)s-%(b)03d" % {"a": 1, "b": 2} }} {{ "%s" % "x" }} {{ "%s" % [1] }} {{ "%+d % d %#x" % (1, 2, 255) }} {{ "%5s|%-5s|%.2s" % ("a", "b", "cde") }} {{ "%*d" % (5, 3) }}
{{ odd_text }} {{ [odd_text] }} {{ ["it's", 'say "x"', "both '\""] }} {{ ["\u2028\ud7ff日"] }}
{{ words.index("fig") }} {{ numbers.count(3) }} {{ (1, 2, 1).count(1) }} {{ (1, 2).index(2) }} {{ prices.keys() }} {{ prices.values() | list }} {{ prices.items() }} {{ prices.copy() == prices }}
"""

LINES_TEXT_FILTERS = r"""
[{{ text | trim }}] [{{ "xxaxx" | trim("x") }}] [{{ 5 | trim }}] [{{ none | trim }}] [{{ text | trim | length }}]
{{ wide | upper }} {{ wide | lower }} {{ wide | capitalize }} {{ wide | title }} {{ text | title }} {{ "foo-bar (baz) [qux] <x> {y} o'neil" | title }} {{ 5 | upper }}
{{ "banana" | replace("a", "o") }} {{ "banana" | replace("a", "o", 1) }} {{ 121 | replace(1, "x") }} {{ "banana" | replace(old="an", new="AN", count=1) }}
{{ "a\nb\n\nc" | indent }}|{{ "a\nb\n\nc" | indent(2, true) }}|{{ "a\nb\n\nc" | indent(2, blank=true) }}|{{ "a\nb" | indent("> ", first=true) }}|{{ "" | indent(2, true) }}|{{ "a\n" | indent(2) }}|{{ lines | indent(1) }}
{{ missing | default("d") }} {{ none | default("d") }} {{ none | default("d", true) }} {{ "" | d("x", boolean=true) }} {{ zero | default(1) }} {{ missing | default }} {{ prices.zz | default(missing2) | default("deep") }}
{{ "12" | int }} {{ "12.7" | int }} {{ "x" | int }} {{ "x" | int(-1) }} {{ "ff" | int(base=16) }} {{ "0x1f" | int(0, 16) }} {{ 3.99 | int }} {{ -3.99 | int }} {{ true | int }} {{ none | int }} {{ " 5 " | int }} {{ "1_000" | int }} {{ "" | int }} {{ [] | int(9) }}
{{ "1.5" | float }} {{ "x" | float }} {{ "x" | float(2.5) }} {{ 3 | float }} {{ "1e3" | float }} {{ "inf" | float }} {{ "nan" | float }} {{ "-0" | float }} {{ none | float }}
{{ 5 | string + "x" }} {{ true | string }} {{ none | string }} {{ 1.0 | string }} {{ [1, "a"] | string }} {{ missing | string | length }}
{{ 3.7 | round }} {{ 3.14159 | round(2) }} {{ 2.5 | round }} {{ 3.5 | round }} {{ 2.675 | round(2) }} {{ 3.2 | round(0, "ceil") }} {{ 3.789 | round(1, "floor") }} {{ 5 | round }} {{ 1234.5 | round(-2) }} {{ -5 | abs }} {{ -5.5 | abs }} {{ (-5) | abs }}
{{ html | escape }} {{ html | e }} {{ html | safe }} {{ html | safe | escape }} {{ html | escape | escape }} {{ html | forceescape }} {{ (html | safe) + "<b>" }} {{ "<b>" + (html | safe) }} {{ (html | safe) ~ "<b>" }} {{ ["<", html | safe] | join }} {{ [html | safe] }}
{{ (html | safe).upper() }} {{ (html | escape) | length }} {{ "<" | escape is escaped }} {{ "<" is escaped }} {{ ("<" | safe) * 2 + ">" }} {{ ("," | safe).join(["<", ">"]) }} {{ ("a<b" | safe).replace("<", "<<") }} {{ (html | safe)[0:2] + "<" }}
[{{ "x" | center(7) }}] [{{ "x" | center }}] {{ "one two-three four" | wordcount }} {{ "a b c d e f" | truncate(5, leeway=0) }} {{ "abcdefghij" | truncate(5, true, "..", 0) }} {{ "short" | truncate(4) }} {{ "a/b c&d=é" | urlencode }}
{{ "%s is %d" | format("x", 5) }} {{ "%(a)s" | format(a=1) }} {{ "100%%" | format }}
{{ prices | tojson }} {{ mixed | tojson }} {{ wide | tojson }} {{ odd_text | tojson }} {{ html | tojson }} {{ 1.0 | tojson }} {{ 1e20 | tojson }} {{ "nan" | float | tojson }} {{ (1, 2) | tojson }} {{ none | tojson }}
{{ mixed | tojson(indent=2) }} {{ {} | tojson(indent=2) }} {{ [] | tojson(indent=2) }} {{ [[], {}] | tojson(indent=1) }} {{ prices | tojson(indent="--") }} {{ [1] | tojson(indent=0) }}
{{ wide | tojson(ensure_ascii=true) }} {{ {"b": 1, "a": [1, 2]} | tojson(sort_keys=true) }} {{ {"b": 1, "a": [1, 2]} | tojson(separators=(",", ":")) }} {{ {1: "a", none: 2, true: 3, 1.5: 4} | tojson }} {{ prices | tojson(separators=(", ", " = "), indent=1) }} {{ "\x7f" | tojson(true) }}
{{ tools | tojson }} {{ tools | tojson(indent=4) }} {{ messages | tojson }}
{{ "a" | upper | lower ~ "B" | lower }} {{ -1 | abs }} {{ "x" | length + 1 }} {{ not "" | length }} {{ "abc" | first | upper }} {{ (1 if yes else 2) | string }}
"""

LINES_SEQUENCE_FILTERS = r"""
{{ numbers | length }} {{ wide | length }} {{ prices | count }} {{ missing | length }} {{ prices.items() | length }} {{ range(7) | length }}
{{ numbers | first }} {{ numbers | last }} {{ "日本" | first }} {{ "日本" | last }} {{ prices | first }} {{ prices | last }} {{ [] | first is defined }} {{ missing | last is defined }} {{ range(3) | last }}
{{ numbers | join }} {{ numbers | join(", ") }} {{ people | join(", ", attribute="name") }} {{ mixed | join("|") }} {{ "abc" | join("-") }} {{ [] | join("x") }} {{ people | map(attribute="home") | join(";") }} {{ prices | join("+") }}
{{ numbers | sort }} {{ numbers | sort(reverse=true) }} {{ words | sort }} {{ words | sort(case_sensitive=true) }} {{ people[:3] | sort(attribute="age") | map(attribute="name") | join(",") }} {{ people[:3] | sort(attribute="age,name") | map(attribute="name") | join(",") }} {{ people[:3] | sort(true, attribute="age") | map(attribute="name") | list }} {{ prices | sort }}
{{ prices | dictsort }} {{ prices | dictsort(true) }} {{ {"a": 2, "b": 1} | dictsort(false, "value") }} {{ {"a": 2, "b": 1} | dictsort(reverse=true) }} {{ prices | items | list }} {{ missing | items | list }}
{{ numbers | unique | list }} {{ words | unique | list }} {{ words | unique(true) | list }} {{ people | unique(attribute="age") | map(attribute="name") | list }}
{{ numbers | sum }} {{ people[:3] | sum(attribute="age") }} {{ [1.5, 2] | sum }} {{ [[1], [2]] | sum(start=[]) }} {{ [] | sum }} {{ numbers | sum(start=100) }}
{{ numbers | min }} {{ numbers | max }} {{ words | min }} {{ words | max }} {{ words | max(case_sensitive=true) }} {{ people[:3] | max(attribute="age") }} {{ [] | min is defined }} {{ ["b", "B", "a", "A"] | min }} {{ ["a", "A", "b", "B"] | max }}
{{ numbers | reverse | list }} {{ "日本語" | reverse }} {{ prices | reverse | list }} {{ range(4) | reverse | list }} {{ numbers | map("string") | reverse | list }}
{{ numbers | batch(4) | list }} {{ numbers | batch(4, "x") | list }} {{ numbers | slice(4) | list }} {{ numbers | slice(4, "x") | list }} {{ "abcde" | batch(2) | map("join") | list }} {{ numbers | slice(1) | list }}
{{ words | map("upper") | list }} {{ words | map("replace", "a", "4") | list }} {{ people | map(attribute="age", default="?") | list }} {{ people | map(attribute="home.city") | list if no }} {{ people[:3] | map(attribute="home.city", default="-") | list }} {{ [[1, 2], [3]] | map("first") | list }} {{ [[1, 2], [3, 4]] | map(attribute=1) | list }} {{ [[1, 2], [3, 4]] | map(attribute="0") | list }} {{ missing | map("upper") | list }} {{ ["1", "x"] | map("int", default=-1) | list }}
{{ numbers | select("odd") | list }} {{ numbers | reject("odd") | list }} {{ mixed | select | list }} {{ mixed | reject | list }} {{ numbers | select("greaterthan", 4) | list }} {{ numbers | select(">=", 5) | list }} {{ mixed | select("string") | list }} {{ numbers | select("in", [1, 3]) | list }} {{ mixed | select("mapping") | list }}
{{ people | selectattr("age") | map(attribute="name") | list }} {{ people | selectattr("age", "equalto", 31) | map(attribute="name") | list }} {{ people | rejectattr("age", "defined") | list }} {{ people | selectattr("home.city", "defined") | list if no }} {{ people | rejectattr("tags") | map(attribute="name") | join(" ") }} {{ messages | selectattr("role", "==", "user") | list | length }} {{ messages | rejectattr("role", "in", ["user", "system"]) | list | length }}
{{ people[:3] | groupby("age") }} {% for g in people[:3] | groupby("age") %}{{ g.grouper }}={{ g.list | length }} {% endfor %}{% for age, list in people | groupby("age", default=0) %}{{ age }}:{{ list | map(attribute="name") | join("+") }} {% endfor %}{{ words | groupby(0) | map("first") | list }}
{{ numbers | list | first }} {{ "日本" | list }} {{ prices | list }} {{ missing | list }} {{ numbers | map("string") | join | length }} {{ numbers | attr("count") is defined }} {{ prices | attr("A") is defined }} {{ namespace(x=4) | attr("x") }}
{{ [3, 1] | sort | first }} {{ (3, 1) | sort }} {{ "cab" | sort | join }} {{ numbers | select("odd") | first }} {{ numbers | map("float") | sum }} {{ (numbers | select) is iterable }} {{ (numbers | map("string")) is sequence }}
{{ [1, [2, [3]]] | string | length }} {{ [{"a": {"b": 1}}, {"a": {"b": 0}}] | map(attribute="a.b") | sort | list }} {{ [true, false, 1] | unique | list }} {{ [1, 1.0, "1"] | unique | list }} {{ [none, missing] | unique | list | length }}
"""

LINES_TESTS = r"""
{% for v in mixed + [missing, "", "日", 0, -1.5, (1,), {}, range(2), wide] %}{{ v is defined }} {{ v is undefined }} {{ v is none }} {{ v is string }} {{ v is number }} {{ v is integer }} {{ v is float }} {{ v is boolean }} {{ v is mapping }} {{ v is sequence }} {{ v is iterable }} {{ v is callable }} {{ v is true }} {{ v is false }};{% endfor %}
{{ 4 is even }} {{ 4 is odd }} {{ 9 is divisibleby 3 }} {{ 9 is divisibleby(4) }} {{ 4.0 is even }} {{ true is odd }}
{{ 1 is eq 1 }} {{ 1 is equalto 2 }} {{ 1 is ne 2 }} {{ 2 is gt 1 }} {{ 2 is ge 2 }} {{ 1 is lt 2 }} {{ 2 is le 1 }} {{ 2 is greaterthan 1 }} {{ 2 is lessthan 1 }} {{ "a" is in "abc" }} {{ 1 is in [1] }} {{ 1 is not in [1] }}
{{ "abc" is lower }} {{ "ABC" is upper }} {{ "1" is upper }} {{ none is sameas none }} {{ 1 is sameas true }} {{ yes is sameas true }} {{ prices is sameas prices }}
{{ "upper" is filter }} {{ "nope" is filter }} {{ "odd" is test }} {{ "nope" is test }} {{ "==" is test }} {{ range is callable }} {{ "x".upper is callable }} {{ namespace is callable }} {{ missing is callable }}
{{ missing is defined and missing.x }} {{ missing is not defined }} {{ not missing is defined }} {{ missing is defined or 5 }} {{ 5 is defined if 0 else 1 }} {{ seven is number and seven > 5 }} {{ seven + 1 is number }} {{ "a" ~ 1 is string }}
{{ namespace(a=1) is mapping }} {{ namespace(a=1) is iterable }} {{ namespace(a=1) is defined }} {{ prices.items() is sequence }} {{ prices.keys() is iterable }} {{ prices.items is callable }} {{ loop is defined }} {{ (1 if no) is undefined }}
{{ 1 is not none }} {{ none is not none }} {{ messages is iterable and messages is not string and messages is not mapping }} {{ messages[0].content is string }} {{ messages[0].tool_calls is defined }} {{ [] is true }} {{ 1 is true }}
"""

LINES_ERRORS = r"""
{{ missing.attribute }}
{{ missing["key"] }}
{{ prices.zz.deeper }}
{{ missing + 1 }}
{{ 1 + "a" }}
{{ "a" + 1 }}
{{ "a" + none }}
{{ [1] + (2,) }}
{{ 1 / 0 }}
{{ 1 // 0 }}
{{ 1 % 0 }}
{{ 1 < "a" }}
{{ none < 1 }}
{{ {} < {} }}
{{ missing < 1 }}
{{ missing() }}
{{ "x"() }}
{{ none | length }}
{{ 5 | length }}
{{ 5 | list }}
{{ none | join }}
{% for x in none %}{% endfor %}
{% for x in 5 %}{% endfor %}
{% for a, b in [1, 2] %}{% endfor %}
{% for a, b in [(1, 2, 3)] %}{% endfor %}
{{ raise_exception("no way") }}
{{ raise_exception() }}
{{ 1 in 5 }}
{{ 1 in "abc" }}
{{ [] in {} }}
{{ {[]: 1} }}
{{ {{}: 1} }}
{{ missing | tojson }}
{{ range(5) | tojson }}
{{ [1] | map("upper") | tojson }}
{{ "a".join([1]) }}
{{ "abc".index("z") }}
{{ "abc".split("") }}
{{ [3, "a"] | sort }}
{{ [1, "a"] | sum }}
{{ ["a"] | sum }}
{{ "x" | nofilter }}
{{ "x" is notest }}
{% if no %}{{ "x" | nofilter }}{% endif %}fine
{% if yes %}{{ "x" | nofilter }}{% endif %}
{{ "x" | nofilter if no else "fine" }}
{{ "x" | default("y", "z", "too many") }}
{{ "x" | default(nope=1) }}
{{ "x" | replace("a") }}
{{ "x" | truncate(2) }}
{% include "x" %}
{% extends "x" %}
{% import "x" as y %}
{% nope %}
{% if %}{% endif %}
{% if yes %}
{% endif %}
{% for x in %}{% endfor %}
{% for x in numbers %}
{{ 1 +
{{ "open }}
{{ (1 }}
{{ [1 }}
{{ 1) }}
{{ }}
{% %}
{{ a b }}
{{ 1 2 }}
{# open
{% raw %}
{% set 1 = 2 %}
{% set x.y = 2 %}
{% set none = 2 %}
{% set a, b = 1 %}
{% set a, b = 1, 2, 3 %}
{% break %}
{% macro f() %}{% break %}{% endmacro %}
{% for x in numbers %}{% set loop = 1 %}{% endfor %}
{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}
{% macro f(a) %}{% endmacro %}{{ f(b=1) }}
{% macro f(a) %}{% endmacro %}{{ f(1, a=1) }}
{% macro f(a) %}{{ a.b }}{% endmacro %}{{ f() }}
{% macro f(a=1, b) %}{% endmacro %}
{% macro f() %}{% endmacro %}{% call f() %}{% endcall %}
{% call 5 %}{% endcall %}
{{ numbers.append(1) }}
{{ prices.update({}) }}
{{ numbers.append is defined }}
{{ "x".__class__.__name__ }}
{% set ns = namespace(_x=1) %}
{% set ns = namespace() %}{% set ns._x = 1 %}
{% set ns = namespace() %}{{ ns.x.y }}
{% set d = {} %}{% set d.x = 1 %}
{{ range(100001) | length }}
{{ range(100000) | length }}
{{ range() }}
{{ range(1, 2, 0) }}
{{ range("a") }}
{{ "abc"[::0] }}
{{ text["a":] }}
{{ nothing[1:] }}
{{ seven[:] }}
{{ "%d" % "x" }}
{{ "%s %s" % ("a",) }}
{{ "%s" % ("a", "b") }}
{{ "%z" % 1 }}
{{ "{}".format() }}
{{ "{:d}".format("x") }}
{{ "{".format() }}
{{ "}".format() }}
{{ "{:q}".format(1) }}
{{ loop.index }}
{{ caller() }}
{{ -"a" }}
{{ -missing }}
{{ not missing }}
{{ "a" * "b" }}
{{ "a" - "b" }}
{{ 5[0] is defined }}
{{ [1, 2][1.0] is defined }}
{{ numbers | batch(0) | list }}
{{ 1 if }}
{{ x is }}
{{ x | }}
{{ 1 is defined is defined }}
{{ f(a=1, 2) }}
{{ f(**5) }}
{{ dict(5) }}
{{ dict([(1, 2, 3)]) }}
{{ cycler() }}
{{ 1 = 2 }}
{{ a := 1 }}
{{ 1 $ 2 }}
{{ 'unknown escape \d is kept' }}
{{ '\x4' }}
{{ 0777 }}
{{ 1.e5 }}
{{ 1__0 }}
{{ items | first if missing else "ok" }}
{{ strftime_now() }}
{% else %}
{% endfor %}
{% for x in numbers %}{% endif %}
{% if yes %}{% endfor %}
{% set x %}
{% filter %}x{% endfilter %}
{% filter upper %}x
{% generation %}x
{{ messages[0] | join("x", 1, 2, 3) }}
{{ prices["A"]["x"] is defined }}
{{ text.nope() }}
{{ text.nope is defined }}
{{ messages[0].content.nope }}
{{ (1, 2) | tojson(5) }}
{{ {"a": 1} | tojson(separators=1) }}
{{ {(1, 2): 3} | tojson }}
{{ 1 | round(1, "nope") }}
{{ prices | dictsort(by="nope") }}
{{ prices | dictsort(by="value") }}
{{ 5 | items | list }}
{{ 5 | slice(0) | list }}
{{ numbers | slice(-1) | list }}{{ numbers | batch(-1) | list }}
{#
{{
{%
{{ missing[1:] }}
{{ numbers[missing:] is defined }}
{{ prices[1:2] is defined }}
{{ loop }}
{{ 10 ** 400 * 1.0 is number if no else "x" }}
"""

BLOCKS_WHITESPACE = """
#### block lines vanish
a
{% if yes %}
b
{% endif %}
c
#### indentation before a block vanishes
a
  {% if yes %}
  b
    {% endif %}
  c
#### a variable keeps its line
a
  {{ seven }}
b
#### minus on both sides
a

  {%- if yes -%}

  b

  {%- endif -%}

  c
#### minus on variables
a   {{- seven -}}   b {{ seven -}}
   c
#### plus keeps
a
  {%+ if yes +%}
b
  {%+ endif %}
c
#### plus at the end of a block keeps the newline
{% if yes +%}
x{% endif +%}
y
#### comments
a
  {# gone #}
b {# in line #} c
{#- tight -#}
d {#+ kept +#}
e
#### comment over lines
a {# one
two %} {{ three }} #}
b
#### text before a block on its line stays
a {% if yes %} b {% endif %} c
x  {% if yes %}
y
#### two blocks on a line
  {% if yes %}{% if yes %}
a
  {% endif %}{% endif %}
b
#### raw
{% raw %}{{ not }} {% a %} {# tag #}{% endraw %}.
{%- raw -%}
   {{ x }}
{%- endraw -%}
   end
#### raw keeps its first newline
{% raw %}
a
  {% endraw %}
b
#### trailing newlines

a


#### no text at all
#### only a block
{% set x = 1 %}
#### blank lines between blocks
{% set x = 1 %}

{% set y = 2 %}

{{ x }}{{ y }}
#### tabs and form feeds
a
\t{% if yes %}
\tb
\x0c {% endif %}
c
#### braces in text
{ a } {% raw %}{%{% endraw %} }} %} {{ "}}" }} {{ "{%" }} {{ {"a": {"b": 1}}["a"] }} #} {{ '#}' }}
#### dict at the end of a variable
{{ {'a': {'b': 1}} }}{{ {'a': 1}}}
#### tag over lines
{{
  seven
  +
  1
}}{% set
 x = [
   1,
   2,
 ]
%}{{ x }}
#### minus sign before the end of a tag
{{ 5 -}} x {{ - 5 }} {{-5}} {{ 1 -2 }}
#### plus before a variable ends is an operator
{{+5}} {{ 1 +2 }}
#### first line indented
   {% if yes %}
x
   {% endif %}
#### a comment after text
x {# c #}
y
{# c #}  z
#### whitespace of other kinds is stripped by minus
a\u00a0\u2003 {%- if yes -%} \u3000\u00a0b{% endif %}
#### a newline in a string literal
{{ "a
b" }}
#### end of template without newline
{% if yes %}x{% endif %}"""

BLOCKS_CONTROL = """
#### if elif else
{% if no %}a{% elif zero %}b{% elif seven %}c{% else %}d{% endif %}{% if empty %}a{% else %}b{% endif %}{% if nothing is none %}c{% endif %}{% if not missing %}d{% endif %}{% if [] or {} %}x{% else %}e{% endif %}
#### for with else
{% for x in numbers %}{{ x }}{% else %}none{% endfor %}|{% for x in [] %}{{ x }}{% else %}none{% endfor %}|{% for x in missing %}x{% else %}undefined{% endfor %}
#### loop variables
{% for x in words %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }} {{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {{ loop.cycle("odd", "even") }}
{% endfor %}
#### loop.changed
{% for x in [1, 1, 2, 2, 1] %}{{ loop.changed(x) }} {% endfor %}{% for x in numbers %}{{ loop.changed(x, 1) }}{% endfor %}
#### loop previtem and nextitem at the ends
{% for x in [1, 2] %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{% if loop.nextitem is defined and loop.nextitem == 2 %}!{% endif %}{% endfor %}
#### loop filter
{% for x in numbers if x > 3 %}{{ loop.index }}/{{ loop.length }}:{{ x }}{% if not loop.last %}, {% endif %}{% endfor %}|{% for x in numbers if x > 100 %}x{% else %}none{% endfor %}
#### loop filter sees changes made by the body
{% set ns = namespace(stop=false) %}{% for x in numbers if not ns.stop %}{{ x }}{% if x == 9 %}{% set ns.stop = true %}{% endif %}{% endfor %}
#### loop over a generator
{% for x in numbers | map("string") %}{{ loop.index }}{{ x }}{{ loop.last }} {% endfor %}{% for x in numbers | select("odd") %}{{ loop.length }}{{ x }}{{ loop.revindex }} {% endfor %}
#### a generator is walked once
{% set g = numbers | map("string") %}{{ g | join }}|{{ g | join }}|{{ g is iterable }}
#### unpacking
{% for k, v in prices.items() %}{{ k }}={{ v }};{% endfor %}{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}{% for a, b in ["xy", [1, 2]] %}{{ a }}-{{ b }} {% endfor %}{% for k in prices %}{{ k }}{% endfor %}{% for c in "日本" %}[{{ c }}]{% endfor %}
#### break and continue
{% for x in numbers %}{% if x == 3 %}{% continue %}{% endif %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}|{% for x in numbers %}{% for y in numbers %}{% if y == 9 %}{% break %}{% endif %}{{ y }}{% endfor %};{% endfor %}
#### break in the first pass and else
{% for x in numbers %}{% break %}{% else %}else{% endfor %}|{% for x in numbers %}{% if loop.index == 2 %}{% break %}{% endif %}{% else %}else{% endfor %}|{% for x in numbers %}{% continue %}{% else %}else{% endfor %}
#### nested loops and the outer loop
{% for a in [1, 2] %}{% set outer = loop %}{% for b in "xy" %}{{ outer.index }}{{ loop.index }}{{ a }}{{ b }} {% endfor %}{{ loop.index }}{% endfor %}
#### recursive loop
{% for n in tree recursive %}{{ n.v }}@{{ loop.depth }}{% if n.kids %}({{ loop(n.kids) }}){% endif %}{% if not loop.last %},{% endif %}{% endfor %}
#### loop over a range
{% for i in range(3) %}{{ i }}{% endfor %}{% for i in range(10, 0, -4) %}{{ i }},{% endfor %}
#### set does not leave a loop
{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = 10 + i %}{{ x }} {% endfor %}{{ x }}
#### set in an if leaves it
{% if yes %}{% set x = 5 %}{% endif %}{{ x }}{% if no %}{% set y = 5 %}{% endif %}{{ y is defined }}
#### a variable of the context is shadowed in a loop only
{% for i in [1, 2] %}{{ seven }}{% set seven = i %}{{ seven }} {% endfor %}{{ seven }}{% set seven = 8 %}{{ seven }}
#### a loop variable hides and comes back
{% set x = "out" %}{% for x in [1, 2] %}{{ x }}{% endfor %}{{ x }}
#### namespace
{% set ns = namespace(count=0, items=[]) %}{% for x in numbers %}{% set ns.count = ns.count + x %}{% set ns.items = ns.items + [x] %}{% endfor %}{{ ns.count }} {{ ns.items }} {{ ns.nope is defined }} {{ ns["count"] }} {{ ns }}
#### namespace from a dict
{% set ns = namespace({"a": 1}, b=2) %}{{ ns.a }}{{ ns.b }}{% set ns.a, ns.b = 3, 4 %}{{ ns.a }}{{ ns.b }}
#### set several names
{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set a, b = b, a %}{{ a }}{{ b }}{% set c = 1, 2 %}{{ c }}{% set (d, e) = "xy" %}{{ d }}{{ e }}
#### set block
{% set x %}a {{ seven }}{% set inner = 1 %}
b{% endset %}[{{ x }}]{{ x | length }}{{ inner is defined }}{% set y | upper | trim %} abc {% endset %}[{{ y }}]
#### with
{% with a = 1, b = seven %}{{ a }}{{ b }}{% set c = 3 %}{{ c }}{% endwith %}{{ a is defined }}{{ c is defined }}{% with %}{% set q = 1 %}{% endwith %}{{ q is defined }}{% with seven = 1, x = seven %}{{ seven }}{{ x }}{% endwith %}
#### filter block
{% filter upper | replace("A", "4") %}a {{ text }}{% set z = 1 %}{% endfilter %}{{ z is defined }}{% filter indent(2, true) %}a
b{% endfilter %}
#### generation block
{% for m in messages %}{% if m.role == "assistant" %}{% generation %}{% set x = 1 %}[{{ m.content }}]{% endgeneration %}{{ x is defined }}{% endif %}{% endfor %}
#### print tag
{% print seven, "a" %}{% print 1 %}
#### colons after tags
{% if yes: %}a{% endif %}{% for x in [1]: %}{{ x }}{% endfor %}
#### cycler and joiner
{% set c = cycler("a", "b", "c") %}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.next() }}{{ c.next() }}{{ c.reset() }}{{ c.current }}{% set j = joiner("; ") %}{% for x in numbers %}{{ j() }}{{ x }}{% endfor %}{% set k = joiner() %}{{ k() }}{{ k() }}
#### strftime
{{ strftime_now("%Y-%m-%d %H:%M:%S") }} {{ strftime_now("%d %b %Y, %A %B %a %j %y %I %p %U %w %%") }} {{ strftime_now("%-d/%-m %e %F %T %D %c %x %X [%f%z%Z]") }} {{ strftime_now("") }} {{ strftime_now is defined }} {{ strftime_now("日 %Y") }}
#### tuple in a condition and in a loop
{% if 1, 2 %}a{% endif %}{% for x in 1, 2, 3 %}{{ x }}{% endfor %}{% for x in (1, 2) + (3,) %}{{ x }}{% endfor %}
#### for over an inline if
{% for x in (numbers if yes else []) %}{{ x }}{% endfor %}{% for x in numbers if yes %}{{ x }}{% endfor %}
#### loop length of a dict and a string
{% for k in prices %}{{ loop.length }}{% endfor %}{% for c in "日本" %}{{ loop.length }}{{ loop.revindex }}{% endfor %}
#### empty loop bodies
{% for x in numbers %}{% endfor %}{% if yes %}{% endif %}{% set x %}{% endset %}[{{ x }}]
#### deep attributes
{% for p in people %}{{ p.home.city | default("?") if p.home is defined else "-" }} {% endfor %}
#### loop controls inside a set block
{% for x in numbers %}{% set y %}{% if x == 3 %}{% continue %}{% endif %}{{ x }}{% endset %}{{ y }}{% endfor %}
"""

BLOCKS_MACROS = """
#### arguments and defaults
{% macro f(a, b=2, c=a) %}[{{ a }},{{ b }},{{ c }}]{% endmacro %}{{ f(1) }}{{ f(1, 3) }}{{ f(1, c=4) }}{{ f(b=5, a=6) }}{{ f() }}
#### varargs and kwargs
{% macro f(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, 3, x=4) }}{{ f(*[1, 2], **{"k": 5}) }}{{ f() }}
#### caller
{% macro box(t) %}<{{ t }}>{{ caller() }}</{{ t }}>{% endmacro %}{% call box("b") %}in {{ seven }}{% endcall %}
#### caller with arguments
{% macro each(list) %}{% for x in list %}{{ caller(x, loop.index) }}{% endfor %}{% endmacro %}{% call(v, i=0) each(numbers) %}{{ i }}:{{ v }} {% endcall %}
#### caller is optional
{% macro m() %}{% if caller is defined and caller %}{{ caller() }}{% else %}none{% endif %}{% endmacro %}{{ m() }}{% call m() %}x{% endcall %}
#### a macro sees what is set around it, when it is called
{% set x = 1 %}{% macro f() %}{{ x }}{{ seven }}{% endmacro %}{{ f() }}{% set x = 2 %}{{ f() }}{% for x in [7] %}{{ f() }}{% endfor %}
#### a macro does not set what is around it
{% set x = 1 %}{% macro f() %}{% set x = 5 %}{{ x }}{% endmacro %}{{ f() }}{{ x }}
#### recursion
{% macro fact(n) %}{{ 1 if n < 2 else n * (fact(n - 1) | int) }}{% endmacro %}{{ fact(10) }}{% macro walk(t) %}{% for n in t %}{{ n.v }}{% if n.kids %}({{ walk(n.kids) }}){% endif %}{% endfor %}{% endmacro %}{{ walk(tree) }}
#### the result is a string
{% macro f() %} x {% endmacro %}{{ f() | trim | length }}{{ f().strip() ~ "y" }}{{ "x" in f() }}{% set r = f() %}{{ r == " x " }}{% if f().startswith(" x") %}yes{% endif %}{{ f() | replace("x", "z") }}
#### a macro is defined where it is reached
{{ f is defined }}{% macro f() %}a{% endmacro %}{{ f is defined }}{{ f is callable }}{% if no %}{% macro g() %}{% endmacro %}{% endif %}{{ g is defined }}{{ f.name }} {{ f }}
#### macros inside loops and macros
{% for x in [1, 2] %}{% macro f(a) %}{{ a }}{{ x }}{% endmacro %}{{ f("i") }}{% endfor %}{{ f is defined }}{% macro outer(v) %}{% macro inner() %}<{{ v }}>{% endmacro %}{{ inner() }}{% endmacro %}{{ outer(3) }}
#### macros as arguments
{% macro twice(g) %}{{ g() }}{{ g() }}{% endmacro %}{% macro h() %}h{% endmacro %}{{ twice(h) }}
#### an argument named like a variable
{% macro f(seven) %}{{ seven }}{% endmacro %}{{ f(1) }}{{ seven }}{{ f(seven) }}
#### default refers to a global set later
{% macro f(a=later) %}{{ a }}{% endmacro %}{% set later = 9 %}{{ f() }}
#### nested call blocks
{% macro a() %}a{{ caller() }}{% endmacro %}{% macro b() %}b{{ caller() }}{% endmacro %}{% call a() %}1{% call b() %}2{% endcall %}{% endcall %}
#### macros and white space
{%- macro f(x) -%}
    {{ x }}
{%- endmacro -%}
[{{ f(1) }}]
#### explicit caller argument
{% macro f(caller=none) %}{{ caller() if caller else "no" }}{% endmacro %}{{ f() }}{% call f() %}x{% endcall %}
"""

BLOCKS_CONVERSATIONS = """
#### plain chat
{% for message in messages %}{{ '<|' + message['role'] + '|>\\n' + message['content'] | trim + eos_token + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}
#### system first, roles checked
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content %}
    {%- set rest = messages[1:] %}
{%- else %}
    {%- set rest = messages %}
{%- endif %}
{{- bos_token }}
{%- for m in rest %}
    {%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate') }}
    {%- endif %}
    {%- if loop.first and system is defined %}
        {{- '[' ~ system ~ ']' }}
    {%- endif %}
    {{- m.role ~ ': ' ~ m.content | trim ~ '\\n' }}
{%- endfor %}
#### tools as json lines
{%- for tool in tools %}
{{ tool | tojson }}
{%- for name, spec in tool.function.parameters.properties | dictsort %}

// {{ name }}: {{ spec.type }}{{ " required" if name in (tool.function.parameters.required or []) }}
{%- endfor %}
{%- endfor %}
#### schema walked by a macro
{%- macro kind(s) -%}
{%- if s.type == "array" -%}list[{{ kind(s["items"]) }}]{%- elif s.enum is defined -%}{{ s.enum | join("|") }}{%- elif s.type == "object" -%}{ {%- for k, v in s.properties.items() -%}{{ k }}: {{ kind(v) }}{{ ", " if not loop.last }}{%- endfor -%} }{%- else -%}{{ s.type }}{%- endif -%}
{%- endmacro -%}
{% for t in tools %}{{ t.function.name }}({{ kind(t.function.parameters) }})
{% endfor %}
#### the last user message
{% set ns = namespace(last=-1) %}{% for m in messages[::-1] %}{% set i = messages | length - 1 - loop.index0 %}{% if ns.last < 0 and m.role == "user" %}{% set ns.last = i %}{% endif %}{% endfor %}{{ ns.last }}
#### content as text or parts
{%- macro show(content) -%}
{%- if content is string -%}{{ content }}{%- elif content is iterable -%}{%- for part in content -%}{%- if part.type == "text" or "text" in part -%}{{ part.text }}{%- else -%}<{{ part["type"] }}>{%- endif -%}{%- endfor -%}{%- endif -%}
{%- endmacro -%}
{{ show(messages[0].content) }}|{{ show([{"type": "text", "text": "a"}, {"type": "image"}]) }}|{{ show(none) }}
"""
