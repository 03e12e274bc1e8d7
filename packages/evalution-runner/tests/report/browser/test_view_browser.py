"""`evalution view` in Chromium, on its own server, while a run goes on."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event, Semaphore
from typing import Any

import pytest

import evalution
from evalution import suites
from evalution_core import GenerationOutput, Model

pytestmark = pytest.mark.wide

ROWS = 8
OpenPage = Callable[..., AbstractContextManager[Any]]
LOOKS: dict[str, dict[str, Any]] = {
    "light": {},
    "dark": {"color_scheme": "dark"},
    "narrow": {"viewport": {"width": 400, "height": 800}},
}


@dataclass
class Gates:
    """The places where a run waits for its test."""

    loaded: Event = field(default_factory=Event)
    answers: Semaphore = field(default_factory=lambda: Semaphore(0))

    def open(self) -> None:
        """Let the run go on to its end."""
        self.loaded.set()
        self.answers.release(10 * ROWS)

    def wait_for_each(self, events: Iterator[Any]) -> Iterator[Any]:
        for event in events:
            self.answers.acquire()
            yield event


def say_five(events: Iterator[Any]) -> Iterator[Any]:
    for key, said in events:
        yield key, replace(said, text="5") if isinstance(said, GenerationOutput) else said


@dataclass
class Server:
    process: subprocess.Popen[str]
    address: str


@pytest.fixture
def gates() -> Iterator[Gates]:
    found = Gates()
    yield found
    found.open()


@pytest.fixture
def start_run(scripted: Any, scripted_session: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Starts a run of two suites, whose engine says 4 to each question unless it is scripted."""

    def start(name: str, gates: Gates, script: Any = None) -> Future[Any]:
        class Gated(scripted):
            def build(self, model: Model) -> Any:
                gates.loaded.wait()
                return scripted_session(script or gates.wait_for_each)

        rows = [
            {"q": f"What is {row} + 3?", "sum": str(row + 3), "texts": ["four", "three"], "best": 0}
            for row in range(ROWS)
        ]
        tests = [
            suites.Generation(data=rows, prompt="q", target="sum", name="sums"),
            suites.MultipleChoice(
                data=rows, prompt="q", choices="texts", target="best", name="choices"
            ),
        ]
        return threads.submit(
            evalution.run,
            engine=Gated(),
            model=Model(name, label=name),
            tests=tests,
            output=tmp_path / "runs" / name,
        )

    with ThreadPoolExecutor() as threads:
        yield start


@pytest.fixture
def server(start_run: Callable[..., Any], gates: Gates, tmp_path: Path) -> Iterator[Server]:
    """The command, over one finished run, which says 5 to each question."""
    ended = Gates()
    ended.open()
    start_run("old", ended, say_five).result()
    command = [sys.executable, "-m", "evalution", "view", str(tmp_path / "runs"), "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = re.match(r"(http://127\.0\.0\.1:\d+/) shows 1 run;", process.stdout.readline())
        assert address is not None
        yield Server(process, address[1])
        process.terminate()


def test_run_is_followed_from_the_loading_of_its_model_to_its_end(
    server: Server, start_run: Callable[..., Any], gates: Gates, open_page: OpenPage
) -> None:
    with open_page(server.address) as visit:
        card = visit.page.locator("article.run-card")
        assert card.count() == 0
        run = start_run("new", gates)
        card.get_by_text("The model is being loaded.").wait_for()
        assert card.locator("header").inner_text().split("\n") == ["B new on Gated loading"]

        gates.loaded.set()
        for done in (1, 2, 3):
            gates.answers.release()
            card.get_by_text(f"{done} of 16 samples · suite 1 of 2").wait_for()
        wrong = card.locator(".latest li")
        assert [each.locator("a").inner_text() for each in wrong.all()] == ["row 2", "row 0"]
        assert "4 – target 5" in wrong.nth(0).inner_text()
        score = visit.page.locator(".matrix tbody tr").nth(0).locator("td").nth(0).inner_text()
        assert score.split() == ["0.3333", "0.0615", "to", "0.7923", "3", "so", "far"]
        for name, look in LOOKS.items():
            with open_page(server.address, **look) as other:
                other.page.locator("article.run-card").wait_for()
                other.check_looks(f"view-{name}")
        wrong.nth(0).get_by_role("link").click()
        visit.wait("#/samples?run=new&suite=sums&which=wrong&index=2")
        assert visit.places == ["0", "2"]
        visit.go("#/run?run=new")
        visit.page.get_by_text("Scoring policy").click()
        gates.answers.release()
        visit.page.get_by_text("4 of 16 samples").wait_for()
        assert visit.page.locator("details[open]").count() == 1
        assert visit.page.evaluate("document.activeElement.textContent") == "Scoring policy"
        visit.page.keyboard.press("Home")
        visit.page.locator("a.skip").focus()
        visit.page.keyboard.press("Enter")
        gates.answers.release()
        visit.page.get_by_text("5 of 16 samples").wait_for()
        assert visit.page.url.endswith("#/run?run=new")
        visit.go("")

        gates.open()
        card.wait_for(state="detached")
        statuses = visit.page.locator(".matrix .status").all_inner_texts()
        assert statuses == ["finished", "finished"]
        assert run.result().status == "done"
        assert visit.complaints == []
        assert all(sent.startswith(server.address) for sent in visit.requests)


def test_late_answer_does_not_cover_the_page_that_was_opened_meanwhile(
    server: Server, start_run: Callable[..., Any], gates: Gates, open_page: OpenPage
) -> None:
    gates.open()
    start_run("new", gates).result()
    with open_page(server.address) as visit:
        held: list[Any] = []

        def hold_first_page(route: Any) -> None:
            if visit.page.url.endswith("sort=sums"):
                held.append(route)
            else:
                route.continue_()

        visit.page.route("**/api/runs", hold_first_page)
        visit.page.evaluate("window.location.hash = '#/?sort=sums'")
        while not held:
            visit.page.wait_for_timeout(20)
        visit.go("#/compare?baseline=new&runs=old")
        for route in held:
            route.continue_()
        visit.page.evaluate("fetch('/api/runs').then((answer) => answer.json())")
        assert visit.page.locator("h1").inner_text() == "Differences to B"
        assert visit.page.locator(".differences").count() == 1
        assert visit.page.locator(".matrix").count() == 0


def test_keyboard_leads_from_a_number_to_a_sample_whose_address_opens_it_again(
    server: Server, start_run: Callable[..., Any], gates: Gates, open_page: OpenPage
) -> None:
    gates.open()
    start_run("new", gates).result()
    with open_page(server.address) as visit:
        number = visit.page.locator(".matrix tbody tr").nth(0).locator("a.value").nth(0)
        for _ in range(30):
            visit.page.keyboard.press("Tab")
            if number.evaluate("(found) => found === document.activeElement"):
                break
        visit.page.keyboard.press("Enter")
        visit.wait("#/samples?run=new&suite=sums&which=wrong")
        assert visit.places == ["0", "2", "3", "4", "5", "6", "7"]
        visit.page.locator("a.item").first.focus()
        visit.page.keyboard.press("ArrowDown")
        visit.wait("#/samples?run=new&suite=sums&which=wrong&index=2")
        assert visit.page.title() == "Samples of sums, run B – Evalution"
        said = visit.detail
        assert "What is 2 + 3?" in said
        address = visit.page.url
        assert visit.complaints == []
    with open_page(address) as visit:
        assert visit.detail == said


DEEP = {
    "#/compare?baseline=new&runs=old": "Differences to B",
    "#/run?run=old": "old on ",
    "#/samples?run=new&suite=sums&against=old&which=flipped&index=1": "Samples of sums, run B",
    "#/samples?run=new&suite=choices&which=wrong": "Samples of choices, run B",
}


@pytest.mark.parametrize("look", LOOKS)
def test_every_state_has_an_address_and_no_barrier(
    server: Server, start_run: Callable[..., Any], gates: Gates, open_page: OpenPage, look: str
) -> None:
    gates.open()
    start_run("new", gates).result()
    for number, (state, heading) in enumerate(DEEP.items()):
        with open_page(f"{server.address}{state}", **LOOKS[look]) as visit:
            visit.check_looks(f"view-{look}-{number}")
            assert visit.page.locator("h1").inner_text().startswith(heading)
            assert visit.complaints == []
    with open_page(f"{server.address}{list(DEEP)[-1]}") as visit:
        visit.page.get_by_text("No answer is wrong.").wait_for()
        visit.page.emulate_media(media="print")
        assert visit.page.get_by_text("No answer is wrong.").is_visible()
        visit.page.emulate_media(media="screen")
        visit.page.get_by_role("link", name=f"Show all {ROWS} samples").click()
        visit.wait("#/samples?run=new&suite=choices")
        assert len(visit.places) == ROWS
    with open_page(server.address) as visit:
        server.process.terminate()
        visit.page.get_by_text("The server doesn't answer").wait_for()
