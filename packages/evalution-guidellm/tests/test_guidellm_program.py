"""`evalution-guidellm`: GuideLLM's command line with one more kind of backend."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("guidellm", reason="guidellm isn't installed; see tools/envs")

from evalution_guidellm.__main__ import main

pytestmark = [
    pytest.mark.wide,
    # GuideLLM's mock server has a configuration of pydantic 1's form.
    pytest.mark.filterwarnings("ignore:Support for class-based `config`:DeprecationWarning"),
]

Run = Callable[[str], tuple[int, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Runs `evalution-guidellm run` with a backend; returns its exit status and output."""

    def call(backend: str) -> tuple[int, str]:
        words = ["run", "--backend", f"kind=evalution,{backend}", "--profile", "kind=synchronous"]
        data = ["--data", "kind=synthetic_text,prompt_tokens=8,output_tokens=4"]
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["evalution-guidellm", *words, *data])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capfd.readouterr()
        return int(str(ended.value.code)), printed.out + printed.err

    return call


@pytest.mark.parametrize(
    ("backend", "status", "message"),
    [
        ("engine=Referenc", 2, "no engine 'Referenc' is installed; did you mean 'Reference'"),
        ("engine=Reference,options.dtyp=1", 2, "did you mean 'dtype'"),
        ("engine=Reference,model=/no/model", 2, "error: model folder '/no/model' does not exist"),
        ("engine=Reference", 2, "error: engine Reference needs a model; add model=… to --backend"),
        (
            "engine=OpenAICompatible,model=m,options.base_url=http://127.0.0.1:9,"
            "options.max_retries=0,options.api_key=a-secret-of-the-test",
            1,
            "error: no server answers at http://127.0.0.1:9",
        ),
    ],
)
def test_wrong_backend_ends_the_command_in_one_line(
    run: Run, backend: str, status: int, message: str
) -> None:
    ended, printed = run(backend)
    assert (ended, message in printed) == (status, True), printed
    assert "Traceback" not in printed
    assert "a-secret" not in printed


def test_guidellm_lists_the_kind_evalution(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["evalution-guidellm", "run", "--backend", "kind=nothing"])
    with pytest.raises(SystemExit):
        main()
    assert ", evalution\n" in capsys.readouterr().err
