"""Writes what transformers renders from chat templates, for the tests of src/text.

    python tools/golden/make_chat_templates.py
        tests/golden/chat_templates/*.json, from the templates in chat_template_cases.py
    python tools/golden/make_chat_templates.py --templates FOLDER --out FOLDER
        one file for each *.jinja of a folder, each with the conversations of that module; for
        comparing with templates that are not in the tree (NIBBLE_CHAT_TEMPLATES names the folder)

Each case holds the template, its input and either `expected` or `error`, the exception that
transformers' engine ended with; `shared` holds what all cases of a file have in common. Needs
transformers and jinja2; their versions are recorded.
"""

import argparse
import json
import pathlib
from datetime import datetime

import jinja2
import transformers
from transformers.utils import chat_template_utils as utils

import chat_template_cases as cases

NOW = datetime(2026, 3, 4, 5, 6, 7)


class FixedTime(datetime):
    @classmethod
    def now(cls):
        return NOW


utils.datetime = FixedTime


def render(case):
    messages = utils._normalize_chat_messages(case["messages"])
    variables = {"add_generation_prompt": case.get("add_generation_prompt", False)}
    for name in ("bos_token", "eos_token"):
        if name in case:
            variables[name] = case[name]
    variables.update(case.get("extra", {}))
    rendered, _ = utils.render_jinja_template(
        conversations=[messages],
        tools=case.get("tools"),
        chat_template=case["template"],
        **variables,
    )
    return rendered[0]


def finished(case, shared):
    case = dict(case)
    try:
        case["expected"] = render({**shared, **case})
        case["expected"].encode("utf-8")
    except Exception as e:  # whatever the engine raises is the expected outcome
        case.pop("expected", None)  # text that is not UTF-8
        case["error"] = f"{type(e).__name__}: {e}"[:200]
    return case


def write(path, shared, group):
    done = [finished(case, shared) for case in group]
    versions = {"transformers": transformers.__version__, "jinja2": jinja2.__version__}
    document = {"made_by": "tools/golden/make_chat_templates.py", "versions": versions,
                "now": list(NOW.timetuple())[:6], "shared": shared, "cases": done}
    path.write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--templates", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    if options.templates is None:
        out = pathlib.Path(__file__).parents[2] / "tests/golden/chat_templates"
        for name, group in cases.groups().items():
            write(out / f"{name}.json", cases.SHARED, group)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    for path in sorted(options.templates.glob("*.jinja")):
        shared = {"template": path.read_text(encoding="utf-8"), **cases.TOKENS}
        write(options.out / f"{path.stem}.json", shared, cases.conversations())


if __name__ == "__main__":
    main()
