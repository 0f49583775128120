"""Notices about a run's prompts, for the user."""

from __future__ import annotations

from agents.published_templates import TEMPLATES
from agents.renderer import Renderer
from rl.settings.run import RunConfig


def rules_twice(config: RunConfig) -> list[str]:
    """A notice if prompts contain both the rules of a published prompt and of the environment."""
    name = config.chat.template
    if name not in TEMPLATES or not getattr(config.env.options, "instructions", False):
        return []
    return [
        f"{name} has rules of its own, and the environment's rules follow in the first message: "
        f"env.instructions=false omits the environment's"
    ]


def no_tools(config: RunConfig, renderer: Renderer) -> list[str]:
    """A notice if tool calls follow the chat template, but the template supports no tools."""
    if getattr(config.env.options, "syntax", "") != "chat" or renderer.takes_tools:
        return []
    return [
        "it does not support tools: the system message describes them, and calls are written in "
        "the format of Hermes"
    ]
