"""Where a run's numbers go: metric sinks, and callbacks of the user's own.

:class:`Sink` and :class:`Callback` are the two classes to derive from; docs/tracking.md says how.
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
