"""Engines whose sessions lack something, or never end."""

from __future__ import annotations

from dataclasses import dataclass

from evalution_core import Capability, Model
from evalution_enginekit.mock import MOCK_CAPABILITIES, Mock, MockSession


@dataclass(slots=True)
class SilentEngine(Mock):
    """It tells no text as it grows."""

    capabilities = MOCK_CAPABILITIES - {Capability.STREAM}

    def build(self, model: Model) -> MockSession:
        session = MockSession("a", 512, 8)
        session._capabilities = self.capabilities
        return session


@dataclass(slots=True)
class EndlessEngine(Mock):
    """Its window is longer than any test waits."""

    def build(self, model: Model) -> MockSession:
        return MockSession("a", 10_000_000, 8)


@dataclass(slots=True)
class LimitedEngine(Mock):
    @property
    def processes_limit(self) -> int | None:
        return 2

    @property
    def requests_limit(self) -> int | None:
        return 3
