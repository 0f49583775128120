"""Train an agent whose loop is written with the ``openai`` package alone.

Boxes hold a colour, or the number of another box. The agent looks into boxes until it finds the
colour. ``play`` is the whole agent; ``demonstrate`` is what ``model=tiny`` is warm-started on.

Run with: python examples/07_train_an_openai_agent.py (a smoke test; docs/external-agents.md has the
command that learns, and its success: 0.24 before, 0.91 after)
"""

from __future__ import annotations

import json
import random
import sys
import tempfile

from openai import AsyncOpenAI

CLIENT = AsyncOpenAI(base_url="http://127.0.0.1", api_key="none")  # To make one takes long.
COLOURS = ("red", "green", "blue", "black", "white")
LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "What a box holds.",
        "parameters": {"type": "object", "properties": {"box": {"type": "string"}}},
    },
}


async def play(task: dict, base_url: str) -> float:
    create = CLIENT.with_options(base_url=base_url).chat.completions.create
    messages: list = [{"role": "user", "content": f"Colour of box {task['start']}?"}]
    for _ in range(4):
        answer = await create(model="policy", messages=messages, tools=[LOOK])
        message = answer.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return float(message.content == task["colour"])
        for call in message.tool_calls:
            box = json.loads(call.function.arguments).get("box", "")
            found = task["boxes"].get(str(box), "nothing")
            messages.append({"role": "tool", "tool_call_id": call.id, "content": found})
    return 0.0


def tasks(split: str) -> list[dict]:
    return [make_task(random.Random(f"{split} {i}")) for i in range(4000)]


def make_task(rng: random.Random) -> dict:
    numbers = [str(n) for n in rng.sample(range(10, 100), rng.randint(1, 3))]
    colour = rng.choice(COLOURS)
    boxes = dict(zip(numbers, [*numbers[1:], colour], strict=True))
    return {"start": numbers[0], "boxes": boxes, "colour": colour}


def demonstrate(task: dict, seed: int) -> list[dict]:
    rng, box = random.Random(seed), task["start"]
    messages = [{"role": "user", "content": f"Colour of box {box}?"}]
    while box.isdigit():
        box = str(rng.randint(10, 99)) if rng.random() < 0.3 else box  # It errs.
        call = json.dumps({"name": "look", "arguments": {"box": box}})
        messages.append({"role": "assistant", "content": f"<tool_call>{call}</tool_call>"})
        box = task["boxes"].get(box, "nothing")
        messages.append({"role": "tool", "content": box})
    return [*messages, {"role": "assistant", "content": rng.choice([box, *COLOURS])}]


if __name__ == "__main__":
    from rl.train import main

    own = {"loop": "play", "tasks": "tasks", "demonstrations": "demonstrate"}
    words = [f"env.{key}={__file__}:{name}" for key, name in own.items()]
    sys.exit(main(["env=agent", *words, "preset=smoke", f"out={tempfile.mkdtemp()}/run"]))
