"""The contract of a training backend; a class that has these members needs no base class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from pydantic import BaseModel


class TrainingBackend(Protocol):
    """Puts a model into memory, or a client of a training server, and hands it on.

    What stands under `backend.params` of a spec is validated by `Config` before the class is
    constructed with it, as keyword arguments. A constructor does nothing but keep them.
    """

    name: ClassVar[str]
    """What `backend.kind` says."""
    Config: ClassVar[type[BaseModel]]
    """Its params; with `extra="forbid"`."""

    def prepare(self, *, model: dict[str, Any], run_dir: str) -> dict[str, Any]:
        """The handles that a training loop, and an engine's `attach`, take the model from.

        It is called once. If it fails it frees what it took: without handles, nobody else can.

        Args:
            model: `name` (a Hub id, a path, `builtin:tiny`, a server's name), and where the spec
                says so `load_checkpoint_path`, `init_from_checkpoint`, `renderer_name` and fields
                of `evalution_core.Model`.
            run_dir: a folder that it may fill.
        """
        ...

    def teardown(self, handles: dict[str, Any]) -> None:
        """Free what `prepare` took. Called once with what it returned, also after a failure."""
        ...
