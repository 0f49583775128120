"""Chat templates of published models: what the renderer writes, against the templates themselves.

    python -m benchmarks.models.templates [FOLDER]

FOLDER has ``*.jinja`` files; by default it is that of the installed ``trl`` package, which carries
the templates of some seventy models. Each is read by a tokenizer with the special tokens that it
writes. What must be equal to ``apply_chat_template`` of transformers:

- turns: the tokens between two answers, after each token that may end an answer.
- answer: a supervised answer, with the prompt before it and the token that ends it.
- thought: the same for an answer behind a thought, in the tags that models use.
- calls: a supervised tool call between a prompt with tools and the call's result.

A verdict is "equal", "refused" with one line, or the difference. Prints a table and ends with 1 if
anything differs.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from agents.renderer import Renderer
from agents.template import THOUGHTS
from envs.episode import ToolResults
from rl.data.conversations import Conversation, Exchange

EQUAL, REFUSED = "equal", "refused"
HERMES = f"{REFUSED}: the template writes no calls; they are written in Hermes's format"
DROPS = "equal to what a model samples; the template drops thoughts"
_SPECIAL = re.compile(
    r"<[|\uff5c][^\s'\"{}<>]{1,40}?[|\uff5c]>|</?(?:s|bos|eos|sop)>|\[gMASK\]|\[/?[A-Z]+_?[A-Z]+\]"
    r"|<(?:start|end)_of_[a-z]+>|<\|?[a-z_]+\|>|<\|[a-z_]+>|<turn\|>"
)
_ENDS = ("<|return|>", "<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<turn|>", "<|end|>", "</s>")
_TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a place.",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string", "description": "the place"}},
            "required": ["place"],
        },
    },
}
_QUESTION, _ANSWER = "What is 6 x 7?", "It is 42."
_WORDS = "Seven sixes."
_THOUGHT = f"<think>\n{_WORDS}\n</think>\n\n"


def main(words: Sequence[str]) -> int:
    """Print the verdicts of each template in a folder; the number of differences, at most 1."""
    folder = Path(words[0]) if words else _published()
    wrong = 0
    for path in sorted(folder.glob("*.jinja")):
        verdicts = dict(verdicts_of(path.read_text(encoding="utf-8")))
        found = [f"{name}: {verdict}" for name, verdict in verdicts.items() if verdict != EQUAL]
        wrong += sum(not verdict.startswith((EQUAL, REFUSED)) for verdict in verdicts.values())
        sys.stdout.write(f"{path.stem}: {'; '.join(found) or EQUAL}\n")
    sys.stdout.write(f"{wrong} differences\n")
    return min(wrong, 1)


def verdicts_of(source: str) -> Iterator[tuple[str, str]]:
    """Name and verdict of each check of one template."""
    tokenizer = tokenizer_for(source)
    try:
        renderer = Renderer(tokenizer)
    except ValueError as error:
        yield "template", f"{REFUSED}: {error}"
        return
    checks: Mapping[str, Callable[[Renderer], str]] = {
        "turns": _turns,
        "answer": lambda renderer: _taught(renderer, _ANSWER),
        "thought": lambda renderer: _taught(renderer, _THOUGHT + _ANSWER),
        "calls": _calls,
    }
    for name, check in checks.items():
        try:
            yield name, check(renderer)
        except ValueError as error:
            yield name, f"{REFUSED}: {error}"


def tokenizer_for(source: str) -> PreTrainedTokenizerFast:
    """A tokenizer of bytes with a template and the special tokens that the template writes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({letter: n for n, letter in enumerate(alphabet)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    specials = sorted({*_SPECIAL.findall(source)} - {"<|x|>"})
    end = next((token for token in _ENDS if token in specials), "<|endoftext|>")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made,
        bos_token="<bos>",
        eos_token=end,
        extra_special_tokens=[token for token in specials if token not in ("<bos>", end)],
    )
    tokenizer.chat_template = source
    return tokenizer


def _published() -> Path:
    found = importlib.util.find_spec("trl")
    if found is None or found.origin is None:
        raise SystemExit("give a folder of templates, or: pip install --no-deps trl")
    return Path(found.origin).parent / "chat_templates"


def _turns(renderer: Renderer) -> str:
    question, answer = {"role": "user", "content": _QUESTION}, {"role": "assistant"}
    follow = {"role": "user", "content": "Sure?"}
    anew = _rendered(renderer, [question, {**answer, "content": _ANSWER}, follow], prompt=True)
    expected = anew[anew.index(_ANSWER) + len(_ANSWER) :]
    unended = _text(renderer, renderer.extend("Sure?", last=None))
    if unended != expected:
        return f"{unended!r} instead of {expected!r}"
    closed = _rendered(renderer, [question, {**answer, "content": _ANSWER}], prompt=False)
    for end in renderer.end_token_ids:
        # The token that ended the answer stands in place of the template's, if that has one.
        name = _text(renderer, [end])
        text = _text(renderer, renderer.extend("Sure?", last=end))
        dropped = expected.removesuffix(text)
        allowed = {name} if closed.endswith(_ANSWER) else {name, _first_special(expected)}
        if not expected.endswith(text) or dropped not in {"", *allowed}:
            return f"after {name}: {text!r} instead of {expected!r}"
    return EQUAL


def _first_special(text: str) -> str:
    found = _SPECIAL.match(text)
    return found[0] if found else ""


def _taught(renderer: Renderer, text: str) -> str:
    conversation = Conversation((Exchange(observation=_QUESTION, action=text),))
    segment = conversation.to_segment(renderer)
    question = {"role": "user", "content": _QUESTION}
    # Where a template reads thoughts from a field, that is its form of a thought.
    fields = [{"content": _ANSWER, field: _WORDS} for field in THOUGHTS if text != _ANSWER]
    found: list[str] = []
    for said in (*fields, {"content": text}):
        anew = _rendered(renderer, [question, {"role": "assistant", **said}], prompt=False)
        if (_WORDS in anew) == (text != _ANSWER) and not (found and said["content"] == text):
            found.append(_compared(renderer, segment.token_ids, anew))
    if not found:
        first = _rendered(renderer, [question], prompt=True)
        anew = first + text.removeprefix(renderer.opening) + _closing(renderer)
        found = [DROPS + _compared(renderer, segment.token_ids, anew).removeprefix(EQUAL)]
    return EQUAL if EQUAL in found else found[0]


def _text(renderer: Renderer, token_ids: Sequence[int]) -> str:
    text = renderer.tokenizer.decode([*token_ids])
    assert isinstance(text, str)
    return text


def _closing(renderer: Renderer) -> str:
    return _text(renderer, renderer.end_token_ids[:1])


def _calls(renderer: Renderer) -> str:
    if not renderer.takes_tools:
        return f"{REFUSED}: the template shows no tools; they are described in words"
    if not renderer.template.writes_calls:
        return HERMES
    call = ("weather", {"place": "Rome"})
    tokens = renderer.begin(_QUESTION, None, [_TOOL])
    context, words = renderer.taught(tokens, "", [call])
    results = ToolResults("sunny", [("weather", "sunny")])
    tokens = [*context, *words, *renderer.observe(results, last=words[-1])]
    made: dict[str, Any] = {"id": "call00000", "type": "function"}
    made["function"] = {"name": call[0], "arguments": call[1]}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": _QUESTION},
        {"role": "assistant", "content": "", "tool_calls": [made]},
        {"role": "tool", "name": "weather", "content": "sunny", "tool_call_id": "call00000"},
    ]
    return _compared(renderer, tokens, _rendered(renderer, messages, prompt=True, tools=[_TOOL]))


def _compared(renderer: Renderer, tokens: Sequence[int], expected: str) -> str:
    text = _text(renderer, tokens)
    # Behind the token that ends an answer, templates write line breaks and end tokens.
    rest = expected.removeprefix(text) if expected.startswith(text) else "?"
    if not _SPECIAL.sub("", rest).strip():
        return EQUAL
    # One that separates answers by the next message's role writes nothing.
    if text == expected + _text(renderer, tokens[-1:]):
        return EQUAL
    return f"{text!r} instead of {expected!r}"


def _rendered(
    renderer: Renderer, messages: list[dict[str, Any]], *, prompt: bool, tools: Any = None
) -> str:
    options = {"tokenize": False, "add_generation_prompt": prompt, "tools": tools}
    try:
        text = renderer.tokenizer.apply_chat_template(messages, **options)
    except TypeError:
        # DeepSeek-V3's takes arguments as text.
        for call in (call for message in messages for call in message.get("tool_calls", ())):
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
        text = renderer.tokenizer.apply_chat_template(messages, **options)
    assert isinstance(text, str)
    return text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
