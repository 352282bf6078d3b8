"""The templates and conversations that make_chat_templates.py renders. All written for nibble."""

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "Where, e.g. \"Zürich\" <or> 'Ås' & more"},
        "days": {"type": ["integer", "null"], "minimum": 1, "default": 3},
        "units": {"type": "array", "items": {"type": "string", "enum": ["C", "F"]}},
        "place": {"type": "object", "properties": {"lat": {"type": "number"}}, "nullable": True},
    },
    "required": ["city"],
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "Weather of a city.",
                                      "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "now", "description": "The time.",
                                      "parameters": {"type": "object", "properties": {}}}},
]

USER = {"role": "user", "content": "  Hello <b>\"you\"</b>, ünïcode 🙂\nsecond line "}
SYSTEM = {"role": "system", "content": "Be brief.\nAnd kind."}
ANSWER = {"role": "assistant", "content": "Hi there."}
THOUGHT = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nIt is 4."}
REASONED = {"role": "assistant", "content": "It is 4.", "reasoning_content": "2+2, so 4"}
CALL = {"id": "call00001", "type": "function",
        "function": {"name": "weather", "arguments": {"city": "Zürich", "days": 2, "ok": True,
                                                       "none": None, "f": 1.5, "l": ["a", {"b": 1}]}}}
CALLS = {"role": "assistant", "content": "", "tool_calls": [CALL]}
CALLS_TEXT = {"role": "assistant", "content": "Let me look.", "tool_calls": [
    {"id": "call00001", "type": "function",
     "function": {"name": "weather", "arguments": "{\"city\": \"Ås\"}"}},
    {"id": "call00002", "type": "function", "function": {"name": "now", "arguments": "{}"}}]}
CALLS_NULL = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "name": "weather", "tool_call_id": "call00001",
          "content": "{\"temperature\": 21.5}"}
RESULT2 = {"role": "tool", "name": "now", "tool_call_id": "call00002", "content": "12:00"}
PARTS = {"role": "user", "content": [{"type": "text", "text": "What is this? "},
                                     {"type": "image", "image": "cat.png"},
                                     {"type": "text", "text": "And this?"}]}
TEXT_PARTS = {"role": "user", "content": [{"type": "text", "text": "Only text."}]}

CONVERSATIONS = {
    "user": [USER],
    "system": [SYSTEM, USER],
    "turns": [USER, ANSWER, {"role": "user", "content": "Again?"}],
    "system and turns": [SYSTEM, USER, ANSWER, {"role": "user", "content": "Again?"}, ANSWER],
    "thought": [USER, THOUGHT, {"role": "user", "content": "Sure?"}],
    "reasoned": [USER, REASONED, {"role": "user", "content": "Sure?"}, REASONED],
    "call": [SYSTEM, USER, CALLS, RESULT],
    "call and answer": [USER, CALLS, RESULT, ANSWER, {"role": "user", "content": "Thanks"}],
    "calls as text": [USER, CALLS_TEXT, RESULT, RESULT2],
    "call with null content": [USER, CALLS_NULL, RESULT],
    "parts": [PARTS],
    "text parts": [SYSTEM, TEXT_PARTS],
    "developer": [{"role": "developer", "content": "Dev."}, USER],
    "two users": [USER, USER],
    "late system": [USER, SYSTEM, USER],
    "starts with assistant": [ANSWER, USER],
    "empty content": [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}],
    "odd role": [{"role": "critic", "content": "Hm."}],
    "two calls": [USER, {"role": "assistant", "content": "Both.", "reasoning_content": "I need both.",
                         "tool_calls": [CALL, {"id": "call00002", "type": "function", "function": {
                             "name": "now", "arguments": {}}}]},
                  RESULT, RESULT2, REASONED],
    "system parts": [{"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
                     TEXT_PARTS, {"role": "assistant", "content": [{"type": "text", "text": "Yes."}]},
                     {"role": "user", "content": [{"type": "text", "text": "Go on."}]}],
}
PLAIN_TOOLS = [{"type": "function", "function": {
    "name": "search", "description": "Search.\nTwo lines.", "parameters": {
        "type": "object", "properties": {
            "q": {"type": "string", "description": "What"},
            "n": {"type": "integer", "description": "How many", "default": 10},
            "deep": {"type": "boolean", "description": "?"},
            "map": {"type": "object", "description": "Weights",
                    "additionalProperties": {"type": "number"}}},
        "required": ["q", "n"]},
    "return": {"type": "string", "description": "Found"}}}]
VARIANTS = {
    "plain": {},
    "prompt": {"add_generation_prompt": True},
    "tools": {"tools": TOOLS, "add_generation_prompt": True},
    "no thinking": {"add_generation_prompt": True,
                    "extra": {"enable_thinking": False, "thinking": False, "date_string": "x"}},
    "thinking": {"add_generation_prompt": True, "tools": TOOLS,
                 "extra": {"enable_thinking": True, "thinking": True, "reasoning_effort": "high",
                           "documents": [{"title": "T", "text": "Body"}],
                           "builtin_tools": ["browser", "python"]}},
    "plain tools": {"tools": PLAIN_TOOLS, "add_generation_prompt": True,
                    "extra": {"functions": "[search]", "datetime": "2026-03-04",
                              "tools_in_user_message": False, "xml_tools": ["a"],
                              "keep_cot": True, "clear_thinking": False}},
}
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def conversations():
    """Every conversation in every variant."""
    for name, messages in CONVERSATIONS.items():
        for variant, changes in VARIANTS.items():
            yield {"name": f"{name}, {variant}", "messages": messages, **changes}



# What the templates below see.
SHARED = {
    "messages": [SYSTEM, USER, ANSWER, {"role": "user", "content": "Again?", "name": "Zoë"}],
    "tools": TOOLS,
    **TOKENS,
    "extra": {
        "text": "  The quick brown-fox (jumped) over 'it'  ",
        "wide": "Straße ĳß ﬁn ΟΔΟΣ Σ 日本語 🙂 ǆ",
        "lines": "one\n  two\n\nthree\r\nfour\u2028five",
        "html": "<a href=\"x\">'&'</a>",
        "empty": "",
        "nothing": None,
        "yes": True,
        "no": False,
        "zero": 0,
        "seven": 7,
        "pi": 3.14159,
        "numbers": [5, 3, 9, 1, 3, 7],
        "mixed": [1, "two", 3.0, None, True, [4, "five"], {"six": 6}],
        "words": ["pear", "Apple", "fig", "apple", "Banana"],
        "people": [{"name": "Bo", "age": 31, "home": {"city": "Ås"}},
                   {"name": "al", "age": 25, "home": {"city": "Rom"}},
                   {"name": "Cy", "age": 31, "home": {}},
                   {"name": "di", "tags": ["x", "y"]}],
        "prices": {"b": 2.5, "A": 1, "c": None, "items": "shadow"},
        "tree": [{"v": 1, "kids": [{"v": 2, "kids": []}, {"v": 3, "kids": [{"v": 4, "kids": []}]}]},
                 {"v": 5, "kids": []}],
        "odd_text": "tab\there \\ slash \u0007 \u007f \u00ad \u200b 'both\" end",
    },
}


def cases_of(texts):
    """A case for each paragraph: its first line is `# name`, the rest is the template."""
    for paragraph in texts.split("\n#### ")[1:]:
        name, _, template = paragraph.partition("\n")
        yield {"name": name, "template": template}


def each_line(texts):
    """A case for each line, which is its own name."""
    for line in texts.strip().split("\n"):
        if line:
            yield {"name": line, "template": line}


def groups():
    import chat_template_texts as texts

    found = {}
    for name in dir(texts):
        if name.startswith("LINES_"):
            found[name[6:].lower()] = list(each_line(getattr(texts, name)))
        elif name.startswith("BLOCKS_"):
            found[name[7:].lower()] = list(cases_of(getattr(texts, name)))
    return found
