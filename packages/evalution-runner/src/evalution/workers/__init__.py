"""Sessions in supervised worker processes.

A worker is a fresh process that gets the pickled engine and model, builds the session and serves
it. It is watched, ended with all that it has started when it hangs, and started again; what it had
in flight is run again, and a request that ends its worker is found and becomes a failure of its
own. The same scheduler serves one worker or many.

This module is the front: `build_supervised` makes a session over processes of this machine. A
package that runs workers elsewhere makes `Worker`s for a `Supervision`, serves a session there with
`build_session`, `Service` and `Outbox`, and passes the messages between both as bytes.
"""

from evalution.workers.child import Service, build_session, describe_environment
from evalution.workers.interpreter import declare_engine
from evalution.workers.session import (
    SupervisedSession,
    build_supervised,
    check_workers,
    find_lost_capabilities,
)
from evalution.workers.supervision import Supervision, WorkerOptions
from evalution.workers.wire import (
    BuildFailed,
    Close,
    Closed,
    Message,
    Outbox,
    Progressed,
    Ready,
    Worker,
    WorkerExit,
    WorkerListener,
    pack_configuration,
    pack_error,
    pack_messages,
    unpack_messages,
)

__all__ = [
    "BuildFailed",
    "Close",
    "Closed",
    "Message",
    "Outbox",
    "Progressed",
    "Ready",
    "Service",
    "SupervisedSession",
    "Supervision",
    "Worker",
    "WorkerExit",
    "WorkerListener",
    "WorkerOptions",
    "build_session",
    "build_supervised",
    "check_workers",
    "declare_engine",
    "describe_environment",
    "find_lost_capabilities",
    "pack_configuration",
    "pack_error",
    "pack_messages",
    "unpack_messages",
]
