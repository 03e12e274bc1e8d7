"""What is known of a request's client without waiting for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from starlette.types import Scope

_EXTENSION = "evalution.peer"


class Peer(Protocol):
    """The client of one request, as the connection under it sees it.

    ASGI alone has a task and time-outs for this in each request; a short one costs as much as they.
    """

    @property
    def has_sent_all(self) -> bool:
        """Whether the whole body is here: `receive` gives it at once."""
        ...

    @property
    def takes_more(self) -> bool:
        """Whether there is room for what is sent: `send` returns at once."""
        ...

    @property
    def is_gone(self) -> bool: ...

    def call_when_gone(self, function: Callable[[], None]) -> Callable[[], None]:
        """Have it called should the client go away from now on; gives what ends that."""
        ...

    def drop(self) -> None:
        """End the connection at once; what was sent and isn't read yet is lost."""
        ...


def introduce(peer: Peer, scope: Scope) -> None:
    """Put it where `peer_of` finds it."""
    scope.setdefault("extensions", {})[_EXTENSION] = peer


def peer_of(scope: Scope) -> Peer | None:
    """None under a server other than this package's."""
    return cast("Peer | None", scope.get("extensions", {}).get(_EXTENSION))
