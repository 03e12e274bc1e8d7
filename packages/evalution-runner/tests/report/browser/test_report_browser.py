"""The report in Chromium, as a person uses it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from evalution import MetricResult
from evalution.report.page import read_folders

Visit = Any
OpenPage = Callable[..., AbstractContextManager[Visit]]
pytestmark = pytest.mark.wide

ROWS = 60
HOSTILE = "</script><script>document.title = 'broken'</script><img src=x onerror=alert(1)>\u2028"


@pytest.fixture
def report(
    write_page: Any, make_run: Any, make_suite: Any, make_sample: Any, tmp_path: Path
) -> Path:
    """Three runs: B loses row 3, gains row 4, fails in row 5; texts that try to break out."""
    chat = [
        {"role": "user", "content": f"What is a needle? {HOSTILE}"},
        {"role": "assistant", "content": "A thin thing."},
        {"role": "user", "content": "And a haystack of 12?"},
    ]

    def sums(values: dict[int, float], error: str | None = None) -> Any:
        samples = [make_sample(index, values.get(index, 1.0)) for index in range(ROWS)]
        samples[7].prompt = chat
        samples[7].prediction = f"  {HOSTILE}"
        if error is not None:
            samples[5] = make_sample(5, None, prediction=None, error=error)
        return make_suite("sums", samples)

    def choices(right: range) -> Any:
        extracted = {"acc": 1, "choices": [HOSTILE, "blue"], "logprobs": [-9.3, -0.2]}
        tokens = [[[7, "bl", -0.1], [8, "ue", -4.0], [None, None, -1.0]]] * 2
        samples = [
            make_sample(
                index, float(index in right), suite="choices", target="blue",
                extracted=extracted, token_logprobs=tokens,
            )
            for index in range(ROWS)
        ]  # fmt: skip
        return make_suite("choices", samples)

    def prose(shift: float) -> Any:
        samples = [
            make_sample(index, None, prompt="", metrics={"ppl": index + shift}, suite="prose")
            for index in range(3)
        ]
        return make_suite("prose", samples, higher=False)

    runs = [
        make_run(sums({4: 0.0}), choices(range(20)), prose(1.5)),
        make_run(sums({3: 0.0}, "TimeoutError: 30 s"), choices(range(50)), prose(1.25), limit=ROWS),
        make_run(sums({}), step=9, status="interrupted", error={"type": "KeyboardInterrupt"}),
    ]
    write_page(*runs)
    return tmp_path / "page.html"


@pytest.fixture
def show(open_page: OpenPage, write_page: Any, tmp_path: Path) -> OpenPage:
    """Opens the report of some runs."""

    def write_and_open(*runs: Any, **options: Any) -> AbstractContextManager[Visit]:
        write_page(*runs, **options)
        return open_page((tmp_path / "page.html").as_uri())

    return write_and_open


@pytest.fixture
def visit(open_page: OpenPage, report: Path, request: pytest.FixtureRequest) -> Iterator[Visit]:
    with open_page(report.as_uri(), **getattr(request, "param", {})) as found:
        yield found


LOOKS = [
    pytest.param({"color_scheme": "light"}, id="light"),
    pytest.param({"color_scheme": "dark"}, id="dark"),
    pytest.param({"viewport": {"width": 400, "height": 800}}, id="narrow"),
]
STATES = [
    "", "#/compare?baseline=B", "#/run?run=B", "#/samples?run=A&suite=choices&index=30&against=B",
]  # fmt: skip


@pytest.mark.parametrize("visit", LOOKS, indirect=True)
def test_every_state_is_accessible_and_asks_for_nothing(
    visit: Visit, report: Path, request: pytest.FixtureRequest
) -> None:
    for number, state in enumerate(STATES):
        visit.go(state)
        visit.wait_until(
            "[...document.querySelectorAll('.plot')].every((plot) => plot.querySelector('svg'))"
        )
        visit.check_looks(f"report-{request.node.callspec.id}-{number}")

    assert visit.complaints == []
    assert set(visit.requests) == {report.as_uri()}
    assert (
        visit.page.title()
        == "Samples of choices, run A – my model on Mock, 3 runs – Evalution report"
    )


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
        visit.wait_until(
            "[...document.querySelectorAll('.plot > svg')]"
            ".every((svg) => svg.clientWidth <= svg.parentNode.clientWidth)"
        )
        assert visit.page.evaluate(outside) == []


def test_first_sentence_says_which_run_is_better(visit: Visit) -> None:
    said = visit.page.locator(".summary li").all_inner_texts()

    assert said == [
        "B beats A on choices by 50 points (p < 0.0001); no clear difference on sums and prose.",
        "C and A differ by no more than chance on sums.",
        "C was interrupted: 60 samples.",
    ]


def test_number_leads_to_its_wrong_answers_in_one_click(visit: Visit) -> None:
    visit.page.locator(".matrix tbody tr").nth(0).locator("a.value").nth(1).click()
    visit.wait("#/samples?run=A&suite=choices&which=wrong")

    assert visit.places == [str(row) for row in range(20, ROWS)]
    assert "choices · row 20" in visit.detail


def test_matrix_is_sorted_by_a_click_and_has_a_mean_of_shares_alone(visit: Visit) -> None:
    visit.page.get_by_role("button", name="choices").click()
    visit.wait("#/?sort=choices&order=desc")
    rows = visit.page.locator(".matrix tbody tr")
    means = [rows.nth(at).locator("td").last.inner_text() for at in range(3)]

    assert [rows.nth(at).locator(".badge").inner_text() for at in range(3)] == ["B", "A", "C"]
    assert means == ["0.9082", "0.6583", "–"]  # C has no choices; perplexities are no part of it


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("which=flipped&against=B", [3, 4]),
        ("which=wrong", [4]),
        ("which=failed", []),
        ("q=HAYSTACK+needle", [7]),
        ("q=%22what+is+a+needle%22", [7]),
        ("q=%22needle+what%22", []),
        ("q=9.3", []),
        ("sort=value", [4, 0]),
    ],
)
def test_state_in_the_address_chooses_samples(visit: Visit, query: str, rows: list[int]) -> None:
    visit.go(f"#/samples?run=A&suite=sums&{query}")

    assert visit.places[: max(len(rows), 1)] == [str(row) for row in rows]
    assert visit.complaints == []


def test_search_as_it_is_typed_marks_what_it_finds(visit: Visit) -> None:
    visit.go("#/samples?run=A&suite=sums")
    visit.page.keyboard.press("/")
    visit.page.keyboard.type('"haystack of 12"')
    visit.page.locator("#found", has_text="1 of 60 samples").wait_for()

    assert visit.places == ["7"]
    assert set(visit.page.locator("#detail mark").all_inner_texts()) == {"haystack of 12"}
    visit.page.locator("input[type=search]").fill("no such words")
    visit.page.get_by_text("No sample fits these filters.").wait_for()


def test_sample_is_shown_whole_and_as_text(visit: Visit) -> None:
    visit.go("#/samples?run=A&suite=sums&index=7")
    turns = visit.page.locator("#detail .turn").all_inner_texts()

    assert [turn.split("\n")[0] for turn in turns] == ["user", "assistant", "user"]
    assert HOSTILE.strip() in turns[0]
    assert visit.page.locator("#detail img, #detail script").count() == 0
    assert "  " in visit.page.locator("#detail .answer .blank").all_inner_texts()
    assert visit.complaints == []


def test_choices_are_bars_with_their_texts_in_two_runs_side_by_side(visit: Visit) -> None:
    visit.go("#/samples?run=A&suite=choices&index=30&against=B")
    answers = visit.page.locator("#detail .answer")
    options = answers.nth(0).locator(".option")
    widths = [
        options.nth(at).locator(".fill").evaluate("(bar) => bar.getBoundingClientRect().width")
        for at in range(2)
    ]

    assert answers.count() == 2
    assert answers.nth(0).locator("header").inner_text().split() == ["A", "✗", "wrong", "wrong"]
    assert HOSTILE.strip() in options.nth(0).inner_text()
    assert "target" in options.nth(1).inner_text()
    assert "chosen by acc" in options.nth(1).inner_text()
    assert widths[1] > 100 * widths[0]
    token = options.nth(1).locator(".token-chip").nth(1)
    assert token.inner_text() == "ue"
    assert "log-probability -4.0000" in token.get_attribute("title")


def test_baseline_is_chosen_by_a_click(visit: Visit) -> None:
    visit.go("#/compare?baseline=A")
    row = visit.page.locator(".differences tbody").nth(1).locator("tr").nth(1)
    assert "+0.5000" in row.inner_text()
    visit.page.locator("[data-key=baseline-B]").click()
    visit.page.get_by_role("heading", name="Differences to B").wait_for()

    assert "baseline=B" in visit.page.url
    assert "−0.5000" in row.inner_text()
    assert row.locator(".reading").inner_text() == "worse"
    row.locator("a").click()
    visit.page.locator("#found", has_text="30 of 60 samples").wait_for()


def test_failure_is_shown_in_place_of_scores(visit: Visit) -> None:
    visit.go("#/samples?run=B&suite=sums&which=failed")

    assert "TimeoutError: 30 s" in visit.detail
    assert "Metrics" not in visit.detail


def test_keyboard_goes_through_the_samples(visit: Visit) -> None:
    visit.go("#/samples?run=A&suite=sums")
    visit.page.locator("a.item").first.focus()
    visit.page.keyboard.press("ArrowDown")
    visit.wait("#/samples?run=A&suite=sums&index=1")
    visit.page.keyboard.press("ArrowDown")
    visit.wait("#/samples?run=A&suite=sums&index=2")

    assert "sums · row 2" in visit.detail
    assert visit.page.evaluate("document.activeElement.dataset.index") == "2"
    visit.page.go_back()
    visit.wait("#/samples?run=A&suite=sums&index=1")
    assert "sums · row 1" in visit.detail


def test_equal_runs_have_intervals_within_their_range_and_no_plot_of_differences(
    show: OpenPage, make_run: Any, make_suite: Any, make_sample: Any
) -> None:
    all_right = [make_run(make_suite("sums", [make_sample(row) for row in range(8)]))] * 2
    with show(*all_right) as visit:
        score = visit.page.locator(".matrix td").nth(0).inner_text()
        assert score.split() == ["1.0000", "0.6756", "to", "1.0000"]
        visit.go("#/compare")
        assert visit.page.locator(".reading").all_inner_texts() == ["same value"]
        assert visit.page.locator(".plot").count() == 0


def test_rows_that_only_one_run_answered_compare_nothing(
    show: OpenPage, make_run: Any, make_suite: Any, make_sample: Any
) -> None:
    right = [make_sample(row) for row in range(8)]
    failed = [make_sample(row, 0.0, error="died", prediction=None) for row in range(8)]
    with show(make_run(make_suite("sums", right)), make_run(make_suite("sums", failed))) as visit:
        (said,) = visit.page.locator(".summary li").all_inner_texts()
        assert said == "B and A can't be compared by rows on sums."
        visit.go("#/compare")
        assert visit.page.locator(".reading").all_inner_texts() == ["no pairs of rows"]


def test_reason_that_a_metric_is_not_compared_is_named(
    show: OpenPage, make_run: Any, make_suite: Any, make_sample: Any
) -> None:
    def make_side(value: float) -> Any:
        news = [make_sample(row, None) for row in range(8)]
        bleu = {"bleu": MetricResult(20 * value, None, True, 8)}
        sums = [make_sample(row, value, group="one") for row in range(8)]
        return make_run(make_suite("news", news, metrics=bleu), make_suite("sums", sums))

    with show(make_side(0.0), make_side(1.0)) as visit:
        (said,) = visit.page.locator(".summary li").all_inner_texts()
        assert said == (
            "B and A can't be compared on sums, where both answered too few rows; can't be "
            "compared by rows on news."
        )
        visit.go("#/compare")
        readings = visit.page.locator(".reading").all_inner_texts()
        assert readings == ["no test for this metric", "too few rows"]


def test_probability_is_in_no_mean_and_leads_to_all_rows_the_worst_first(
    show: OpenPage, make_run: Any, make_suite: Any, make_sample: Any
) -> None:
    sums, signs = (
        make_suite(name, [make_sample(row, float(row < 3)) for row in range(6)])
        for name in ("sums", "signs")
    )
    metrics = {"acc": MetricResult(0.65, 0.076, True, 6, (0.5, 0.8))}
    shares = [make_sample(row, 0.9 - row / 10) for row in range(6)]
    with show(make_run(sums, make_suite("truth", shares, metrics=metrics), signs)) as visit:
        heading = visit.page.locator(".matrix th .metric-name").last
        assert heading.get_attribute("title") == "sums, signs"
        assert visit.page.locator(".matrix tbody td").last.inner_text() == "0.5000"
        visit.page.locator(".matrix a.value").nth(1).click()
        visit.wait("#/samples?run=A&suite=truth&sort=value")
        assert visit.places == ["5", "4", "3", "2", "1", "0"]
        visit.go("#/run?run=A")
        links = visit.page.locator("a.value").evaluate_all("(all) => all.map((each) => each.hash)")
        assert ["which=wrong" in link for link in links] == [True, False, True]


def test_infinite_perplexities_are_the_worst(
    show: OpenPage, make_run: Any, make_suite: Any, make_sample: Any
) -> None:
    values = [{"ppl": 3.0}, {"ppl": math.inf}, {"ppl": 7.0}, {}]
    samples = [make_sample(row, None, metrics=each) for row, each in enumerate(values)]
    with show(make_run(make_suite("prose", samples, higher=False))) as visit:
        visit.page.locator(".matrix a.value").click()
        visit.wait("#/samples?run=A&suite=prose&sort=-value")
        assert visit.places == ["1", "2", "0", "3"]
        visit.go("#/samples?run=A&suite=prose&sort=value")
        assert visit.places == ["0", "2", "1", "3"]


def test_samples_are_counted_of_the_run_that_is_shown(
    show: OpenPage, make_run: Any, make_suite: Any, make_sample: Any
) -> None:
    runs = [make_run(make_suite("sums", [*map(make_sample, range(size))])) for size in (5, 60)]
    with show(*runs) as visit:
        for run, size in (("A", 5), ("B", 60)):
            visit.go(f"#/samples?run={run}&suite=sums")
            assert visit.page.locator("#found").inner_text() == f"{size} of {size} samples"
            assert visit.page.get_by_text("This page holds").count() == 0


def test_flipped_rows_are_those_of_the_comparison(
    show: OpenPage, make_run: Any, make_suite: Any, make_sample: Any
) -> None:
    values = [[(1, 0), (0, 1), (0, 0)], [(1, 0), (0.5, 0), (1, 0)]]  # em alone is 0 or 1 in both
    runs = [
        make_run(make_suite("sums", [
            make_sample(row, metrics={"f1": f1, "em": em}, extracted={"f1": "no", "em": "yes"})
            for row, (f1, em) in enumerate(side)
        ]))
        for side in values
    ]  # fmt: skip
    with show(*runs) as visit:
        visit.go("#/compare")
        visit.page.locator(".differences td a").click()
        visit.wait("#/samples?run=B&suite=sums&against=A&which=flipped")
        assert visit.places == ["1"]
        verdicts = visit.page.locator("#detail header .hidden").all_inner_texts()
        assert verdicts == ["wrong", "right"]
        assert visit.page.locator("a.item .place").inner_text() == "row 1 · yes · target target 1"
        visit.go("#/samples?run=A&suite=sums&against=B&which=wrong")
        assert visit.places == ["0", "2"]


def test_page_says_no_more_than_the_rows_that_it_holds(
    show: OpenPage, make_run: Any, make_suite: Any, make_sample: Any
) -> None:
    right = make_suite("sums", [make_sample(row, float(row != 0)) for row in range(60)])
    failed = [make_sample(row, 0.0, error="died", prediction=None) for row in range(3)]
    with show(make_run(right, make_suite("dead", failed)), samples_per_suite=5) as visit:
        visit.go("#/samples?run=A&suite=sums&which=wrong")
        said = visit.page.locator(".none").first
        (text, link) = said.inner_text().split("\n\n")
        assert text == "None of the 5 rows that this page holds is wrong."
        assert link == "Show all 5 samples"
        assert visit.page.locator("#found").inner_text() == "0 of 5 samples"
        visit.go("#/samples?run=A&suite=dead&which=wrong")
        assert said.inner_text().startswith("No answer is wrong; 3 samples failed.")


def test_at_most_eight_runs_are_compared_the_last_that_were_chosen(
    show: OpenPage, make_run: Any, make_suite: Any, make_sample: Any
) -> None:
    whole = [make_run(make_suite("sums", [make_sample(0)])) for _ in range(22)]
    broken = make_run(status="failed", error={"type": "OSError", "message": "", "suite": None})
    with show(broken, *whole) as visit:
        assert "A was ended by an error" in visit.page.locator(".summary").inner_text()
        notes = " ".join(visit.page.locator(".charts .note").all_inner_texts())
        assert "The first 12 of 22 runs are plotted." in notes
        visit.go("#/compare")
        pressed = visit.page.locator("[data-key^=compared][aria-pressed=true] .badge")
        assert "".join(pressed.all_inner_texts()) == "CDEFGHIJ"
        visit.page.locator("[data-key=compared-M]").click()
        visit.page.locator("[data-key=compared-M][aria-pressed=true]").wait_for()
        assert "".join(pressed.all_inner_texts()) == "DEFGHIJM"
        visit.go("#/compare?baseline=B&runs=C")
        visit.page.locator("[data-key=compared-C]").click()
        visit.page.locator("[data-key=compared-C][aria-pressed=false]").wait_for()
        assert pressed.count() == 0


def test_skipping_to_the_content_keeps_the_page(visit: Visit) -> None:
    visit.go("#/samples?run=A&suite=sums")
    visit.page.locator("a.skip").focus()
    visit.page.keyboard.press("Enter")
    assert visit.page.evaluate("document.activeElement.id") == "content"
    assert visit.page.url.endswith("#/samples?run=A&suite=sums")


def test_section_of_a_report_is_reached_from_any_page(
    show: OpenPage, make_run: Any, parity_folder: Path
) -> None:
    with show(make_run(), parity=read_folders([str(parity_folder)]).parity) as visit:
        visit.go("#/run?run=A")
        assert not visit.page.locator("#parity").is_visible()
        visit.page.get_by_role("link", name="Parity").click()
        visit.wait("#parity")
        assert visit.page.locator("#parity").is_visible()


def test_numbers_of_settings_are_whole_and_tokens_may_lack_a_text(visit: Visit) -> None:
    shown = visit.page.evaluate("[1e-6, 1234567.89, 3, [0.5, 1e-5]].map(Dom.plain)")
    assert shown == ["0.000001", "1234567.89", "3", "0.5, 0.00001"]
    visit.go("#/samples?run=A&suite=choices&index=1")
    assert "·" in visit.page.locator(".token-chip").all_inner_texts()


def test_scores_of_several_steps_are_a_curve(
    show: OpenPage, make_run: Any, make_suite: Any, make_sample: Any
) -> None:
    def at(step: int) -> Any:
        suites = [make_suite(f"suite {number}", [make_sample(0)]) for number in range(9)]
        return make_run(*suites, step=step)

    with show(at(0), at(50)) as found:
        signs = found.page.locator(".charts", has_text="Scores over training").locator(
            ".legend svg"
        )
        drawn = {signs.nth(number).evaluate("(sign) => sign.innerHTML") for number in range(9)}

    assert len(drawn) == 9  # no two of nine series look the same


def test_interval_beyond_a_bound_is_cut_and_equal_scores_have_no_plot_of_differences(
    show: OpenPage, make_run: Any, make_suite: Any, make_sample: Any
) -> None:
    def suites(share: float) -> list[Any]:
        metrics = {"acc": MetricResult(share, 0.1, True, 3, (share - 0.2, share + 0.2))}
        samples = [make_sample(0), make_sample(1, 0.0)]
        prose = [make_sample(row, None, metrics={"ppl": row + 2.0}) for row in range(3)]
        return [
            make_suite("sums", samples, metrics=metrics),
            make_suite("prose", prose, higher=False),
        ]

    with show(make_run(*suites(0.9)), make_run(*suites(0.95))) as visit:
        shares = visit.page.locator("figure").nth(0)
        lines = shares.locator("g[aria-label=rule] line").all()
        ends = [float(line.get_attribute("x2")) for line in lines[-2:]]
        ticks = shares.locator("g[aria-label='x-axis tick label'] text")
        assert ticks.last.text_content() == "1"
        assert len(set(ends)) == 1  # both at the bound
        assert visit.page.locator(".value.best").all_inner_texts() == ["0.9500\nbest"]
        visit.go("#/compare")
        titles = visit.page.locator("figcaption").all_inner_texts()
        assert titles == ["Scores from 0 to 1: difference to A → better"]


def test_page_on_paper_is_light_and_says_which_runs_it_compares(visit: Visit) -> None:
    visit.go("#/compare?baseline=B&runs=A")
    visit.page.emulate_media(media="print", color_scheme="dark")
    visit.page.set_viewport_size({"width": 680, "height": 1000})  # of a sheet of A4
    chosen = [
        each.inner_text().strip() for each in visit.page.locator("button.choice:visible").all()
    ]

    assert [each[0] for each in chosen] == ["B", "A"]
    paper = "getComputedStyle(document.body).backgroundColor"
    assert visit.page.evaluate(paper) == "rgb(255, 255, 255)"
    table = visit.page.locator(".differences").evaluate(
        "(found) => found.getBoundingClientRect().right"
    )
    assert table <= 680
    visit.go("#/samples?run=A&suite=choices&index=30&against=B")
    fill = visit.page.locator(".fill").last
    assert fill.evaluate("(found) => getComputedStyle(found).printColorAdjust") == "exact"
    assert visit.page.locator(".detail-head a:visible, .filters:visible").count() == 0
