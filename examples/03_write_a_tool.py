"""A tool of your own: a typed function, checked arguments, and an episode that calls it.

Run with: python examples/03_write_a_tool.py

Prints:
    2 km are 2000 m
    convert: amount: Input should be a valid number...
    How many metres are ... km?
    ... m...
    {'right': 1.0}
"""

from __future__ import annotations

import asyncio

import envs
import tools
from tools.syntax import TAGS


@tools.tool
def convert(amount: float, unit: str = "km") -> str:
    """Convert a length to metres.

    Args:
        amount: How much.
        unit: One of mm, cm, m and km.
    """
    metres = {"mm": 0.001, "cm": 0.01, "m": 1.0, "km": 1000.0}
    if unit not in metres:
        raise tools.BadArguments(f"unit {unit!r} is not one of {', '.join(metres)}")
    return f"{amount * metres[unit]:.15g} m"


class MetresEnv(envs.ToolEnv[int, int]):
    """How many metres is it? The agent may call tools before it answers."""

    def __init__(self, options, services=None):
        kilometres = range(("train", "validation", "test").index(options.split), 3000, 3)
        super().__init__(options, kilometres, services, syntax=TAGS)
        self.stop, self.continues = self.syntax.stop, self.syntax.continues

    def begin(self, task):
        """Ask for one length."""
        self.state = task
        return f"How many metres are {task} km?"

    async def turn(self, action):
        """Call a tool, or compare the answer."""
        call = self.syntax.parse(action)
        if call is None:
            return envs.finish({"right": float(action.strip() == str(self.state * 1000))})
        result, record = await self.call(call)
        return envs.go_on(self.syntax.wrap(result.text), tool_calls=[record])


def main() -> None:
    print("2 km are", asyncio.run(convert({"amount": 2})).text)
    print(asyncio.run(convert({"amount": "two"})).error)
    tools.register("convert", convert)
    envs.register("metres-v0", MetresEnv)
    env = envs.make("metres", tools="convert", max_turns=3)
    question, _ = env.reset(seed=0)
    kilometres = question.split()[4]
    print(question)
    print(env.step(f'<convert> {{"amount": {kilometres}}} </convert>').observation)
    print(env.step(f"{kilometres}000").info["rewards"])
    env.close()


if __name__ == "__main__":
    main()
