"""Pages in Chromium, as a person uses them. Screenshots go to the folder EVALUTION_ARTEFACTS."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
QUIET = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
]  # fmt: skip


@dataclass
class Visit:
    """A page in a browser, and all that it complained of or asked for."""

    page: Any
    address: str = ""
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def go(self, state: str) -> None:
        """Open a state of the page, such as `#/samples?run=A`, and wait until it is drawn."""
        self.page.goto(f"{self.address}{state}")
        self.wait(state)

    def wait(self, state: str) -> None:
        self.wait_until("(state) => document.documentElement.dataset.drawn === state", state)

    def wait_until(self, condition: str, value: Any = None) -> None:
        """Wait until a condition holds; Playwright's own wait needs `eval`, which pages forbid."""
        for _ in range(200):
            if self.page.evaluate(condition, value):
                return
            self.page.wait_for_timeout(50)
        raise AssertionError(f"never true: {condition} {value}")

    @property
    def places(self) -> list[str]:
        """Rows that the list of samples shows."""
        rows = self.page.locator("a.item").all()
        return [row.get_attribute("data-index") for row in rows]

    @property
    def detail(self) -> str:
        return self.page.locator("#detail").inner_text()

    def check_looks(self, name: str) -> None:
        """Assert that all fits into the window, and that axe-core finds nothing serious."""
        if folder := os.environ.get("EVALUTION_ARTEFACTS"):
            self.page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)
        widths = self.page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
        assert widths[0] <= widths[1], name
        assert self.find_barriers() == [], name

    def find_barriers(self) -> list[str]:
        """Return the serious and critical findings of axe-core, as rule and places."""
        axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-core")
        return [
            f"{rule['id']}: {[node['target'] for node in rule['nodes'][:3]]}"
            for rule in axe.Axe().run(self.page).response["violations"]
            if rule["impact"] in ("serious", "critical")
        ]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip(f"needs a Chromium on the PATH, as one of {', '.join(NAMES)}")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=QUIET)
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium: Any) -> Callable[..., AbstractContextManager[Visit]]:
    """Opens an address in a window of its own, `options` being those of Playwright's contexts."""

    @contextmanager
    def open_address(address: str, **options: Any) -> Iterator[Visit]:
        context = chromium.new_context(**{"viewport": {"width": 1300, "height": 1000}} | options)
        found = Visit(context.new_page(), address)
        found.page.on("console", lambda message: found.complaints.append(message.text))
        found.page.on("pageerror", lambda error: found.complaints.append(str(error)))
        found.page.on("request", lambda sent: found.requests.append(sent.url))
        found.page.goto(address)
        found.wait(address.partition("#")[2] and f"#{address.partition('#')[2]}")
        yield found
        context.close()

    return open_address
