"""Models behind an OpenAI-compatible chat API: they read messages and return text, no token ids.

Episodes of such a model can be evaluated, but not trained on. It can also play a role of an episode
whose other roles are trained.
"""

from agents.chat.agent import ChatAgent
from agents.chat.client import ChatAnswer, ChatClient, ChatLimits, ChatModel
from agents.chat.policy import ChatPolicy

__all__ = ["ChatAgent", "ChatAnswer", "ChatClient", "ChatLimits", "ChatModel", "ChatPolicy"]
