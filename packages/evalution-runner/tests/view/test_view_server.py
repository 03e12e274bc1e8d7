"""The server of the pages: its documents, what it refuses, and runs that go on."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

import evalution.view.documents as forms
from evalution import SampleResult
from evalution.runs.progress_file import PROGRESS, RunState
from evalution.runs.store import JOURNAL
from evalution.samples import to_line
from evalution.view.catalog import RunCatalog
from evalution.view.server import ViewServer, bind_socket
from evalution_core import ConfigurationError

pytest.importorskip("httpx", reason="starlette's test client needs httpx")
from starlette.testclient import TestClient

PORT = 4711
Answered = Callable[..., SampleResult]


@dataclass(frozen=True)
class Page:
    html: str = "<p>runs</p>"
    policy: str = "default-src 'none'"


@pytest.fixture
def client(
    tmp_path: Path, run_folder: Callable[..., Path], answered: Answered
) -> Iterator[TestClient]:
    """Two runs: `a` is finished, `sub/b` was interrupted in its second suite."""
    whole = [answered(row, right=row > 0) for row in range(4)]
    run_folder(tmp_path / "a", {"sums": whole}, notices=["key sk-ant-api03-abcdefgh"])
    half = [answered(row, suite="more", right=False) for row in (2, 0)]
    run_folder(
        tmp_path / "sub" / "b",
        {"sums": [answered(row) for row in range(4)]},
        {"more": half},
        error={"type": "KeyboardInterrupt", "message": "", "suite": "more"},
        started="2026-01-03T03:04:05+00:00",
        planned={"sums": 4, "more": 9},
    )
    app = ViewServer(RunCatalog([tmp_path]), Page()).make_app(PORT)
    with TestClient(app, base_url=f"http://127.0.0.1:{PORT}") as client:
        yield client


def read(client: TestClient, path: str, **query: Any) -> Any:
    answer = client.get(path, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_matrix_has_every_run_with_its_scores(client: TestClient) -> None:
    newer, older = read(client, "/api/runs")["runs"]
    assert [run["id"] for run in (newer, older)] == ["sub/b", "a"]
    assert [run["status"] for run in (newer, older)] == ["interrupted", "finished"]
    assert older.keys() == forms.RunDocument.__annotations__.keys()
    assert older["progress"]["done"] == older["progress"]["total"] == 4
    (score,) = older["scores"]
    assert (score["suite"], score["value"], score["main"]) == ("sums", 0.75, True)
    partial = newer["scores"][1]
    assert (partial["suite"], partial["value"], partial["count"]) == ("more", 0.0, 2)
    assert partial["is_partial"] is True
    assert (newer["progress"]["done"], newer["progress"]["total"]) == (6, 13)


def test_lower_is_better_of_a_perplexity_that_is_under_way(
    tmp_path: Path, run_folder: Callable[..., Path]
) -> None:
    values = {"word_perplexity": 3.0, "acc,part": 1.0}
    run_folder(tmp_path / "a", {}, {"prose": [SampleResult("prose", 0, metrics=values)]})
    app = ViewServer(RunCatalog([tmp_path]), Page()).make_app(PORT)
    with TestClient(app, base_url=f"http://127.0.0.1:{PORT}") as client:
        (run,) = read(client, "/api/runs")["runs"]
    (score,) = run["scores"]
    assert (score["metric"], score["higher_is_better"]) == ("word_perplexity", False)


def test_score_has_the_number_of_its_groups_and_one_of_a_running_suite_no_interval(
    tmp_path: Path, run_folder: Callable[..., Path], answered: Answered
) -> None:
    samples = [answered(row, group=f"text {row // 2}") for row in range(4)]
    folder = run_folder(tmp_path / "a", {"sums": samples})
    document = json.loads((folder / "results.json").read_text())
    document["suites"][0]["metrics"]["exact_match"]["groups"] = 2
    (folder / "results.json").write_text(json.dumps(document))
    later = [answered(row, suite="more", group=f"text {row // 2}") for row in range(4)]
    run_folder(tmp_path / "b", {}, {"more": later})
    app = ViewServer(RunCatalog([tmp_path]), Page()).make_app(PORT)
    with TestClient(app, base_url=f"http://127.0.0.1:{PORT}") as client:
        runs = {run["id"]: run["scores"] for run in read(client, "/api/runs")["runs"]}
    assert runs["a"][0]["groups"] == 2
    (partial,) = runs["b"]
    assert (partial["is_partial"], partial["low"], partial["high"]) == (True, None, None)


def test_details_hold_no_secret(client: TestClient) -> None:
    found = read(client, "/api/runs/sub/b")
    assert found.keys() == forms.RunDetailDocument.__annotations__.keys()
    assert found["error"] == "interrupted in suite more"
    suites = [(suite["name"], suite["is_finished"], suite["samples"]) for suite in found["suites"]]
    assert suites == [("sums", True, 4), ("more", False, 2)]
    assert "sk-secret" not in json.dumps(found)


def test_samples_are_listed_shown_and_compared(client: TestClient) -> None:
    page = read(client, "/api/samples", run="a", suite="sums", which="flipped", against="sub/b")
    assert [row["index"] for row in page["samples"]] == [0]
    sample = read(client, "/api/sample", run="a", suite="sums", index=0, which="wrong")
    assert (sample["prompt"], sample["right"], sample["next"]) == ("What is 0 + 1?", False, None)
    compared = read(client, "/api/compare", runs=["sub/b", "a"], baseline="a")
    assert compared.keys() == forms.ComparisonDocument.__annotations__.keys()
    (difference,) = compared["differences"]
    assert difference.keys() == forms.DifferenceDocument.__annotations__.keys()
    assert (difference["difference"], difference["gained"], difference["lost"]) == (0.25, 1, 0)
    assert compared["flipped"] == {"sub/b": {"sums": 1}}
    assert compared["remarks"]["sub/b"] == [
        "the other run is interrupted: only its finished suites are compared"
    ]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/api/runs/c", "there is no run 'c'"),
        ("/api/runs/..%2F..%2Fetc", "there is no run '../../etc'"),
        ("/api/samples?run=a", "suite is missing; name it as ?suite=…"),
        ("/api/samples?run=a&suite=sum", "run 'a' has no suite 'sum'; did you mean 'sums'?"),
        ("/api/samples?run=a&suite=sums&limit=x", "limit must be a whole number from 0, got 'x'"),
        ("/api/sample?run=a&suite=sums", "index must be a whole number from 0, got None"),
        ("/api/sample?run=a&suite=sums&index=7", "has no row 7 (4 samples)"),
        ("/api/compare?runs=a", "baseline is missing"),
    ],
)
def test_wrong_question_is_answered_by_a_sentence(
    client: TestClient, path: str, message: str
) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    assert message in answer.json()["error"]


@pytest.mark.parametrize(
    "host", ["evil.example", f"evil.example:{PORT}", "127.0.0.1", "127.0.0.1:1"]
)
def test_request_for_another_host_is_refused(client: TestClient, host: str) -> None:
    for path in ("/", "/api/runs"):
        answer = client.get(path, headers={"host": host})
        assert answer.status_code == 421
        assert f"127.0.0.1:{PORT}" in answer.json()["error"]


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]"])
def test_own_names_are_answered(client: TestClient, host: str) -> None:
    assert client.get("/", headers={"host": f"{host}:{PORT}"}).status_code == 200


def test_answers_are_read_only_and_for_this_page_alone(client: TestClient) -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert client.request(method, "/api/runs").status_code == 405
    page = client.get("/", headers={"origin": "http://evil.example"})
    assert page.text == Page.html
    assert page.headers["content-security-policy"] == Page.policy
    for answer in (page, client.get("/api/runs"), client.get("/api/runs/x")):
        assert "access-control-allow-origin" not in answer.headers
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"


def test_unchanged_document_is_not_sent_again(client: TestClient, tmp_path: Path) -> None:
    tag = client.get("/api/runs").headers["etag"]
    assert client.get("/api/runs", headers={"if-none-match": tag}).status_code == 304
    with (tmp_path / "sub" / "b" / "samples.jsonl").open("ab") as file:
        file.write(to_line(SampleResult("more", 3, "p", metrics={"exact_match": 1.0})))
    changed = client.get("/api/runs", headers={"if-none-match": tag})
    assert changed.status_code == 200
    assert changed.json()["runs"][0]["progress"]["done"] == 7


def test_run_that_goes_on_shows_its_progress_and_what_came_last(
    client: TestClient, tmp_path: Path
) -> None:
    folder = tmp_path / "sub" / "b"
    state = RunState(suite="more", suite_done=2, suite_total=9, done=6, total=13, left_s=3.0)
    (folder / PROGRESS).write_text(json.dumps(asdict(state)))
    running = read(client, "/api/runs")["runs"][0]
    assert running["status"] == "running"
    assert (running["progress"]["done"], running["progress"]["eta_s"]) == (6, 3.0)
    latest = read(client, "/api/latest", run="sub/b")
    assert (latest["suite"], [row["index"] for row in latest["samples"]]) == ("more", [0, 2])
    assert read(client, "/api/latest", run="a")["samples"] == []
    os.utime(folder / PROGRESS, (1, 1))
    assert read(client, "/api/runs")["runs"][0]["status"] == "interrupted"


def test_run_whose_samples_begin_after_its_results_goes_on(
    client: TestClient, tmp_path: Path
) -> None:
    folder = tmp_path / "sub" / "b"
    samples = (folder / "samples.jsonl").rename(tmp_path / "later")
    (folder / PROGRESS).write_text(json.dumps(asdict(RunState(suite="more", total=13))))
    assert read(client, "/api/runs")["runs"][0]["status"] == "running"
    samples.rename(folder / "samples.jsonl")
    read(client, "/api/runs")
    assert read(client, "/api/latest", run="sub/b")["suite"] == "more"


def test_run_without_the_suite_stands_beside_nothing(client: TestClient) -> None:
    page = read(client, "/api/samples", run="sub/b", suite="more", against="a")
    assert [(row["index"], row["other"]) for row in page["samples"]] == [(0, None), (2, None)]


def test_run_is_listed_while_its_model_is_loaded(client: TestClient, tmp_path: Path) -> None:
    folder = tmp_path / "new"
    folder.mkdir()
    (folder / JOURNAL).touch()
    state = RunState(loading=("m", "Mock"), suites=2, total=13)
    (folder / PROGRESS).write_text(json.dumps(asdict(state)))
    newest, *others = read(client, "/api/runs")["runs"]
    assert (newest["id"], newest["status"], newest["label"]) == ("new", "loading", "m on Mock")
    assert (newest["progress"]["total"], newest["scores"]) == (13, [])
    assert [run["label"] for run in others] == ["my model on Mock, b", "my model on Mock, a"]
    assert read(client, "/api/runs/new")["suites"] == []
    (folder / PROGRESS).unlink()
    *_, gone = read(client, "/api/runs")["runs"]
    assert (gone["id"], gone["status"]) == ("new", "failed")
    assert "the model of the run in it was never loaded" in gone["problem"]


def test_other_pages_are_answered_during_a_comparison(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compare(*runs: object) -> int:
        return len(read(client, "/api/runs")["runs"])

    monkeypatch.setattr("evalution.view.server.compare_runs", compare)
    assert read(client, "/api/compare", baseline="a", runs=["sub/b"]) == 2


def test_damaged_run_is_named_beside_the_others(client: TestClient, tmp_path: Path) -> None:
    (tmp_path / "a" / "results.json").write_text("{}")
    *others, broken = read(client, "/api/runs")["runs"]
    assert [run["id"] for run in others] == ["sub/b"]
    assert (broken["id"], broken["status"]) == ("a", "failed")
    assert "a/results.json is no result of a run: it has no schema_version" in broken["problem"]
    answer = client.get("/api/runs/a")
    assert (answer.status_code, answer.json()["error"]) == (404, broken["problem"])


def test_damaged_samples_are_named_where_they_are_wanted(
    client: TestClient, tmp_path: Path
) -> None:
    (tmp_path / "a" / "samples.jsonl").write_text("{}\n")
    assert len(read(client, "/api/runs")["runs"]) == 2
    answer = client.get("/api/samples", params={"run": "a", "suite": "sums"})
    assert (answer.status_code, "is damaged" in answer.json()["error"]) == (404, True)


def test_runs_of_several_folders_have_ids_of_their_own(
    tmp_path: Path, run_folder: Callable[..., Path], answered: Answered
) -> None:
    for place in ("x/run", "y/run"):
        run_folder(tmp_path / place, {"sums": [answered(0)]})
    folders = [tmp_path / "x", tmp_path / "y", tmp_path / "x" / "run"]
    assert [run.id for run in RunCatalog(folders).list_runs()] == ["run", "run~2", "run~3"]
    with pytest.raises(ConfigurationError, match=r"there is no folder .*/z; name the one in wh"):
        RunCatalog([tmp_path / "z"]).list_runs()


@pytest.mark.parametrize("name", ["results.json", PROGRESS])
def test_file_that_is_nested_too_deeply_hides_no_other_run(
    tmp_path: Path, run_folder: Callable[..., Path], answered: Answered, name: str
) -> None:
    for run in ("bad", "good"):
        run_folder(tmp_path / run, {"sums": [answered(0)]}, {"more": [answered(1, suite="more")]})
    (tmp_path / "bad" / name).write_text("[" * 200_000)
    assert [run.id for run in RunCatalog([tmp_path]).list_runs()] == ["bad", "good"]


def test_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"port {port} can't be used: Address already"):
            bind_socket(port)
