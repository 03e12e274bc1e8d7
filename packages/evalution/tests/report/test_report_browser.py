"""The page in Chromium, as a person uses it. Screenshots go to the folder EVALUTION_ARTEFACTS."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jinja2", reason="needs jinja2, of evalution[report]")
playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")

pytestmark = pytest.mark.wide

ROWS = 60
HOSTILE = "</script><script>document.title = 'broken'</script><img src=x onerror=alert(1)>\u2028"
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
QUIET = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
]  # fmt: skip


@dataclass
class Visit:
    """A page in a browser, and all that it complained of or asked for."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    @property
    def found(self) -> str:
        return self.page.locator("#found").inner_text()

    @property
    def places(self) -> list[str]:
        """Suite and row of every sample that the list shows."""
        return self.page.locator("#list .place").all_inner_texts()

    @property
    def detail(self) -> str:
        return self.page.locator("#detail").inner_text()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip(f"needs a Chromium on the PATH, as one of {', '.join(NAMES)}")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=QUIET)
        yield browser
        browser.close()


@pytest.fixture
def report(
    write_page: Any, make_run: Any, make_suite: Any, make_sample: Any, tmp_path: Path
) -> Path:
    """Two runs: B loses row 3, gains row 4, fails in row 5; texts that try to break out."""
    chat = [
        {"role": "user", "content": f"What is a needle? {HOSTILE}"},
        {"role": "assistant", "content": "A thin thing."},
        {"role": "user", "content": "And a haystack?"},
    ]

    def sums(values: dict[int, float], **changes: Any) -> Any:
        samples = [make_sample(index, values.get(index, 1.0)) for index in range(ROWS)]
        samples[7].prompt = chat
        samples[7].prediction = f"  {HOSTILE}"
        if "error" in changes:
            samples[5] = make_sample(5, None, prediction=None, error=changes["error"])
        return make_suite("sums", samples)

    def prose(shift: float) -> Any:
        samples = [
            make_sample(index, None, prompt="", metrics={"ppl": index + shift}, suite="prose")
            for index in range(3)
        ]
        return make_suite("prose", samples, higher=False)

    left = make_run(sums({4: 0.0}), prose(1.5))
    right = make_run(sums({3: 0.0}, error="TimeoutError: 30 s"), prose(1.25), limit=ROWS)
    write_page(left, right)
    return tmp_path / "page.html"


@pytest.fixture
def visit(chromium: Any, report: Path, request: pytest.FixtureRequest) -> Iterator[Visit]:
    options = {"viewport": {"width": 1300, "height": 1000}, **getattr(request, "param", {})}
    context = chromium.new_context(**options)
    found = Visit(context.new_page())
    found.page.on("console", lambda message: found.complaints.append(message.text))
    found.page.on("pageerror", lambda error: found.complaints.append(str(error)))
    found.page.on("request", lambda sent: found.requests.append(sent.url))
    found.page.goto(report.as_uri())
    yield found
    context.close()


LOOKS = [
    pytest.param({"color_scheme": "light"}, id="light"),
    pytest.param({"color_scheme": "dark"}, id="dark"),
    pytest.param({"viewport": {"width": 380, "height": 800}}, id="narrow"),
]


@pytest.mark.parametrize("visit", LOOKS, indirect=True)
def test_page_opens_without_requests_or_errors(
    visit: Visit, report: Path, request: pytest.FixtureRequest
) -> None:
    visit.page.locator(".plot svg").first.wait_for()
    if folder := os.environ.get("EVALUTION_ARTEFACTS"):
        look = request.node.callspec.id
        visit.page.screenshot(path=Path(folder) / f"report-{look}.png", full_page=True)
    widths = visit.page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")

    assert visit.complaints == []
    assert visit.requests == [report.as_uri()]
    assert visit.page.title() == "my model on Mock, 2 runs – Evalution report"
    assert (
        visit.page.locator(".plot").count()
        == visit.page.locator(".plot:has(svg g[aria-label=dot])").count()
    )
    assert widths[0] <= widths[1]


def test_security_policy_blocks_requests(visit: Visit) -> None:
    blocked = visit.page.evaluate(
        """() => new Promise((resolve) => {
            document.addEventListener("securitypolicyviolation",
                (event) => resolve(event.effectiveDirective));
            fetch("https://localhost:9/").catch(() => {});
        })"""
    )

    assert blocked == "connect-src"


def test_plots_follow_the_theme(visit: Visit) -> None:
    point = visit.page.locator(".plot g[aria-label=dot] path").first
    light = point.evaluate("(found) => getComputedStyle(found).fill")
    visit.page.emulate_media(color_scheme="dark")

    assert point.evaluate("(found) => getComputedStyle(found).fill") != light
    assert visit.complaints == []


def test_texts_of_plots_are_whole(visit: Visit) -> None:
    """No tick's text reaches over the edge of its plot, wide or narrow."""
    outside = """() => [...document.querySelectorAll(".plot")].flatMap((plot) => {
        const place = plot.getBoundingClientRect();
        return [...plot.querySelectorAll("svg text")].filter((text) => {
            const found = text.getBoundingClientRect();
            return found.left < place.left - 2 || found.right > place.right + 2;
        }).map((text) => text.textContent);
    })"""
    for width in (1300, 380):
        visit.page.set_viewport_size({"width": width, "height": 900})
        visit.page.wait_for_function(
            "[...document.querySelectorAll('.plot > svg')]"
            ".every((svg) => svg.clientWidth <= svg.parentNode.clientWidth)"
        )
        assert visit.page.evaluate(outside) == []


@pytest.mark.parametrize(
    ("verdict", "run", "rows"),
    [
        ("flipped", "", [3, 4]),
        ("gained", "1", [4]),
        ("lost", "1", [3]),
        ("failed", "", [5]),
        ("failed", "0", []),
        ("wrong", "0", [4]),
    ],
)
def test_samples_are_filtered(visit: Visit, verdict: str, run: str, rows: list[int]) -> None:
    visit.page.select_option("#run", run)
    visit.page.locator(f"#verdicts input[value={verdict}]").check(force=True)

    assert visit.places == [f"sums · row {row}" for row in rows]
    assert visit.found == f"{len(rows)} of {ROWS + 3} samples"
    assert visit.complaints == []


def test_suite_its_metric_and_the_order_are_chosen(visit: Visit) -> None:
    visit.page.select_option("#suite", "1")
    visit.page.select_option("#metric", "ppl")
    visit.page.select_option("#order", "highest")

    assert visit.places == [f"prose · row {row}" for row in (2, 1, 0)]
    assert "target 2" in visit.detail
    assert "ppl ↓\n3.5000" in visit.detail


def test_search_finds_texts_and_marks_them(visit: Visit) -> None:
    visit.page.keyboard.press("/")
    visit.page.keyboard.type("HAYSTACK needle")
    visit.page.locator("#found", has_text="1 of 63 samples").wait_for()
    # The sample is found, and marked, before the last letters are typed.
    visit.page.locator("#detail mark", has_text="needle").first.wait_for()

    assert visit.places == ["sums · row 7"]
    assert set(visit.page.locator("#detail mark").all_inner_texts()) == {"needle", "haystack"}
    visit.page.fill("#query", "no such words")
    visit.page.locator("#list", has_text="No sample fits these filters.").wait_for()
    assert "Choose a sample." in visit.detail


def test_sample_is_shown_whole_and_as_text(visit: Visit) -> None:
    visit.page.locator("#list .item", has_text="row 7").first.click()

    turns = visit.page.locator("#detail .turn").all_inner_texts()
    assert [turn.split("\n")[0] for turn in turns] == ["user", "assistant", "user"]
    assert HOSTILE.strip() in turns[0]
    assert visit.detail.count(HOSTILE.strip()) == 3
    assert visit.page.locator("#detail img, #detail script").count() == 0
    assert "  " in visit.page.locator("#detail .answer .blank").all_inner_texts()
    assert visit.complaints == []


def test_failure_is_shown_in_place_of_scores(visit: Visit) -> None:
    visit.page.locator("#verdicts input[value=failed]").check(force=True)
    second = visit.page.locator("#detail .answer").nth(1).inner_text()

    assert "TimeoutError: 30 s" in second
    assert "acc" not in second


def test_keyboard_reaches_every_sample(visit: Visit) -> None:
    visit.page.locator("#list").focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowUp"):
        visit.page.keyboard.press(key)
    assert "sums · row 1" in visit.detail
    visit.page.keyboard.press("ArrowRight")
    assert visit.places[0] == "sums · row 50"
    assert visit.page.locator("#page-number").inner_text() == "2 / 2"
    visit.page.keyboard.press("End")
    assert "prose · row 2" in visit.detail
    visit.page.keyboard.press("Enter")
    assert visit.page.evaluate("document.activeElement.id") == "detail"
    visit.page.keyboard.press("Escape")
    assert visit.page.evaluate("document.activeElement.id") == "list"
    chosen = visit.page.locator("#list [aria-selected=true]")
    assert chosen.get_attribute("id") == visit.page.locator("#list").get_attribute(
        "aria-activedescendant"
    )
