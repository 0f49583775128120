"""What ``async with`` does with sandboxes, sessions and snapshots."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Closed(ABC):
    """Closed at the end of ``async with``."""

    @abstractmethod
    async def close(self) -> None:
        """End what it stands for. Closing twice is harmless."""

    async def __aenter__(self) -> Self:
        """Return this object."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Call ``close``."""
        await self.close()


class Started(Closed):
    """Started by ``async with``, and closed at its end."""

    @abstractmethod
    async def start(self) -> None:
        """Make it usable."""

    async def __aenter__(self) -> Self:
        """Call ``start``."""
        await self.start()
        return self
