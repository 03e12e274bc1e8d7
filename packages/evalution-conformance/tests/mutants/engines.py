"""Faults of an engine as configuration, and of its sessions' lives."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import sys
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from evalution_core import (
    BaseEngine,
    BaseInferenceSession,
    Capability,
    GenerationOutput,
    GenerationRequest,
    Model,
    RequestFailure,
    SessionClosedError,
)
from evalution_core.options import option_fields
from mutants.catalogue import engine_fault, package_fault, session_fault, shared_fault
from mutants.toy import CAPABILITIES, Toy, ToyHooks, ToySession


@engine_fault("test_the_engine_is_found_by_its_name")
def hidden() -> BaseEngine:
    """The class can't be reached by module and name."""

    @dataclass(slots=True)
    class Hidden(Toy):
        pass

    return Hidden()


@engine_fault("test_an_unknown_option_is_refused_with_the_nearest_name")
@dataclass(slots=True, init=False)
class DropsUnknownOptions(Toy):
    """Unknown options are dropped silently."""

    def __new__(cls, *args: Any, **options: Any) -> Self:
        return object.__new__(cls)

    def __init__(self, **options: Any):
        known = {option.name for option in option_fields(Toy)}
        Toy.__init__(self, **{name: value for name, value in options.items() if name in known})


@engine_fault("test_an_ill_typed_option_is_refused")
@dataclass(slots=True)
class TakesAnyType(Toy):
    """Option values are not checked when the engine is constructed."""

    def __post_init__(self) -> None:
        return


@engine_fault("test_options_survive_the_round_trip")
@dataclass(slots=True)
class ForgetsAnOption(Toy):
    """`to_dict` leaves out an option."""

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in Toy.to_dict(self).items() if name != "batch_size"}


@engine_fault("test_the_options_have_a_json_schema")
@dataclass(slots=True)
class OpenSchema(Toy):
    """The options' schema admits anything."""

    @classmethod
    def options_schema(cls) -> dict[str, Any]:
        return {"type": "object", "properties": Toy.options_schema()["properties"]}


@engine_fault("test_secrets_are_redacted")
@dataclass(slots=True)
class ShowsSecrets(Toy):
    """`to_dict` shows secrets, as `asdict` does."""

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@engine_fault("test_the_engine_pickles")
@dataclass(slots=True)
class PicklesItsDefaults(Toy):
    """Pickling keeps the class and loses the options."""

    batch_size: int = dataclasses.field(default_factory=itertools.count(3).__next__)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()


@engine_fault("test_capabilities_and_limits_are_declared")
@dataclass(slots=True)
class AdmitsNothing(Toy):
    """The engine's `requests_limit` is 0."""

    @property
    def requests_limit(self) -> int | None:
        return 0


@engine_fault("test_attaching_is_declared_or_refused")
@dataclass(slots=True)
class AttachesToNothing(Toy):
    """`attach` loads a model of its own, whatever it is given."""

    def attach(
        self, handles: Mapping[str, Any], model: Model | None = None
    ) -> BaseInferenceSession:
        return self.build(model or Model(path="toy"))


@engine_fault("test_build_gives_a_session")
@dataclass(slots=True)
class DeclaresTooLittle(Toy):
    """The session can do what the engine doesn't declare."""

    capabilities = CAPABILITIES - {Capability.SEED}

    def build(self, model: Model) -> BaseInferenceSession:
        return ToySession(Toy(), model)


@engine_fault("test_ids_are_completed_as_their_text", "test_a_long_prompt_is_cut_from_the_left")
@dataclass(slots=True)
class IgnoresWhatItLacks(Toy):
    """What isn't declared is ignored, and there is no tokenizer to ask for more."""

    capabilities = CAPABILITIES - {Capability.TOKEN_IDS, Capability.TRUNCATION}

    def build(self, model: Model) -> BaseInferenceSession:
        return _WithoutTokenizer(self, model)


class _WithoutTokenizer(ToySession):
    tokenizer = None  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType]

    def change_request(self, request: GenerationRequest) -> GenerationRequest:
        return dataclasses.replace(request, input_ids=None, truncation="left")


@engine_fault("test_an_engine_holds_no_weights")
@dataclass(slots=True)
class KeepsItsWeights(Toy):
    """The engine keeps what `build` loaded, and is pickled with it."""

    def build(self, model: Model) -> BaseInferenceSession:
        self.endpoint = "w" * (1 << 17)
        return Toy.build(self, model)


@engine_fault("test_template_variables_are_not_dropped")
@dataclass(slots=True)
class DropsTemplateVariables(Toy):
    """Chat is rendered without the model's `chat_template_kwargs`."""

    def build(self, model: Model) -> BaseInferenceSession:
        return Toy.build(self, dataclasses.replace(model, chat_template_kwargs={}))


@session_fault("test_closing_twice_is_harmless")
class ClosesOnce(ToySession):
    """A second `close` fails."""

    _closed = False

    def close(self) -> None:
        if self._closed:
            raise RuntimeError("already closed")
        self._closed = True
        super().close()


@session_fault("test_describe_execution_is_json_safe_and_stable")
class DescribesObjects(ToySession):
    """`describe_execution` holds an object that JSON can't."""

    def _describe(self) -> dict[str, Any]:
        return {"device": object()}


@session_fault("test_describe_execution_reports_the_common_keys_and_no_counters")
class CountsInItsDescription(ToySession):
    """`describe_execution` counts requests."""

    _served = 0

    def change_output(
        self, request: GenerationRequest, output: GenerationOutput
    ) -> GenerationOutput:
        self._served += 1
        return output

    def _describe(self) -> dict[str, Any]:
        return {"requests": self._served}


@session_fault("test_describe_execution_reports_the_common_keys_and_no_counters")
class DescribesAnotherWindow(ToySession):
    """`describe_execution` has another window than the session."""

    def _describe(self) -> dict[str, Any]:
        return {"max_model_len": 99_999}


@session_fault("test_identity_is_json_safe_and_stable")
class NewEachTime(ToySession):
    """`identity` is another at each call."""

    def identity(self) -> dict[str, object] | None:
        self.salt += 1
        return {"toy": self.salt}


@session_fault("test_identity_is_json_safe_and_stable")
class KnownByItsName(ToySession):
    """`identity` is the same for weights that differ."""

    def identity(self) -> dict[str, object] | None:
        return {"toy": "toy"}


@shared_fault("test_the_files_of_the_model_answer")
class KeepsTheFirstWeights(ToyHooks):
    """Weights are loaded once in a process, whatever the path."""

    def load_weights(self, path: Path) -> None:
        return


@session_fault("test_with_closes_the_session")
class LeavesItselfOpen(ToySession):
    """`with` doesn't close the session."""

    def __exit__(self, *_: object) -> None:
        return


@session_fault("test_every_call_after_close_is_refused")
class AnswersWhenClosed(ToySession):
    """`close` closes nothing."""

    def close(self) -> None:
        return


@session_fault("test_gc_changes_no_answer")
class GcBreaksAWeight(ToySession):
    """`gc` frees what is still needed."""

    def gc(self) -> None:
        self.salt = 1


@session_fault("test_a_second_session_answers_alike")
class SharesItsRuntime(ToySession):
    """Closing one session breaks the others of the process."""

    def close(self) -> None:
        SharesItsRuntime.salt += 1
        super().close()


@session_fault("test_the_self_check_passes", "test_sums_and_counts_are_consistent")
class ShiftsPositions(ToySession):
    """Scores are off by one position."""

    def _score_tokens(self, spans: Sequence[Any]) -> Iterator[list[Any]]:
        yield [self.score_span([*s.token_ids[1:], s.token_ids[0]], s.start) for s in spans]


@session_fault("test_calls_from_other_threads_are_answered")
class BoundToAThread(ToySession):
    """Only the thread that called first may call again."""

    _owner: int | None = None

    def change_request(self, request: GenerationRequest) -> GenerationRequest:
        self._owner = self._owner or threading.get_ident()
        if threading.get_ident() != self._owner:
            raise RuntimeError("called from another thread")
        return request


@session_fault("test_calls_from_other_threads_are_answered")
class KeepsOneCallInHand(ToySession):
    """The requests of a call are kept on the session while it is under way."""

    _requests: Sequence[GenerationRequest] = ()

    def generate(
        self, requests: Sequence[GenerationRequest], *, batch_size: int | None = None
    ) -> list[GenerationOutput]:
        self._requests = requests
        time.sleep(0.01)
        return super().generate(self._requests, batch_size=batch_size)


@session_fault("test_every_call_after_close_is_refused")
class StreamsTextsWhenClosed(ToySession):
    """A stream of texts that begins after `close` is empty."""

    _closed = False

    def close(self) -> None:
        self._closed = True
        super().close()

    def loglikelihood_rolling_continuous(self, requests: Any, **options: Any) -> Iterator[Any]:
        call = super().loglikelihood_rolling_continuous
        return iter([(0, None)]) if self._closed else call(requests, **options)


@session_fault("test_closing_ends_an_open_stream")
class EndsQuietly(ToySession):
    """A stream just ends when the session is closed, as if all were answered."""

    def generate_continuous(
        self, requests: Iterable[tuple[Any, GenerationRequest]], *, batch_size: int | None = None
    ) -> Iterator[tuple[Any, GenerationOutput | RequestFailure]]:
        try:
            yield from super().generate_continuous(requests, batch_size=batch_size)
        except SessionClosedError:
            return


_ENGINE = """\
from dataclasses import dataclass
from mutants.toy import Toy


@dataclass(slots=True)
class Acme(Toy):
    pass
"""
_METADATA = "Metadata-Version: 2.4\nName: {name}\nVersion: 1.0\n"
_LICENCE = "License-Expression: MIT\n"
_RANGE = "Requires-Dist: evalution-core<2,>=1.0\n"


@package_fault("test_the_range_of_core_is_compatible")
@contextmanager
def pins_core() -> Generator[BaseEngine]:
    """The distribution requires one version of core and no other."""
    pin = "Requires-Dist: evalution-core==1.0\n"
    with vendor_package("acme_pins_core", metadata=_LICENCE + pin) as engine:
        yield engine


@package_fault("test_the_range_of_core_includes_the_installed_one")
@contextmanager
def needs_an_older_core() -> Generator[BaseEngine]:
    """The distribution requires a core older than the one that it is checked with."""
    old = "Requires-Dist: evalution-core<0.2,>=0.1\n"
    with vendor_package("acme_needs_an_older_core", metadata=_LICENCE + old) as engine:
        yield engine


@package_fault("test_the_range_of_core_includes_the_installed_one")
@contextmanager
def needs_a_newer_core() -> Generator[BaseEngine]:
    """The distribution requires a core that doesn't exist yet."""
    new = "Requires-Dist: evalution_core (>=99.0,<100)\n"
    with vendor_package("acme_needs_a_newer_core", metadata=_LICENCE + new) as engine:
        yield engine


@package_fault("test_the_package_is_typed")
@contextmanager
def untyped() -> Generator[BaseEngine]:
    """The package has no `py.typed`."""
    with vendor_package("acme_untyped", typed=False) as engine:
        yield engine


@package_fault("test_the_distribution_has_a_licence")
@contextmanager
def unlicensed() -> Generator[BaseEngine]:
    """The metadata names no licence."""
    with vendor_package("acme_unlicensed", metadata=_RANGE) as engine:
        yield engine


@package_fault("test_loading_the_adapter_imports_no_runtime")
@contextmanager
def loads_its_runtime() -> Generator[BaseEngine]:
    """The adapter imports its runtime when it is itself imported."""
    with vendor_package("acme_eager", runtime="torch") as engine:
        yield engine


@contextmanager
def vendor_package(
    name: str, *, metadata: str = _LICENCE + _RANGE, typed: bool = True, runtime: str | None = None
) -> Generator[BaseEngine]:
    """The engine of a distribution that exists as long as the context lasts.

    Args:
        name: of the package and the distribution; not imported before.
        metadata: lines for METADATA besides name and version.
        typed: whether the package has a `py.typed`.
        runtime: a module to be written beside the package, which imports it.
    """
    with TemporaryDirectory() as folder:
        package = Path(folder, name)
        package.mkdir()
        source = f"import {runtime}\n{_ENGINE}" if runtime else _ENGINE
        (package / "__init__.py").write_text(source, encoding="utf-8")
        if typed:
            (package / "py.typed").touch()
        if runtime:
            Path(folder, f"{runtime}.py").touch()
        information = Path(folder, f"{name}-1.0.dist-info")
        information.mkdir()
        text = _METADATA.format(name=name) + metadata
        (information / "METADATA").write_text(text, encoding="utf-8")
        sys.path.insert(0, folder)
        before = set(sys.modules)
        try:
            importlib.invalidate_caches()
            yield importlib.import_module(name).Acme()
        finally:
            sys.path.remove(folder)
            for imported in set(sys.modules) - before:
                if imported in (name, runtime):
                    del sys.modules[imported]
