"""Engines whose sessions lack something, or never end."""

from __future__ import annotations

from dataclasses import dataclass, replace

from evalution_core import Capability, Model, SessionInfo
from evalution_enginekit.mock import MOCK_CAPABILITIES, Mock, MockSession


@dataclass(slots=True)
class SilentEngine(Mock):
    """Its sessions don't stream."""

    capabilities = MOCK_CAPABILITIES - {Capability.STREAM}

    def build(self, model: Model) -> MockSession:
        return _SilentSession("a", 512, 8)


class _SilentSession(MockSession):
    @property
    def info(self) -> SessionInfo:
        return replace(super().info, capabilities=SilentEngine.capabilities)


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
