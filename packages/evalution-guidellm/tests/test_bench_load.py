"""The load and the subject of a benchmark in GuideLLM's terms, and their refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evalution_core import ConfigurationError, EngineUnavailableError
from evalution_guidellm.bench.command import parse_numbers
from evalution_guidellm.bench.load import Load, Profile
from evalution_guidellm.bench.subject import EngineSubject, ServedSubject


def test_default_load_is_eight_at_once_for_a_hundred_requests() -> None:
    spec = Load().make_spec()
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
    assert load.make_spec()["profile"] == profile
    assert load.list_levels() == levels


def test_level_ends_by_time_or_with_a_number_of_requests() -> None:
    assert Load(seconds=5).make_spec()["constraints"] == [{"kind": "max_duration", "seconds": 5}]
    both = Load(requests=9, seconds=5).make_spec()["constraints"]
    assert [each["kind"] for each in both] == ["max_requests", "max_duration"]


@pytest.mark.parametrize(
    ("name", "kind"), [("rows.jsonl", "json_file"), ("a.CSV", "csv_file"), ("b.txt", "text_file")]
)
def test_file_replaces_synthetic_prompts(tmp_path: Path, name: str, kind: str) -> None:
    file = tmp_path / name
    file.touch()
    load = Load(data=file)
    assert load.make_spec()["data"] == [{"kind": kind, "path": str(file)}]
    assert load.to_dict()["data"] == load.make_spec()["data"]


def test_row_of_a_file_is_asked_at_most_once(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.touch()
    assert Load(data=file).limit_to(7).requests == 7
    assert Load(data=file, requests=3).limit_to(7).requests == 3
    assert Load(data=file, requests=9).limit_to(7).requests == 7


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
def test_contradicting_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Load(**options)


@pytest.mark.parametrize("text", ["", "0", "1,", "x", "-1", "1.5", "1,99999999999"])
def test_list_of_counts_holds_counts(text: str) -> None:
    with pytest.raises(
        ConfigurationError, match="no list of numbers above 0 and at most 65536; as"
    ):
        parse_numbers("--concurrency", text, int, "1,8")
    assert parse_numbers("--concurrency", "1, 8", int, "1,8") == [1, 8]


@pytest.mark.parametrize("text", ["", "0", "1,", "x", "-1", "nan", "inf"])
def test_list_of_rates_holds_rates(text: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"no list of numbers above 0 .*; as --rate 0\.5,2"
    ):
        parse_numbers("--rate", text, float, "0.5,2")
    assert parse_numbers("--rate", "0.5, 2", float, "0.5,2") == [0.5, 2]


def test_engine_subject_becomes_a_backend() -> None:
    model = {"path": "builtin:tiny", "label": "small"}
    subject = EngineSubject("Reference", {"batch_size": 4}, model)
    backend = subject.make_backend(chat=False, max_tokens=9)
    assert backend["options"] == {"batch_size": 4}
    assert backend["model"] == "builtin:tiny"
    assert backend["model_options"] == {"label": "small"}
    assert backend["request_format"] == "/v1/completions"
    assert subject.make_backend(chat=True, max_tokens=9)["request_format"] == "/v1/chat/completions"
    assert subject.title == "small on Reference"
    assert subject.resolve() is subject


@pytest.mark.parametrize(
    ("subject", "message"),
    [
        (EngineSubject("Referenc"), "no engine 'Referenc' is installed"),
        (EngineSubject("Reference", {"dtyp": 1}), "has no option 'dtyp'"),
        (EngineSubject("Reference"), "Reference needs a MODEL"),
    ],
)
def test_wrong_engine_is_refused_before_work(subject: EngineSubject, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        subject.resolve()


def test_key_of_a_server_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match=r"--api-key-env NO_SUCH: that .* is not set"):
        ServedSubject("http://127.0.0.1:9", None, "NO_SUCH")
    monkeypatch.setenv("MY_KEY", "a-secret-of-the-test")
    subject = ServedSubject("http://127.0.0.1:9/v1", "tiny", "MY_KEY")
    assert subject.make_backend(chat=False, max_tokens=1)["api_key"] == "a-secret-of-the-test"
    assert "a-secret" not in f"{subject!r} {subject.to_dict()} {subject.title}"


@pytest.mark.parametrize("name", ["user:hunter2@", "user@", ":hunter2@"])
def test_key_beside_credentials_in_the_url_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("MY_KEY", "a-secret-of-the-test")
    with pytest.raises(ConfigurationError) as refused:
        ServedSubject(f"http://{name}127.0.0.1:9/v1", "tiny", "MY_KEY")
    message = str(refused.value)
    assert "holds a name and password, which would be sent in place of the key in MY_KEY" in message
    assert "hunter2" not in message
    assert "a-secret" not in message
    alone = ServedSubject(f"http://{name}127.0.0.1:9/v1", "tiny", None)
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
def test_unreachable_server_is_refused_before_work(
    target: str, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        ServedSubject(target, None, None).resolve()
