"""Named settings of ``rl.train``, from key to text."""

from __future__ import annotations

PRESETS: dict[str, dict[str, str]] = {
    "smoke": {
        "steps": "4",
        "prompts": "8",
        "group_size": "4",
        "eval.every": "2",
        "eval.tasks": "16",
        "eval.test_tasks": "32",
        "tiny.demonstrations": "400",
        "tiny.steps": "40",
        "tiny.warmup_steps": "5",
        # So short a warm start leaves a model that seldom ends what it says.
        "sampling.max_tokens": "96",
        "save_every": "2",
    },
}
"""``preset=smoke`` goes through everything once, in under a minute."""
