"""Server of the pages: documents of runs on loopback, read-only."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable, Mapping
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from evalution.results import to_json
from evalution.view.catalog import RunCatalog
from evalution.view.comparison import compare_runs
from evalution.view.documents import LatestDocument
from evalution.view.runs import describe_run, list_runs
from evalution.view.samples import (
    SampleQuery,
    SuiteView,
    list_latest,
    list_samples,
    make_sample,
)
from evalution_core import ConfigurationError

if TYPE_CHECKING:
    from starlette.datastructures import QueryParams
    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

_LATEST = 20
_HEADERS = {
    "Cache-Control": "no-cache",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_NAMES = ("127.0.0.1", "localhost", "[::1]")


class Page(Protocol):
    """The page, and the Content-Security-Policy that it needs."""

    @property
    def html(self) -> str: ...

    @property
    def policy(self) -> str: ...


class HostCheck:
    """Refuses requests that were sent to another name than this machine's own.

    A page of another site can have its name resolved to 127.0.0.1 and then read what is served
    there; its requests bear that name.
    """

    def __init__(self, app: ASGIApp, port: int):
        self._app = app
        self._hosts = {f"{name}:{port}" for name in _NAMES}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            named = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
            if len(named) != 1 or named[0] not in self._hosts:
                refusal = JSONResponse(
                    {"error": f"this server answers to {', '.join(sorted(self._hosts))}"}, 421
                )
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)


class ViewServer:
    """The routes of the page and its documents.

    Args:
        catalog: the runs.
        page: the page that reads the documents.
    """

    def __init__(self, catalog: RunCatalog, page: Page):
        self._catalog = catalog
        self._page = page
        self._lock = Lock()  # a run and its samples are of one state
        self._comparing = Lock()

    def make_app(self, port: int) -> ASGIApp:
        """Return the application, for requests that are sent to this port."""
        routes: Mapping[str, Callable[[Request], Any]] = {
            "/api/runs": self._list_runs,
            "/api/runs/{run:path}": self._describe_run,
            "/api/samples": self._list_samples,
            "/api/sample": self._show_sample,
            "/api/latest": self._list_latest,
        }
        api = [self._make_route(path, self._lock_out(make)) for path, make in routes.items()]
        api.append(self._make_route("/api/compare", self._compare))
        return HostCheck(Starlette(routes=[Route("/", self._show_page), *api]), port)

    def _make_route(self, path: str, make: Callable[[Request], Any]) -> Route:
        def answer(request: Request) -> Response:
            try:
                content = to_json(make(request)).encode()
            except ConfigurationError as error:
                return JSONResponse({"error": str(error)}, 404, _HEADERS)
            tag = f'"{hashlib.blake2b(content, digest_size=12).hexdigest()}"'
            headers = {**_HEADERS, "ETag": tag}
            if request.headers.get("if-none-match") == tag:
                return Response(status_code=304, headers=headers)
            return Response(content, media_type="application/json", headers=headers)

        async def respond(request: Request) -> Response:
            return await run_in_threadpool(answer, request)

        return Route(path, respond, methods=["GET"])

    def _lock_out(self, make: Callable[[Request], Any]) -> Callable[[Request], Any]:
        def make_alone(request: Request) -> Any:
            with self._lock:
                return make(request)

        return make_alone

    async def _show_page(self, request: Request) -> Response:
        policy = {"Content-Security-Policy": self._page.policy}
        return HTMLResponse(self._page.html, headers={**_HEADERS, **policy})

    def _list_runs(self, request: Request) -> Any:
        return list_runs(self._catalog.list_runs())

    def _describe_run(self, request: Request) -> Any:
        return describe_run(self._catalog.find(request.path_params["run"]))

    def _list_samples(self, request: Request) -> Any:
        suite, query, against = self._read_query(request.query_params)
        return list_samples(suite, query, against)

    def _show_sample(self, request: Request) -> Any:
        suite, query, against = self._read_query(request.query_params)
        return make_sample(suite, _read_count(request.query_params, "index"), query, against)

    def _compare(self, request: Request) -> Any:
        baseline = _read_text(request.query_params, "baseline")
        runs = request.query_params.getlist("runs")
        with self._lock:
            left = self._catalog.find(baseline)
            others = [self._catalog.find(run) for run in runs if run != baseline]
        with self._comparing:  # seconds for millions of rows; other pages go on meanwhile
            return compare_runs(left, others)

    def _list_latest(self, request: Request) -> Any:
        run = self._catalog.find(_read_text(request.query_params, "run"))
        found: LatestDocument = {"run": run.id, "suite": None, "samples": []}
        for suite, arrived in run.latest.items():
            found = {
                "run": run.id,
                "suite": suite,
                "samples": list_latest(run.view(suite), arrived, _LATEST),
            }
        return found

    def _read_query(self, asked: QueryParams) -> tuple[SuiteView, SampleQuery, SuiteView | None]:
        suite = _read_text(asked, "suite")
        query = SampleQuery(
            which=asked.get("which", "all"),  # pyright: ignore[reportArgumentType] - it checks
            sort=asked.get("sort", "index"),  # pyright: ignore[reportArgumentType] - as above
            q=asked.get("q", ""),
            offset=_read_count(asked, "offset", 0),
            limit=_read_count(asked, "limit", 50),
        )
        other = self._catalog.find(name) if (name := asked.get("against")) else None
        against = other.view(suite) if other is not None and suite in other.suites else None
        return self._catalog.find(_read_text(asked, "run")).view(suite), query, against


def _read_text(asked: QueryParams, name: str) -> str:
    found = asked.get(name)
    if not found:
        raise ConfigurationError(f"{name} is missing; name it as ?{name}=…")
    return found


def _read_count(asked: QueryParams, name: str, default: int | None = None) -> int:
    text = asked.get(name)
    if text is None and default is not None:
        return default
    if text is None or not text.isdecimal():
        raise ConfigurationError(f"{name} must be a whole number from 0, got {text!r}")
    return int(text)


def bind_socket(port: int) -> socket.socket:
    """Return a socket on the loopback address, any free port for 0.

    Raises:
        ConfigurationError: the port is taken, or needs rights that this process lacks.
    """
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", port))
        bound.listen()  # a browser that is quicker than the server waits
    except OSError as error:
        bound.close()
        raise ConfigurationError(
            f"port {port} can't be used: {error.strerror}; name another --port, or 0 for a free one"
        ) from error
    return bound


def serve(catalog: RunCatalog, page: Page, bound: socket.socket) -> None:
    """Serve until Ctrl-C."""
    app = ViewServer(catalog, page).make_app(bound.getsockname()[1])
    config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off")
    uvicorn.Server(config).run(sockets=[bound])
