"""Labels solution steps by trial: does a completion from the step reach a right answer?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import torch

from agents.completion import FinishReason
from envs.episode import Action
from envs.math.env import MathOptions
from envs.math.verification.verifier import MathVerifier, Outcome, UnverifiableGold, VerifierFailure
from envs.rewards.mathematics import MATH_REWARDS
from rl.data.steps import SEPARATOR, Solution
from rl.errors import RunFailure
from rl.preferences.losses import step_labels
from rl.run.process.command import report

if TYPE_CHECKING:
    from rl.runtime.runtime import Runtime

_REPORT_EVERY = 20


class StepRollouts:
    """Labels solutions with the policy and the verifier of an open runtime of ``math-v0``.

    Args:
        runtime: the open runtime.
        count: number of completions from each step.
        estimate: "hard" gives 1 if any completion is right; "soft" gives the share of right ones.
        seed: each completion's seed depends on this seed and on the numbers of its solution, step
            and completion.
    """

    def __init__(
        self, runtime: Runtime, count: int, estimate: Literal["hard", "soft"], seed: int
    ) -> None:
        self._runtime = runtime
        self._count, self._estimate, self._seed = count, estimate, seed
        options = cast(MathOptions, runtime.config.env.options)
        self._find_answer = MATH_REWARDS[options.reward].find_answer
        self._verifier = cast(MathVerifier, runtime.services["verifier"])
        env = runtime.collector("train", runtime.config.sampling_params).make_env()
        self._system = env.system_prompt

    async def label_all(
        self,
        solutions: Mapping[int, Solution],
        at_once: int,
        write: Callable[[dict[str, Any]], None],
    ) -> None:
        """Label solutions concurrently, and write each one as soon as it is labelled.

        Raises:
            PolicyFailure, RunFailure: as :meth:`label`. Solutions that were already written stay.
        """
        permits, done = asyncio.Semaphore(at_once), 0

        async def one(number: int, solution: Solution) -> None:
            nonlocal done
            async with permits:
                labels = await self.label(number, solution)
            write({**solution.row, "labels": labels, "row": number})
            done += 1
            if done % _REPORT_EVERY == 0:
                report(f"labelled {done}/{len(solutions)}")

        tasks = [asyncio.ensure_future(one(n, solution)) for n, solution in solutions.items()]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def label(self, number: int, solution: Solution) -> list[float]:
        """A label for each step. The last label is 1 if the solution's own answer is right, else 0.

        Raises:
            PolicyFailure: the policy failed.
            RunFailure: the row's answer cannot be verified.
        """
        last = len(solution.steps) - 1
        jobs = [
            self._goes_right(solution, step, (self._seed, number, step, rollout))
            for step in range(last)
            for rollout in range(self._count)
        ]
        whole = SEPARATOR.join(solution.steps)
        *outcomes, own = await asyncio.gather(*jobs, self._is_right(solution, whole))
        right = torch.tensor([*outcomes, *[own] * self._count]).view(last + 1, self._count)
        return [float(x) for x in step_labels(right, self._estimate)]

    async def _goes_right(self, solution: Solution, step: int, key: tuple[int, ...]) -> bool:
        renderer, config = self._runtime.renderer, self._runtime.config
        begun = SEPARATOR.join(solution.steps[: step + 1]) + SEPARATOR
        messages = [dict(message) for message in solution.messages]
        if self._system and messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": self._system})
        prompt = [*renderer.start(messages), *renderer.answer(begun)]
        seed = int(np.random.SeedSequence(key).generate_state(1)[0])
        sampling = replace(config.sampling_params, seed=seed, stop_token_ids=renderer.end_token_ids)
        completion = await self._runtime.policy.generate(prompt, sampling)
        self._runtime.activities.progressed("a completion from a step")
        if completion.finish_reason is not FinishReason.STOP_TOKEN:
            return False
        return await self._is_right(solution, begun + renderer.text(completion.token_ids))

    async def _is_right(self, solution: Solution, text: str) -> bool:
        found = self._find_answer(Action(text).content)
        if not found:
            return False
        try:
            outcome = await self._verifier.acheck(solution.answer, found)
        except (UnverifiableGold, VerifierFailure) as error:
            raise RunFailure(f"data, {solution.where}: {error}") from error
        return outcome is Outcome.RIGHT
