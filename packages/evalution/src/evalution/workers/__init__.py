"""Sessions in supervised processes of their own.

A worker is a fresh process that gets the pickled engine and model, builds the session and serves
it. It is watched, ended with all that it has started when it hangs, and started again; what it had
in flight is run again, and a request that ends its worker is found and becomes a failure of its
own. The same scheduler serves one worker or many.
"""

from evalution.workers.session import SupervisedSession, build_supervised
from evalution.workers.supervision import WorkerOptions

__all__ = ["SupervisedSession", "WorkerOptions", "build_supervised"]
