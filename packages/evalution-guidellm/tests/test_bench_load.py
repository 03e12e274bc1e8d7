"""The load and the subject of a benchmark, as GuideLLM is told them, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evalution_core import ConfigurationError, EngineUnavailableError
from evalution_guidellm.bench.command import counts, engine_subject, rates, served_subject
from evalution_guidellm.bench.load import Load, Profile


def test_a_load_is_eight_at_once_for_a_hundred_requests_unless_it_says_else() -> None:
    spec = Load().spec()
    assert spec["profile"] == {"kind": "concurrent", "streams": 8}
    assert spec["constraints"] == [{"kind": "max_requests", "count": 100}]
    assert spec["data"] == [{"kind": "synthetic_text", "prompt_tokens": 256, "output_tokens": 128}]
    assert spec["seed"] == {"kind": "static", "value": 42}


@pytest.mark.parametrize(
    ("load", "profile", "levels"),
    [
        (Load(Profile.SYNCHRONOUS), {"kind": "synchronous"}, [None]),
        (
            Load(Profile.CONCURRENT, [1, 4]),
            {"kind": "concurrent", "streams": 1},
            [{"profile.streams": 1}, {"profile.streams": 4}],
        ),
        (Load(Profile.THROUGHPUT), {"kind": "throughput", "max_concurrency": None}, [None]),
        (Load(Profile.THROUGHPUT, [64]), {"kind": "throughput", "max_concurrency": 64}, [None]),
        (
            Load(Profile.RATE, rate=[0.5, 2]),
            {"kind": "constant", "rate": 0.5},
            [{"profile.rate": 0.5}, {"profile.rate": 2}],
        ),
    ],
)
def test_each_profile_has_its_levels(
    load: Load, profile: dict[str, Any], levels: list[Any]
) -> None:
    assert load.spec()["profile"] == profile
    assert load.levels() == levels


def test_time_ends_a_level_by_itself_or_with_a_number_of_requests() -> None:
    assert Load(seconds=5).spec()["constraints"] == [{"kind": "max_duration", "seconds": 5}]
    both = Load(requests=9, seconds=5).spec()["constraints"]
    assert [each["kind"] for each in both] == ["max_requests", "max_duration"]


@pytest.mark.parametrize(
    ("name", "kind"), [("rows.jsonl", "json_file"), ("a.CSV", "csv_file"), ("b.txt", "text_file")]
)
def test_a_file_takes_the_place_of_made_up_prompts(tmp_path: Path, name: str, kind: str) -> None:
    file = tmp_path / name
    file.touch()
    load = Load(data=file)
    assert load.spec()["data"] == [{"kind": kind, "path": str(file)}]
    assert not load.is_made_up
    assert load.to_dict()["data"] == name


def test_no_row_of_a_file_is_asked_twice(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.touch()
    assert Load(data=file).within(7).requests == 7
    assert Load(data=file, requests=3).within(7).requests == 3
    assert Load(data=file, requests=9).within(7).requests == 7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rate": [1]}, "--rate is for --profile rate; this is --profile concurrent"),
        ({"profile": Profile.RATE}, "--profile rate needs --rate"),
        ({"profile": Profile.SYNCHRONOUS, "concurrency": [2]}, "--concurrency is for"),
        ({"profile": Profile.THROUGHPUT, "concurrency": [2, 3]}, "takes one --concurrency"),
        ({"data": Path("no.jsonl")}, "there is no such file"),
        ({"data": Path("rows.xml")}, "must end in one of .csv, .json"),
        ({"data": Path("rows.csv"), "prompt_tokens": 3}, "is for made-up prompts"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Load(**options)


@pytest.mark.parametrize("text", ["", "0", "1,", "x", "-1", "1.5"])
def test_a_list_of_counts_holds_counts(text: str) -> None:
    with pytest.raises(ConfigurationError, match="no list of counts; as --concurrency 1,8"):
        counts("--concurrency", text)
    assert counts("--concurrency", "1, 8") == [1, 8]


def test_a_count_is_one_that_a_machine_can_ask_at_once() -> None:
    with pytest.raises(ConfigurationError, match="--concurrency '1,99999999999': at most 65536"):
        counts("--concurrency", "1,99999999999")


@pytest.mark.parametrize("text", ["", "0", "1,", "x", "-1", "nan", "inf"])
def test_a_list_of_rates_holds_rates(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"no list of rates; as --rate 0\.5,2"):
        rates("--rate", text)
    assert rates("--rate", "0.5, 2") == [0.5, 2]


def test_an_engine_is_told_by_its_names_and_options() -> None:
    subject = engine_subject(
        "Reference", "builtin:tiny", ["batch_size=4"], ["label=small"], check_first=True
    )
    backend = subject.backend(chat=False, max_tokens=9)
    assert backend["options"] == {"batch_size": 4}
    assert backend["model"] == "builtin:tiny"
    assert backend["model_options"] == {"label": "small"}
    assert backend["request_format"] == "/v1/completions"
    assert subject.backend(chat=True, max_tokens=9)["request_format"] == "/v1/chat/completions"
    assert subject.title == "small on Reference"
    subject.checked()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((None, "m", [], []), "nothing to measure: --engine NAME and a MODEL, or --target URL"),
        (("Reference", "m", ["dtype"], []), "--option 'dtype' is not KEY=VALUE"),
        (("Reference", "m", [], ["revison=1"]), "did you mean 'revision'"),
    ],
)
def test_a_subject_that_can_not_be_read_is_refused(words: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        engine_subject(*words, check_first=True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("Referenc", "builtin:tiny", [], []), "no engine 'Referenc' is installed"),
        (("Reference", "builtin:tiny", ["dtyp=1"], []), "has no option 'dtyp'"),
        (("Reference", None, [], []), "Reference needs a MODEL"),
    ],
)
def test_an_engine_is_checked_before_work(words: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        engine_subject(*words, check_first=True).checked()


def test_a_servers_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match=r"--api-key-env NO_SUCH: that .* is not set"):
        served_subject("http://127.0.0.1:9", None, "NO_SUCH")
    monkeypatch.setenv("MY_KEY", "a-secret-of-the-test")
    subject = served_subject("http://127.0.0.1:9/v1", "tiny", "MY_KEY")
    assert subject.backend(chat=False, max_tokens=1)["api_key"] == "a-secret-of-the-test"
    assert "a-secret" not in f"{subject!r} {subject.to_dict()} {subject.title}"


@pytest.mark.parametrize("name", ["user:hunter2@", "user@", ":hunter2@"])
def test_one_of_two_credentials_for_a_server_is_refused_before_it_is_asked(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("MY_KEY", "a-secret-of-the-test")
    with pytest.raises(ConfigurationError) as refused:
        served_subject(f"http://{name}127.0.0.1:9/v1", "tiny", "MY_KEY")
    message = str(refused.value)
    assert "holds a name and password, which would be sent in place of the key in MY_KEY" in message
    assert "hunter2" not in message
    assert "a-secret" not in message
    alone = served_subject(f"http://{name}127.0.0.1:9/v1", "tiny", None)
    assert "hunter2" not in f"{alone.to_dict()} {alone.title}"


@pytest.mark.parametrize(
    ("target", "kind", "message"),
    [
        (
            "http://127.0.0.1:9",
            EngineUnavailableError,
            r"no server answers at http://127\.0\.0\.1:9 .*; start it",
        ),
        ("127.0.0.1:8000", ConfigurationError, "is no URL of a server"),
        ("ftp://127.0.0.1", ConfigurationError, "is no URL of a server"),
    ],
)
def test_a_server_that_is_away_is_told_before_work(
    target: str, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        served_subject(target, None, None).checked()
