"""``minigrid-v0``: the grid worlds of MiniGrid and BabyAI, described in words.

The agent reads its mission, the direction that it faces, what it carries and the objects that it
sees, with steps forward and to the side; of walls it reads the distance to the one ahead. It acts
by one command a turn. MiniGrid: arXiv:2306.13831. BabyAI's levels: arXiv:1810.08272.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from envs.adapters.foreign import ForeignOptions, library
from envs.adapters.gymnasium import GymnasiumEnv
from envs.episode import Action, Reply
from envs.options import Card

COMMANDS = ("turn left", "turn right", "go forward", "pick up", "drop", "toggle", "done")
"""Commands, in the order of MiniGrid's actions. Some worlds have the first three only."""
_DIRECTIONS = ("east", "south", "west", "north")
"""Directions, in MiniGrid's order."""
_UNSOLVED = (
    "BabyAI-KeyInBox-v0", "BabyAI-OpenDoorsOrderN2Debug-v0", "BabyAI-OpenDoorsOrderN4Debug-v0",
    "BabyAI-PutNextS5N2Carrying-v0", "BabyAI-PutNextS6N3Carrying-v0",
    "BabyAI-PutNextS7N4Carrying-v0",
)  # fmt: skip
"""Levels in which BabyAI's scripted agent raises an error, or ends without a reward."""
_UNSEEN = ("unseen", "empty", "floor", "agent", "wall")
"""Cells that are not listed as objects."""


@dataclass(frozen=True, kw_only=True)
class MinigridOptions(ForeignOptions):
    """Options of the grid worlds."""

    level: str = "BabyAI-GoToLocal-v0"
    """Gymnasium id of a world of MiniGrid or BabyAI."""
    instructions: bool = True
    """Whether the system message states the rules."""


class MinigridEnv(GymnasiumEnv):
    """A world of MiniGrid; the reward is its own: 1 - 0.9 * steps / limit for a solved mission."""

    Options = MinigridOptions
    card = Card(
        agent="carries out a mission in a grid world, described in words",
        reward="1, minus up to 0.9 for the steps",
        needs="`pip install 'turnwise[minigrid]'`",
    )
    success_score = "solved"

    def __init__(self, options: MinigridOptions, services: Mapping[str, Any] | None = None) -> None:
        super().__init__(options, services)
        _quiet()
        gymnasium = library("gymnasium", "minigrid")
        if options.level not in gymnasium.registry or not options.level.startswith(
            ("MiniGrid-", "BabyAI-")
        ):
            raise ValueError(
                f"level ({options.level}) must be an id of MiniGrid, such as BabyAI-GoToLocal-v0"
            )
        if options.level == "MiniGrid-Playground-v0":
            raise ValueError(f"level ({options.level}) has no mission and no reward: name another")
        self._commands = COMMANDS[: _num_actions(self.make(), options.level)]
        # For the gold policy; copies of this environment share it.
        self._seeds: dict[str, int] = {}
        if options.instructions:
            self.system_prompt = (
                f"You walk in a grid. Write one command a turn: {', '.join(self._commands)}."
                + " Toggle opens a door or a box in front of you." * ("toggle" in self._commands)
                + " Done says that you are where you were to go." * ("done" in self._commands)
            )

    def make(self) -> Any:
        """A new world."""
        return library("gymnasium", "minigrid").make(cast(MinigridOptions, self.options).level)

    def observe(self, observation: Mapping[str, Any]) -> str:
        """The mission, the direction, the objects that the agent sees, and what it carries."""
        carried = self.state.env.unwrapped.carrying
        seen = [words for _, words in sorted(_objects(observation["image"]))]
        facing = _DIRECTIONS[int(observation["direction"])]
        return (
            f"Mission: {observation['mission']}.\n"
            f"You face {facing}. You see {', '.join(seen) or 'nothing'}."
        ) + (f"\nYou carry a {carried.color} {carried.type}." if carried else "")

    def act(self, text: str) -> int:
        """The number of a command.

        Raises:
            ValueError: the text is no command.
        """
        command = " ".join(text.split()).strip(".").lower()
        if command not in self._commands:
            raise ValueError(f"That is no command. Write one of: {', '.join(self._commands)}.")
        return self._commands.index(command)

    def turn(self, action: Action) -> Reply:
        """Carry out a command. The score is 1 for a solved mission."""
        reply = super().turn(action)
        if not reply.done:
            return reply
        return reply._replace(scores={"solved": float(reply.reward > 0)})

    def begin(self, task: int) -> str:
        """Start the world of a seed."""
        first = super().begin(task)
        self._seeds[first] = task
        return first

    def gold_policy(self) -> Callable[[str], str]:
        """BabyAI's scripted agent, which reads the whole world. Most of BabyAI's levels have one.

        It knows a world by its first observation, so worlds that look alike there are one to it.
        """
        if not self._is_solved:
            return super().gold_policy()
        moves: list[int] | None = None

        def act(observation: str) -> str:
            nonlocal moves
            if moves is None:
                moves, _ = self._solution(self._seeds[observation])
            return COMMANDS[moves.pop(0) if moves else 0]

        return act

    def best_return(self, task_index: int) -> float:
        """The return of BabyAI's scripted agent; 1 where there is none."""
        return self._solution(self.tasks[task_index])[1] if self._is_solved else 1.0

    @property
    def _is_solved(self) -> bool:
        level = cast(MinigridOptions, self.options).level
        return level.startswith("BabyAI-") and level not in _UNSOLVED

    def _solution(self, seed: int) -> tuple[list[int], float]:
        """The moves of BabyAI's scripted agent in the world of a seed, and its return."""
        world = self.make()
        world.reset(seed=seed)
        bot = library("minigrid.utils.baby_ai_bot", "minigrid").BabyAIBot(world.unwrapped)
        moves, reward, done = list[int](), 0.0, False
        while not done and len(moves) < self.options.max_turns:
            moves.append(int(bot.replan()))
            _, reward, terminated, truncated, _ = world.step(moves[-1])
            done = terminated or truncated
        world.close()
        return moves, float(reward)


def _num_actions(world: Any, level: str) -> int:
    """Number of actions of a world.

    Raises:
        ValueError: files of the world are missing.
    """
    if "-WFC-" in level:
        missing = library("gymnasium.error", "minigrid").DependencyNotInstalled
        try:
            world.reset(seed=0)
        except (missing, FileNotFoundError) as error:
            raise ValueError(
                f"level ({level}) needs pip install 'minigrid[wfc]', and the pattern images of "
                f"MiniGrid's repository, which its wheels lack ({error})"
            ) from error
    return int(world.action_space.n)


def _quiet() -> None:
    """Import MiniGrid. Its levels print each world that they reject; this leaves that out."""
    levels = library("minigrid.envs.babyai.core.roomgrid_level", "minigrid")
    levels.print = lambda *_: None  # type: ignore[attr-defined]


def _objects(view: Any) -> Iterator[tuple[tuple[int, int], str]]:
    """Distance and words of each object that the agent sees, and of the wall ahead.

    Args:
        view: type, colour and state of each cell: [width, height, 3]. The agent stands in the
            middle of the last row and looks towards the first.
    """
    names = library("minigrid.core.constants", "minigrid")
    width, height = view.shape[:2]
    column, row = width // 2, height - 1
    for x in range(width):
        for y in range(height):
            kind = names.IDX_TO_OBJECT[int(view[x, y, 0])]
            ahead, side = row - y, x - column
            if kind in _UNSEEN or ahead == side == 0:
                continue
            colour = names.IDX_TO_COLOR[int(view[x, y, 1])]
            state = ("open ", "closed ", "locked ")[int(view[x, y, 2])] if kind == "door" else ""
            article = "an" if state == "open " else "a"
            yield (ahead + abs(side), x), f"{article} {state}{colour} {kind} {_place(ahead, side)}"
    for y in range(row - 1, -1, -1):
        kind = names.IDX_TO_OBJECT[int(view[column, y, 0])]
        if kind == "wall":
            yield (row - y, column), f"a wall {_place(row - y, 0)}"
            return


def _place(ahead: int, side: int) -> str:
    """Where an object is, such as "2 steps forward and 1 step right"."""
    steps = []
    for number, direction in ((ahead, "forward"), (abs(side), "left" if side < 0 else "right")):
        if number:
            steps.append(f"{number} step{'s' * (number > 1)} {direction}")
    return " and ".join(steps)
