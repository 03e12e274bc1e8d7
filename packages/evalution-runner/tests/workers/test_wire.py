"""What crosses to a worker and back: messages, values, errors, deltas."""

from __future__ import annotations

import os
import pickle
import sys
import threading

import pytest

from evalution.workers.jobs import PooledStream, StreamItem
from evalution.workers.wire import (
    Call,
    Channel,
    End,
    Message,
    Outbox,
    Progressed,
    main_module,
    pack_configuration,
    pack_error,
    pack_request,
    unpack_error,
)
from evalution_core import (
    ConfigurationError,
    ContextLengthError,
    EngineRuntimeError,
    EvalutionError,
    GenerationOutput,
    InvalidRequestError,
    Model,
    TextDelta,
)
from evalution_core.errors import RemoteCause
from evalution_core.kinds import RequestKind
from evalution_enginekit.mock import Mock


def channel_pair() -> tuple[Channel, Channel]:
    (read_a, write_a), (read_b, write_b) = os.pipe(), os.pipe()
    return (
        Channel(os.fdopen(read_a, "rb"), os.fdopen(write_b, "wb")),
        Channel(os.fdopen(read_b, "rb"), os.fdopen(write_a, "wb")),
    )


def close(channel: Channel) -> None:
    channel._outgoing.close()
    channel._incoming.close()


def test_batches_arrive_whole_and_the_end_is_noticed() -> None:
    here, there = channel_pair()
    long = Call(1, "generate", b"x" * 300_000)
    sender = threading.Thread(target=lambda: (here.send([long, End(2)]), here.send([])))
    sender.start()
    assert there.receive() == [long, End(2)]
    assert there.receive() == []
    sender.join()
    close(here)
    with pytest.raises(EOFError):
        there.receive()
    close(there)


def test_outbox_keeps_the_order_and_reports_progress_in_batches() -> None:
    here, there = channel_pair()
    outbox = Outbox(here, "test outbox")
    outbox.note_progress(9, at_once=False)
    outbox.note_progress(8, at_once=True)
    outbox.put(End(1))
    outbox.put(End(2))
    found: list[Message] = []
    while End(2) not in found:
        found += there.receive()
    numbers = [n for message in found if isinstance(message, Progressed) for n in message.numbers]
    assert sorted(numbers) == [8, 9]
    assert [message for message in found if isinstance(message, End)] == [End(1), End(2)]
    outbox.beat()
    assert there.receive() == []
    close(there)
    outbox.put(End(2))
    outbox.put(End(3))
    assert not outbox.flush(20), "a message to a worker that is gone is lost"
    here._incoming.close()
    with pytest.raises(BrokenPipeError):
        here._outgoing.close()


def test_errors_cross_with_class_text_and_cause() -> None:
    error = ContextLengthError("too long", failures={1: InvalidRequestError("bad")})
    error.__cause__ = OSError("disk")
    found = unpack_error(pack_error(error, "generate"))
    assert isinstance(found, ContextLengthError)
    assert found.failures.keys() == {1}
    assert isinstance(found.__cause__, RemoteCause)
    assert "OSError: disk" in str(found.__cause__)


def test_foreign_error_becomes_one_of_the_runtime_without_its_credentials() -> None:
    found = unpack_error(pack_error(ValueError("GET https://me:word@host/x"), "generate"))
    assert type(found) is EngineRuntimeError
    assert str(found) == "generate: ValueError: GET https://***@host/x"
    assert "word" not in str(found.__cause__)


class LocalError(EvalutionError):
    """Stands for a class that the other process doesn't have."""


def test_error_of_an_unknown_class_keeps_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = pack_error(LocalError("odd"), "generate")
    monkeypatch.setitem(sys.modules, LocalError.__module__, sys.modules["os"])
    found = unpack_error(packed)
    assert type(found) is EngineRuntimeError
    assert str(found) == "LocalError: odd"


def test_configurations_cross() -> None:
    assert pickle.loads(pack_configuration(Mock(99))) == Mock(99)
    assert pickle.loads(pack_configuration(Model("m"))) == Model("m")
    with pytest.raises(InvalidRequestError, match="can't be sent to a worker process"):
        pack_request(lambda: None)


def test_main_module_goes_along_only_where_it_is_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert main_module(b"evalution_acme") == {}
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "__spec__", None)
    monkeypatch.setattr(main, "__file__", "script.py", raising=False)
    (path,) = main_module(b"c__main__\nAcme").values()
    assert path.endswith("script.py")
    monkeypatch.delattr(main, "__file__")
    with pytest.raises(ConfigurationError, match=r"a prompt or a notebook.*a module of its own"):
        main_module(b"c__main__\nAcme")


def test_deltas_and_output_reach_the_reader_with_metadata() -> None:
    lock = threading.RLock()
    lock.acquire()
    stream = PooledStream(
        lock, RequestKind.GENERATION, deltas=True, batch_size=None, unread_bound=9, run=1
    )
    item = StreamItem(b"", stream=stream, key="key", metadata={"row": 1})
    stream.add(item)
    stream.end_input()
    item.deliver(TextDelta("a", (1,)), is_last=False)
    item.deliver(TextDelta("b", (2,)), is_last=False)
    item.deliver(GenerationOutput("", "ab"), is_last=True)
    assert item.has_text
    assert list(stream.results()) == [
        ("key", TextDelta("a", (1,))),
        ("key", TextDelta("b", (2,))),
        ("key", GenerationOutput("", "ab", {"row": 1})),
    ]
