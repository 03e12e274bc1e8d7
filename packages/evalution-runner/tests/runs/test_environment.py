"""What a result says about the software, the commit and the tokenizer that made it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import evalution
from evalution.environment import find_commit, make_tokenizer_record, read_software_versions
from evalution.suites import Perplexity
from evalution_core import Model
from evalution_core.builtins import builtin_path
from evalution_enginekit import ChatTemplate
from evalution_enginekit.mock import Mock
from evalution_reference import Reference

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a distribution's metadata where Python finds it."""
    monkeypatch.syspath_prepend(tmp_path)

    def put(name: str, *requires: str, origin: Any = None, entry: str = "") -> None:
        info = tmp_path / f"{name.replace('-', '_')}-3.0.dist-info"
        info.mkdir()
        lines = [f"Requires-Dist: {line}\n" for line in requires]
        head = f"Metadata-Version: 2.1\nName: {name}\nVersion: 3.0\n"
        (info / "METADATA").write_text(head + "".join(lines), encoding="utf-8")
        (info / "entry_points.txt").write_text(entry, encoding="utf-8")
        if origin is not None:
            text = origin if isinstance(origin, str) else json.dumps(origin)
            (info / "direct_url.json").write_text(text, encoding="utf-8")

    return put


@pytest.fixture(autouse=True)
def fresh_commits() -> Iterator[None]:
    find_commit.cache_clear()
    yield
    find_commit.cache_clear()


def test_runner_the_engine_and_what_it_computes_with_are_recorded() -> None:
    found = read_software_versions("evalution-reference")
    assert set(found) >= {
        "python",
        "platform",
        "machine",
        "evalution-runner",
        "evalution-core",
        "evalution-enginekit",
        "evalution-reference",
        "numpy",
        "safetensors",
        "tokenizers",
    }
    assert found["python"] == sys.version.split()[0]


def test_package_of_another_s_is_followed_no_further(install: Install) -> None:
    install("evalution-made-up", "evalution-below[fast]>=1", "runtime>=2", "absent")
    install("evalution-below", "slow-part; extra == 'slow'", "fast-part; extra == 'fast'")
    install("runtime", "deeper")
    for name in ("fast-part", "slow-part", "deeper"):
        install(name)
    found = read_software_versions("Evalution_Made.Up")
    assert set(found) >= {"evalution-below", "runtime", "fast-part"}
    assert not set(found) & {"slow-part", "deeper", "absent"}


def test_what_had_no_part_is_left_out(install: Install) -> None:
    install("evalution-idle")
    assert "evalution-idle" not in read_software_versions("evalution-reference")


def test_package_counts_once_its_suite_was_imported(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "suite_of_another.py").write_text("X = 1\n")
    install("suites-of-another", entry="[evalution.suites]\nX = suite_of_another:X\n")
    assert "suites-of-another" not in read_software_versions(None)
    monkeypatch.setitem(sys.modules, "suite_of_another", sys)
    assert read_software_versions(None)["suites-of-another"] == "3.0"


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *who, *words]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two packages in one repository, committed."""
    folder = tmp_path / "a repository"
    for package in ("one", "two"):
        (folder / package).mkdir(parents=True)
        (folder / package / "code.py").write_text("X = 1\n")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def editable(folder: Path) -> dict[str, Any]:
    return {"url": folder.as_uri(), "dir_info": {"editable": True}}


def test_editable_package_is_recorded_with_its_commit(
    install: Install, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = git(repository, "rev-parse", "HEAD")
    install("evalution-one", origin=editable(repository / "one"))
    install("evalution-two", origin=editable(repository / "two"))
    (repository / "two" / "code.py").write_text("X = 2\n")
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    assert find_commit("evalution-one") == {"commit": head, "dirty": False}
    assert find_commit("evalution-two") == {"commit": head, "dirty": True}
    assert read_software_versions("evalution-two")["git"]["evalution-two"]["dirty"] is True


def test_new_file_makes_it_dirty_and_an_ignored_one_doesn_t(
    install: Install, repository: Path
) -> None:
    install("evalution-one", origin=editable(repository / "one"))
    (repository / ".git" / "info" / "exclude").write_text("*.log\n")
    (repository / "one" / "x.log").write_text("")
    assert (find_commit("evalution-one") or {})["dirty"] is False
    find_commit.cache_clear()
    (repository / "one" / "new.py").write_text("")
    assert (find_commit("evalution-one") or {})["dirty"] is True


def test_package_from_a_repository_s_address_has_its_commit(install: Install) -> None:
    origin = {"url": "https://example.org/x", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}}
    install("from-git", origin=origin)
    assert find_commit("from-git") == {"commit": "c0ffee", "dirty": False}


@pytest.mark.parametrize(
    "origin",
    [
        None,
        "no json",
        "[]",
        '"text"',
        {"url": 3, "dir_info": {"editable": True}},
        {"dir_info": {"editable": True}},
        {"url": "file:///no/such/folder", "dir_info": {"editable": True}},
        {"url": "file:///", "dir_info": {}},
        {"url": "https://example.org/x.zip", "archive_info": {}},
    ],
    ids=str,
)
def test_what_has_no_commit_is_recorded_without(install: Install, origin: Any) -> None:
    install("plain", origin=origin)
    assert find_commit("plain") is None


def test_no_commit_yet_no_repository_and_no_git(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    git(tmp_path / "empty", "init", "-q")
    install("uncommitted", origin=editable(tmp_path / "empty"))
    assert find_commit("uncommitted") is None
    assert find_commit("not-installed-at-all") is None
    monkeypatch.setenv("PATH", "")
    install("gitless", origin=editable(tmp_path / "empty"))
    assert find_commit("gitless") is None


def test_folder_s_name_is_no_option(install: Install, repository: Path) -> None:
    odd = repository.rename(repository.with_name("--exec=x;y"))
    install("odd", origin=editable(odd / "one"))
    assert find_commit("odd") is not None


def test_tokenizer_is_recorded_by_what_it_does() -> None:
    result = evalution.run(
        engine=evalution.engines.Reference(),
        model="builtin:tiny",
        tests=[evalution.Perplexity(data=[{"text": "one two"}], text="text")],
    )
    found = result.engine["tokenizer"]
    assert found["chat_template"] == result.engine["identity"]["chat_template.jinja"]
    assert len(found["encoding"]) == 64
    with Mock().build(Model("m")) as mock:
        other = make_tokenizer_record(mock)
    assert other is not None
    assert other["encoding"] != found["encoding"]
    assert other["chat_template"] != found["chat_template"]
    json.dumps(result.engine)


class Template:
    source = "{{ messages }}"


class Tokenizer:
    chat_template: Any = None
    leading_ids = ()
    bos_id = eos_id = None

    def encode(self, text: str) -> list[int]:
        return [ord(char) for char in text]


class Broken(Tokenizer):
    def encode(self, text: str) -> list[int]:
        raise RuntimeError("https://me:planted@example.org")


def test_same_ids_give_the_same_hash_and_another_template_another(
    scripted_session: Any,
) -> None:
    records: list[Any] = []
    for template in (None, Template(), "{{ messages }}", "other"):
        session = scripted_session()
        session.tokenizer = Tokenizer()
        session.tokenizer.chat_template = template
        records.append(make_tokenizer_record(session))
    hashes = [record["chat_template"] for record in records]
    assert len({record["encoding"] for record in records}) == 1
    assert hashes[0] is None
    assert hashes[1] == hashes[2] != hashes[3]


def test_another_template_for_tools_is_another_hash(scripted_session: Any) -> None:
    session = scripted_session()
    session.tokenizer = Tokenizer()
    hashes: list[str] = []
    for tools in (None, "{{ messages }}", "A {{ tools }}", "B {{ tools }}"):
        session.tokenizer.chat_template = ChatTemplate("{{ messages }}", tool_source=tools)
        hashes.append((make_tokenizer_record(session) or {})["chat_template"])
    assert hashes[0] == hashes[1] == hashlib.sha256(b"{{ messages }}").hexdigest()
    assert len(set(hashes)) == 3


def test_variables_of_the_template_are_recorded_and_a_servers_own_template_is_none(
    scripted_session: Any,
) -> None:
    session = scripted_session()
    session.tokenizer = Tokenizer()
    session.tokenizer.chat_template = ChatTemplate("{{ tone }}")
    assert "chat_template_kwargs" not in (make_tokenizer_record(session) or {})
    session.tokenizer.chat_template = ChatTemplate("", variables={"tone": "low"})
    record = make_tokenizer_record(session)
    assert record is not None
    assert (record["chat_template"], record["chat_template_kwargs"]) == (None, {"tone": "low"})
    assert "chat_template_kwargs_hash" not in record


def test_variables_that_look_secret_have_different_hashes(scripted_session: Any) -> None:
    session = scripted_session()
    session.tokenizer = Tokenizer()
    hashes: set[str] = set()
    for value in ("xyz", "LOUD"):
        session.tokenizer.chat_template = ChatTemplate("", variables={"agent_token": value})
        record = make_tokenizer_record(session) or {}
        assert record["chat_template_kwargs"] == {"agent_token": "***"}
        hashes.add(record["chat_template_kwargs_hash"])
    assert len(hashes) == 2


def test_session_without_a_tokenizer_has_no_record(scripted_session: Any) -> None:
    assert make_tokenizer_record(scripted_session()) is None


def test_tokenizer_that_fails_costs_its_record_alone(scripted_session: Any) -> None:
    session = scripted_session()
    session.tokenizer = Broken()
    found = make_tokenizer_record(session)
    assert found == {"error": "the session's tokenizer: RuntimeError: https://***@example.org"}


def test_reader_of_the_tokenizer_is_recorded_and_its_doubt_is_a_notice(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(builtin_path("builtin:tiny", "safetensors"), folder)
    file = folder / "tokenizer_config.json"
    settings = json.loads(file.read_text("utf-8"))
    rows = [{"q": "ab"}]
    suite = Perplexity(data=rows, text="q")
    for name, count in (("PreTrainedTokenizerFast", 0), ("AcmeTokenizer", 1)):
        file.write_text(json.dumps({**settings, "tokenizer_class": name}))
        result = evalution.run(engine=Reference(), model=Model(str(folder)), tests=[suite, suite])
        assert result.engine["execution"]["tokenizer"] == "tokenizer.json"
        assert len(result.notices) == count
    assert "its class AcmeTokenizer may have rules of its own" in result.notices[0]
