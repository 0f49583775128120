"""An endpoint with OpenAI's and Anthropic's APIs that records sampled tokens of any agent."""

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
