"""The templates and conversations that make_chat_templates.py renders. All written for nibble."""

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "Where, e.g. \"Zürich\" <or> 'Ås' & more"},
        "days": {"type": "integer", "minimum": 1, "default": 3},
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
}
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
}


def conversations(source):
    """Every conversation in every variant, for one template."""
    for name, messages in CONVERSATIONS.items():
        for variant, changes in VARIANTS.items():
            yield {"name": f"{name}, {variant}", "template": source, "messages": messages,
                   "bos_token": "<s>", "eos_token": "</s>", **changes}


def groups():
    return {}
