"""Metric sinks, and callbacks.

To write your own, derive from :class:`Sink` or :class:`Callback`; docs/tracking.md shows how.
"""

from rl.tracking.callback import Callback, register_callback
from rl.tracking.sink import Ending, EpisodeText, RunInfo, Sink, SinkOptions, register_sink

__all__ = [
    "Callback",
    "Ending",
    "EpisodeText",
    "RunInfo",
    "Sink",
    "SinkOptions",
    "register_callback",
    "register_sink",
]
