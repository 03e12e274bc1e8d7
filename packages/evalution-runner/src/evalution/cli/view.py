"""`evalution view`."""

from __future__ import annotations

import webbrowser
from contextlib import suppress
from threading import Thread
from typing import Annotated

import typer

from evalution.cli.errors import report_errors
from evalution.cli.options import DebugOption
from evalution.hints import import_extra
from evalution.report.view_page import render_view_page
from evalution.user_input import parse_path
from evalution.view.catalog import RunCatalog


def view(
    folders: Annotated[
        list[str] | None,
        typer.Argument(metavar="DIR", help="Folders of runs, or with runs in them [runs]."),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = 0,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Print the address alone.")
    ] = False,
    debug: DebugOption = False,
) -> None:
    """Show runs in a browser, also those that go on: progress, samples, comparisons.

    The page is served to this machine alone, until Ctrl-C.
    """
    with report_errors(debug=debug):
        for package in ("starlette", "uvicorn"):
            import_extra(package, "view", "a page of runs", package)
        from evalution.view.server import bind_socket, serve  # noqa: PLC0415 - the extra's packages

        named = [parse_path(folder) for folder in folders or ["runs"]]
        catalog = RunCatalog(named)
        count = len(catalog.list_runs())
        with bind_socket(port) as bound:
            url = f"http://127.0.0.1:{bound.getsockname()[1]}/"
            shown = "1 run" if count == 1 else f"{count} runs"
            if not count:
                shown = f"no run yet in {', '.join(map(str, named))}"
            print(f"{url} shows {shown}; Ctrl-C ends it", flush=True)
            if not no_browser:
                Thread(target=webbrowser.open, args=[url], daemon=True).start()
            with suppress(KeyboardInterrupt):
                serve(catalog, render_view_page(), bound)
