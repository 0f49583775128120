"""Rule about tools: the model can read how to call each tool."""

from __future__ import annotations

import re
from collections.abc import Iterator

from envs.checks.probe import Probe
from envs.tool_env import ToolEnv, ToolOptions


def tools(probe: Probe) -> Iterator[str]:
    """Check that the system prompt or the first observation names every tool the model may call.

    The rule tests nothing under ``instructions=False``, which omits the names on purpose.
    """
    env = probe.env
    if not isinstance(env, ToolEnv) or not isinstance(env.options, ToolOptions):
        return
    if not env.options.instructions:
        return
    for task in probe.tasks:
        with probe.copies(1) as [copy]:
            first, _ = copy.reset(seed=probe.seed, options={"task": task})
            shown = f"{copy.system_prompt or ''}\n{first}\n{copy.tool_schemas or ''}"
        for name in (*env.own_tools, *env.named_tools):
            if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", shown, re.IGNORECASE):
                yield (
                    f"task {task}: neither the system prompt nor the first observation names the "
                    f"tool {name!r}: add self.tool_rules to self.system_prompt, or explain there "
                    f"how to call it"
                )
