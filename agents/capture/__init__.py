"""An OpenAI-compatible endpoint that records sampled tokens, for agents written with any SDK."""

from agents.capture.episode import CapturedEpisode, CaptureLimits
from agents.capture.record import Capture, CapturedCall, CapturedTurn
from agents.capture.server import CaptureServer

__all__ = [
    "Capture",
    "CaptureLimits",
    "CaptureServer",
    "CapturedCall",
    "CapturedEpisode",
    "CapturedTurn",
]
