"""Runs GuideLLM in this process; its worker processes do the asking."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from evalution_core import ConfigurationError, EngineRuntimeError, EvalutionError
from evalution_core.redaction import redact_text
from evalution_guidellm.bench.load import Load
from evalution_guidellm.bench.subject import Subject

if TYPE_CHECKING:
    from guidellm.benchmark.schemas import GenerativeBenchmarksReport


def run_guidellm(
    subject: Subject, load: Load, *, chat: bool, tokenizer: str | None, progress: bool
) -> GenerativeBenchmarksReport:
    """Put the load on the subject and return GuideLLM's report.

    Args:
        subject: asked; its `resolve` has been called.
        load: the levels.
        chat: True for prompts that go through the model's chat template.
        tokenizer: a folder or a Hub name; None: the subject's.
        progress: True to show GuideLLM's progress.

    Raises:
        ConfigurationError: GuideLLM refuses the load, or there is no tokenizer.
        EvalutionError: the model can't be had, or can't do what is asked.
        EngineRuntimeError: a worker process ended.
    """
    name = tokenizer or subject.find_tokenizer()
    if load.data is None:
        _check_tokenizer(name)
    spec: dict[str, Any] = {
        "backend": subject.make_backend(chat=chat, max_tokens=load.output_tokens),
        "tokenizer": {"kind": "huggingface_auto", "model": name},
        "outputs": list[Any](),
        **load.make_spec(),
    }
    return _run({"spec": spec, "benchmarks": load.list_levels()}, progress=progress)


def _run(scenario: Mapping[str, Any], *, progress: bool) -> GenerativeBenchmarksReport:
    # Before GuideLLM's own models are made, which list the kinds of backends that they know.
    import_module("evalution_guidellm.backend")
    from guidellm.entrypoints import benchmark_generative_text  # noqa: PLC0415 - and not for --help
    from guidellm.logger import configure_logger  # noqa: PLC0415 - as above
    from guidellm.schemas.benchmark import BenchmarkScenario  # noqa: PLC0415 - as above
    from guidellm.settings import settings  # noqa: PLC0415 - as above
    from pydantic import ValidationError  # noqa: PLC0415 - as above

    # Its progress is in the bar, its figures in the table.
    configure_logger(settings.logging.model_copy(update={"console_log_level": "WARNING"}))
    try:
        arguments = BenchmarkScenario.create(None, **scenario)
        report, _ = asyncio.run(benchmark_generative_text(arguments, progress=progress))
    except EvalutionError:
        raise
    except ValidationError as error:
        # Its own text would repeat the input, keys among it.
        problems = "; ".join(problem["msg"] for problem in error.errors(include_input=False))
        raise ConfigurationError(redact_text(problems).removeprefix("Value error, ")) from None
    except (EOFError, OSError, RuntimeError, ValueError) as error:
        reason = redact_text(str(error)) or "a process of its ended as it started"
        raise EngineRuntimeError(
            f"GuideLLM ended without a result: {reason}; what its worker processes "
            "printed stands above"
        ) from error
    return report


def render_page(report: GenerativeBenchmarksReport) -> str:
    """Return GuideLLM's HTML page of a report, which needs nothing beside it."""
    from guidellm.benchmark.outputs import html  # noqa: PLC0415 - as above

    return html.render_html_report(html.build_report_view(report))


def _check_tokenizer(name: str | None) -> None:
    """Raise `ConfigurationError` where there is nothing to count the tokens of prompts with."""
    advice = (
        "name a folder or a Hub model with --tokenizer, or give prompts of your own with --data"
    )
    if name is None:
        raise ConfigurationError(f"made-up prompts need the model's tokenizer; {advice}")
    transformers: Any = import_module("transformers")
    try:
        transformers.AutoTokenizer.from_pretrained(name)
    except (ImportError, KeyError, OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ConfigurationError(
            f"made-up prompts need the model's tokenizer, and {name!r} has none that Transformers "
            f"can load ({redact_text(reason)}); {advice}"
        ) from error
