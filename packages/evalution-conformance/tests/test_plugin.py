"""The kit as a vendor uses it: collection, gaps, report, hangs."""

from __future__ import annotations

import json
import platform
import re
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.version import Version

from evalution_conformance import EngineConformance, Gap, StructuralConformance, plugin
from evalution_conformance.suite import WARNED, find_checks, find_declaration_problem, get_group
from evalution_core import Model
from mutants.toy import Toy

pytest_plugins = ["pytester"]
# Hypothesis would be imported again for the summary of each run.
QUIET = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")

VENDOR = """
from evalution_conformance import EngineConformance, Gap, StructuralConformance
from mutants.toy import Toy
from evalution_core import Model

class TestAcme(EngineConformance):
    engine = Toy({engine})
    model = Model(path="toy")
    {more}
"""


def run(
    pytester: pytest.Pytester, *arguments: str, engine: str = "", more: str = ""
) -> pytest.RunResult:
    pytester.makepyfile(VENDOR.format(engine=engine, more=more))
    return pytester.runpytest(*QUIET, *arguments)


def read_output(result: pytest.RunResult) -> str:
    return re.sub(r"\s+", " ", result.stdout.str() + result.stderr.str())


def test_seven_lines_run_every_check(pytester: pytest.Pytester) -> None:
    result = run(pytester, "-k", "empty or identity or stop")
    outcomes = result.parseoutcomes()
    assert outcomes["passed"] == 8
    assert outcomes["passed"] + outcomes["deselected"] == len(find_checks(EngineConformance))


def test_structural_checks_are_part_of_all() -> None:
    structural = find_checks(StructuralConformance)
    assert 10 <= len(structural) < len(find_checks(EngineConformance))
    assert structural.items() <= find_checks(EngineConformance).items()


def test_failing_check_has_a_one_line_message(pytester: pytest.Pytester) -> None:
    result = run(pytester, "-k", "verbatim", engine="fault='StripsText'")
    result.assert_outcomes(failed=1, deselected=len(find_checks(EngineConformance)) - 1)
    assert "the tokens read 'danhd. ', text is 'danhd.'" in read_output(result)


def test_closed_gap_fails_the_run_and_is_reported(pytester: pytest.Pytester) -> None:
    gap = 'gaps = {"test_text_is_verbatim": Gap("ours", "acme#412")}'
    result = run(pytester, "-k", "verbatim", "--conformance-report=acme.json", more=gap)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "[XPASS(strict)] ours: acme#412" in read_output(result)
    report = json.loads((pytester.path / "acme.json").read_text("utf-8"))
    assert [c["outcome"] for c in report["engines"][0]["checks"]] == ["gap closed"]


def test_new_check_warns_until_its_release(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(WARNED, "test_text_is_verbatim", "9.0")
    arguments = ("-k", "verbatim", "--conformance-report=acme.json")
    result = run(pytester, *arguments, engine="fault='StripsText'")
    assert result.ret == pytest.ExitCode.OK
    assert "the tokens read 'danhd. ', text is 'danhd.'" in read_output(result)
    report = json.loads((pytester.path / "acme.json").read_text("utf-8"))
    assert [c["outcome"] for c in report["engines"][0]["checks"]] == ["warned"]


def test_warnings_end_with_their_release() -> None:
    assert WARNED.keys() <= find_checks(EngineConformance).keys()
    for release in WARNED.values():
        assert Version(release) > Version(version("evalution-conformance"))


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [
        (
            "gaps",
            {"test_text_is_verbatm": Gap("ours", "x")},
            "TestAcme.gaps names 'test_text_is_verbatm', which is not a check of this kit; did you "
            "mean 'test_text_is_verbatim'?",
        ),
        (
            "checks",
            {"livecycle"},
            "TestAcme.checks names 'livecycle', which is neither a group nor a check of this kit; "
            "did you mean 'lifecycle'? (groups: ",
        ),
        (
            "checks",
            "lifecycle",
            "TestAcme.checks must be a set of names, or None for all checks, got 'lifecycle'",
        ),
        (
            "gaps",
            {"test_text_is_verbatim": "x"},
            "TestAcme.gaps['test_text_is_verbatim'] must be a Gap, got 'x'",
        ),
        (
            "test_text_is_verbatim",
            None,
            "TestAcme overrides test_text_is_verbatim, but checks can't be changed; declare",
        ),
        ("model", "toy", "TestAcme.model must be a Model, got 'toy'"),
    ],
)
def test_wrong_declaration_is_refused(attribute: str, value: object, message: str) -> None:
    settings = {"engine": Toy(), "model": Model(path="toy"), attribute: value}
    problem = find_declaration_problem(type("TestAcme", (EngineConformance,), settings))
    assert problem is not None
    assert problem.startswith(message)


def test_wrong_declaration_stops_collection(pytester: pytest.Pytester) -> None:
    result = run(pytester, more="def test_text_is_verbatim(self): pass")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert "TestAcme overrides test_text_is_verbatim, but checks can't" in read_output(result)
    assert "passed" not in result.parseoutcomes()


@pytest.mark.parametrize(
    ("owner", "reason", "message"),
    [
        ("theirs", "x", "a gap is 'ours', 'upstream' or 'never', got 'theirs'"),
        ("ours", " ", "a gap needs a reason; name the issue that tracks it"),
    ],
)
def test_gap_needs_a_known_owner_and_a_reason(owner: str, reason: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Gap(owner, reason)  # pyright: ignore[reportArgumentType]


def test_report_names_each_outcome(pytester: pytest.Pytester) -> None:
    gap = 'gaps = {"test_requests_come_back_untouched": Gap("upstream", "acme#412")}'
    checks = "requests_come_back or beams or a_stream_completes or test_scores_equal or repeatable"
    result = run(
        pytester,
        "-rx",
        "-k",
        checks,
        "--conformance-report=report/acme.json",
        engine="fault='WritesIntoMetadata', api_key='hidden'",
        more=gap,
    )
    assert result.parseoutcomes()["xfailed"] == 1
    assert "upstream: acme#412" in read_output(result)
    written = (pytester.path / "report" / "acme.json").read_text("utf-8")
    assert "hidden" not in written
    report = json.loads(written)
    lines = [
        json.loads(line.strip().removesuffix(","))
        for line in written.splitlines()
        if '"group"' in line
    ]
    assert lines == report["engines"][0]["checks"]
    assert report["schema_version"] == 1
    assert set(report["versions"]) == {
        "python",
        "evalution-conformance",
        "evalution-core",
        "evalution-enginekit",
    }
    (engine,) = report["engines"]
    assert engine["engine"] == "Toy"
    assert engine["chosen"] is None
    assert engine["options"]["fault"] == "WritesIntoMetadata"
    assert engine["model"]["path"] == "toy"
    outcomes = {check["name"]: check["outcome"] for check in engine["checks"]}
    assert outcomes == {
        "test_requests_come_back_untouched": "gap",
        "test_beams_are_searched_or_refused": "refused",
        "test_greedy_is_repeatable_at_any_temperature": "passed",
        "test_a_stream_completes_as_generate_does": "failed",
        "test_scores_equal_the_reference": "skipped",
    }
    details = {check["name"]: check for check in engine["checks"]}
    untouched = details["test_requests_come_back_untouched"]
    assert untouched["gap"] == {"owner": "upstream", "reason": "acme#412"}
    assert untouched["group"] == "generation"
    assert isinstance(untouched["seconds"], float)
    failed = details["test_a_stream_completes_as_generate_does"]
    assert failed["detail"].endswith("metadata was changed")
    assert "no `oracle`" in details["test_scores_equal_the_reference"]["detail"]
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_broken_scoring_is_one_failure_in_full_length(
    pytester: pytest.Pytester,
) -> None:
    result = run(
        pytester,
        "-k",
        "sums_and_counts or each_token_is_scored or check_passes or verbatim or gc_changes",
        "--conformance-report=acme.json",
        engine="fault='ShiftsPositions'",
        more="tolerance = 100; oracle = Toy(); oracle_model = Model(path='floats')",
    )
    assert result.parseoutcomes() | {"deselected": 0} == {
        "passed": 2,
        "failed": 1,
        "skipped": 2,
        "deselected": 0,
    }
    (engine,) = json.loads((pytester.path / "acme.json").read_text("utf-8"))["engines"]
    outcomes = [check["outcome"] for check in engine["checks"]]
    assert sorted(outcomes) == ["failed", "not run", "not run", "passed", "passed"]
    (failed,) = [check for check in engine["checks"] if check["outcome"] == "failed"]
    assert (engine["dtype"], engine["dtype_tolerance"]) == ("float64", 1e-9)
    assert (engine["tolerance"], engine["reference_tolerance"]) == (100, 100)
    assert engine["compared_with"]["engine"] == "Toy"
    assert engine["compared_with"]["model"]["path"] == "floats"
    assert engine["execution"]["self_check"] == "failed"
    assert engine["identity"] == {"toy": 0}
    lines = result.stdout.str().splitlines()
    assert (
        "test_broken_scoring_is_one_failure_in_full_length.py::TestAcme: "
        "1 failed, 2 not run, 2 passed; tolerance 100 (float64, declared; its own is 1e-09)"
    ) in lines
    assert f"  {failed['name']}: {failed['detail']}" in lines, "the failure has its line, uncut"
    assert len(failed["detail"]) > 80


def test_report_names_the_distribution_and_the_chosen_checks(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        """
        from evalution_conformance import EngineConformance
        from evalution_core import Model
        from evalution_enginekit.mock import Mock

        class TestMock(EngineConformance):
            engine = Mock()
            model = Model(path="mock")
            checks = {"test_identity_is_json_safe_and_stable"}
        """
    )
    pytester.runpytest(*QUIET, "--conformance-report=mock.json").assert_outcomes(passed=1)
    report = json.loads((pytester.path / "mock.json").read_text("utf-8"))
    assert report["platform"].startswith(f"{platform.system()}-{platform.machine()}")
    (engine,) = report["engines"]
    assert engine["requirements"]["evalution-core"] == report["versions"]["evalution-core"]
    assert engine["compared_with"] is None
    assert engine["distribution"] == "evalution-enginekit"
    assert engine["chosen"] == ["test_identity_is_json_safe_and_stable"]


def test_report_names_another_build_of_a_required_distribution(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    owners = {"acme_runtime": ["pytest"], "numpy": ["pytest"]}
    monkeypatch.setattr(plugin, "find_owners", lambda package: owners.get(package, ()))
    required = ["acme-runtime>=2 ; sys_platform == 'linux'", "acme-other", "numpy[all]"]
    expected = {"pytest": version("pytest"), "numpy": version("numpy")}
    assert plugin.list_installed(required) == expected


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": [1, 2]}, '{\n  "a": [\n    1,\n    2\n  ]\n}'),
        ({"a": {"b": {"c": {}}}}, '{\n  "a": {\n    "b": {\n      "c": {}\n    }\n  }\n}'),
        (
            [[[[{"é": [None]}]]]],
            '[\n  [\n    [\n      [\n        {"\\u00e9": [null]}\n      ]\n    ]\n  ]\n]',
        ),
        ("x", '"x"'),
    ],
)
def test_report_has_a_line_for_each_entry_of_its_outer_levels(value: object, text: str) -> None:
    assert plugin.format_report(value) == text


def test_report_names_no_folder_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = tmp_path / "alice"
    project = home / "project"
    project.mkdir(parents=True)
    monkeypatch.chdir(project)
    monkeypatch.setattr(Path, "home", lambda: home)
    kept = [f"{home}s/model", str(tmp_path / "model"), f"/mnt{home}/model"]
    report = {
        "model": str(project / "model"),
        "detail": f"no such file:\n{home}/model",
        "kept": kept,
    }
    assert plugin.shorten_paths([report]) == [
        {"model": "./model", "detail": "no such file:\n~/model", "kept": kept}
    ]


def test_only_the_chosen_groups_and_checks_are_collected(pytester: pytest.Pytester) -> None:
    chosen = {"lifecycle", "test_text_is_verbatim"}
    result = run(pytester, "--collect-only", "-q", more=f"checks = {chosen}")
    every = find_checks(EngineConformance)
    expected = {name for name, check in every.items() if get_group(check) == "lifecycle"}
    collected = set(re.findall(r"::(test_\w+)", result.stdout.str()))
    assert collected == expected | {"test_text_is_verbatim"}
    assert "deselected" not in result.parseoutcomes()


def test_hanging_check_fails_and_the_next_one_runs(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import threading
        from evalution_conformance import EngineConformance
        from mutants.catalogue import SESSIONS
        from mutants.toy import Toy, ToySession
        from evalution_core import Model

        class Hangs(ToySession):
            def change_request(self, request):
                if request.temperature:
                    threading.Event().wait()
                return request

        SESSIONS["Hangs"] = Hangs

        class TestAcme(EngineConformance):
            engine = Toy(fault="Hangs")
            model = Model(path="toy")
            timeout = 0.3
        """
    )
    result = pytester.runpytest(*QUIET, "-k", "any_temperature or stop_string_is_cut")
    outcomes = result.parseoutcomes()
    assert (outcomes["failed"], outcomes["passed"]) == (1, 1)
    assert "the check didn't end within 0.3 seconds" in read_output(result)
    assert "in change_request threading.Event().wait()" in read_output(result).replace(" E ", " ")


def test_failing_build_is_tried_once_for_the_shared_session(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        """
        from dataclasses import dataclass
        from evalution_conformance import EngineConformance
        from mutants.toy import Toy
        from evalution_core import ConfigurationError, Model

        builds = []

        @dataclass(slots=True)
        class Broken(Toy):
            def build(self, model):
                builds.append(model)
                raise ConfigurationError("no such folder: " + model.path)

        class TestAcme(EngineConformance):
            engine = Broken()
            model = Model(path="missing")

        def test_builds():
            assert len(builds) == 1
        """
    )
    chosen = "identity or verbatim or repeatable or test_builds"
    # The count of builds comes last, in an outer run of random order too.
    result = pytester.runpytest(*QUIET, "-p", "no:randomly", "-k", chosen)
    outcomes = result.parseoutcomes()
    assert (outcomes["failed"], outcomes["skipped"], outcomes["passed"]) == (1, 2, 1)
    assert "ConfigurationError: no such folder: missing" in read_output(result)


def test_skeleton_of_the_guide_passes_the_structural_checks(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from dataclasses import dataclass
        from evalution_conformance import StructuralConformance
        from evalution_core import BaseEngine, BaseInferenceSession, Model

        @dataclass(slots=True)
        class MyEngine(BaseEngine):
            device: str | None = None

            def build(self, model: Model) -> BaseInferenceSession:
                return MySession(model_path=model.path, device=self.device)

        @dataclass(slots=True)
        class MySession(BaseInferenceSession):
            model_path: str
            device: str | None = None

            def generate(self, requests, *, batch_size=None):
                raise NotImplementedError

            def loglikelihood(self, requests, *, batch_size=None):
                raise NotImplementedError

            def loglikelihood_rolling(self, requests, *, batch_size=None):
                raise NotImplementedError

            def generate_continuous(self, requests, *, batch_size=None):
                raise NotImplementedError

            def gc(self):
                return None

            def close(self):
                return None

            def describe_execution(self):
                return {"backend": "my_engine", "device": self.device}

        class TestMyEngine(StructuralConformance):
            engine = MyEngine()
            model = Model(path="builtin:tiny")
        """
    )
    result = pytester.runpytest(*QUIET)
    result.assert_outcomes(passed=len(find_checks(StructuralConformance)))
