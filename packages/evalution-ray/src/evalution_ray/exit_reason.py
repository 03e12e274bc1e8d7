"""Reasons for the end of an actor, from Ray's errors, in the words of the runner."""

from __future__ import annotations

import re

from evalution_core import EngineUnavailableError, EvalutionError
from evalution_core.redaction import redact_text
from evalution_ray.upstream import Ray

_IP = re.compile(r"\bip: (\S+)|\(IP: ([^,]+),|\[Node ([^\]]+)\]|\bip=([^,]+),")
_PID = re.compile(r"\bpid: (\d+)")
_ANSI = re.compile(r"\x1b\[\d*m")


def describe_exit(error: BaseException, ray: Ray) -> str:
    """Return the reason for the end of an actor, as the predicate of a sentence."""
    text = _ANSI.sub("", str(error))
    node = _node(text)
    if isinstance(error, ray.exceptions.OutOfMemoryError):
        used = re.search(r"was (\S+ used / \S+ limit)", text)
        how_much = f" ({used[1]})" if used else ""
        return f"was killed by Ray, since{node or ' its node'} ran out of memory{how_much}"
    if isinstance(error, ray.exceptions.ActorUnavailableError):
        return "can't be reached any more: its node, or the network to it, is gone"
    if "its node has died" in text:
        why = text.rpartition("terminated ")[2].strip() if "terminated " in text else ""
        return f"was lost with{node or ' its node'}{f', terminated {why}' if why else ''}"
    if "worker process has died" in text:
        pid = _PID.search(text)
        process = f"process {pid[1]}" if pid else "its process"
        return (
            f"died: {process}{f' on{node}' if node else ''} was killed, ran out of memory or "
            "crashed; see Ray's log on that node"
        )
    return f"ended: {redact_text(_last_line(text) or type(error).__name__)}"


def find_build_failure(error: BaseException, ray: Ray) -> EvalutionError | None:
    """Return the error for an actor that could not begin to build; None where it could."""
    text = _ANSI.sub("", str(error))
    failure = None
    if isinstance(error, ray.exceptions.RuntimeEnvSetupError):
        failure = EngineUnavailableError(
            f"the option 'runtime_env' can't be set up on a node: {redact_text(_last_line(text))}"
        )
    elif "failed to import on the worker" in text:
        failure = EngineUnavailableError(
            f"a node of the cluster can't start an actor: {redact_text(_last_line(text))}; install "
            "evalution-ray and the engine's distribution on every node, in the versions of here, "
            "or name them in the option 'runtime_env'"
        )
    elif getattr(error, "actor_init_failed", False) or not isinstance(
        error,
        (
            ray.exceptions.ActorDiedError,
            ray.exceptions.ActorUnavailableError,
            ray.exceptions.OutOfMemoryError,
        ),
    ):
        failure = EngineUnavailableError(
            f"Ray can't start an actor with these options: {redact_text(_last_line(text))}; look "
            "at resources and runtime_env"
        )
    if failure is not None:
        failure.__cause__ = error
    return failure


def _node(text: str) -> str:
    found = _IP.search(text)
    return f" node {next(filter(None, found.groups()))}" if found else ""


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
