"""Metric sinks, and callbacks of the user's own.

Derive from :class:`Sink` or :class:`Callback`; docs/tracking.md shows how.
"""

from rl.tracking.callback import Callback, register_callback
from rl.tracking.sink import Ending, RunInfo, Sink, SinkOptions, register_sink

__all__ = [
    "Callback",
    "Ending",
    "RunInfo",
    "Sink",
    "SinkOptions",
    "register_callback",
    "register_sink",
]
