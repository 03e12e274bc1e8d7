"""Variables of the process environment, set while a runtime starts and not a moment longer."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager


@contextmanager
def process_environment(
    variables: Mapping[str, str], *, defaults: Mapping[str, str] | None = None
) -> Generator[None]:
    """The process environment with `variables`, and with those of `defaults` that nobody has set.

    Afterwards it is what it was before, whatever the runtime wrote there meanwhile; processes that
    were started inside keep what they were given.
    """
    before = dict(os.environ)
    for name, value in (defaults or {}).items():
        os.environ.setdefault(name, value)
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in set(os.environ) - set(before):
            del os.environ[name]
        for name, value in before.items():
            if os.environ.get(name) != value:
                os.environ[name] = value
