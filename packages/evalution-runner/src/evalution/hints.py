"""Install hints: names of the first-party distributions, and no guesses.

A plugin of one of these names is this project's, whoever else brings one.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from evalution_core import ConfigurationError
from evalution_core.discovery import ENGINES
from evalution_core.plugins import normalize

ENGINE_HINTS = {
    "GPTQModel": "evalution-gptqmodel",
    "LlamaCpp": "evalution-llama-cpp",
    "OpenAICompatible": "evalution-openai",
    "OpenVINO": "evalution-openvino",
    "RayReplicas": "evalution-ray",
    "Reference": "evalution-reference",
    "Replicas": "evalution-runner",
    "SGLang": "evalution-sglang",
    "TensorRTLLM": "evalution-tensorrt-llm",
    "Tinker": "evalution-tinker",
    "Tinygrad": "evalution-tinygrad",
    "Transformers": "evalution-transformers",
    "TransformersCompat": "evalution-transformers",
    "VLLM": "evalution-vllm",
}
"""Engine name to the distribution that brings it."""

_OTHER_WORDS = {
    "GPTQModel": "auto-gptq awq",
    "LlamaCpp": "ggml gguf",
    "OpenAICompatible": "api azure deepseek fireworks groq http litellm local-chat-completions "
    "local-completions localai openrouter server tgi together",
    "OpenVINO": "optimum-intel ov",
    "Reference": "numpy",
    "TensorRTLLM": "trt",
    "Transformers": "hf hf-auto huggingface pytorch torch",
}
_ADDRESSES = {
    "llama-server": "http://127.0.0.1:8080",
    "lmstudio": "http://127.0.0.1:1234",
    "ollama": "http://127.0.0.1:11434",
    "openai": "https://api.openai.com",
}
ENGINE_ALIASES = {
    **{word: name for name, words in _OTHER_WORDS.items() for word in words.split()},
    **{word: f"OpenAICompatible base_url: {url}" for word, url in _ADDRESSES.items()},
}
"""Words that people know from elsewhere, and the engine that does the same."""

ENGINES.own.update(ENGINE_HINTS)
ENGINES.aliases.update({normalize(word): meant for word, meant in ENGINE_ALIASES.items()})


def name_engine_options(meant: str) -> str:
    """Return what `run` takes for an engine, or for what `ENGINE_ALIASES` says of a word."""
    engine, _, option = meant.partition(" ")
    name, _, value = option.partition(": ")
    return f"--engine {engine}" + (f" --set engine.{name}={value}" if option else "")


_RUN_OPTIONS = {
    **dict.fromkeys(("--tasks", "-t"), "suites stand alone: `evalution run hellaswag piqa`"),
    **dict.fromkeys(
        ("--model_args", "--model-args", "-a", "-M"),
        "--model PATH names the model, --engine NAME its engine, and --set engine.KEY=VALUE sets "
        "an option of it",
    ),
    **dict.fromkeys(("--num_fewshot", "-f", "-T"), "write --set SUITE.num_fewshot=5"),
    **dict.fromkeys(("--batch_size", "-b", "--max_batch_size"), "write --set engine.batch_size=8"),
    "-o": "write --output FOLDER, or --set engine.KEY=VALUE for an option of the engine",
    "--device": "write --set engine.device=cuda:0",
    "--dtype": "write --set engine.dtype=float32",
    **dict.fromkeys(("--output_path", "--log-dir"), "write --output FOLDER"),
    "--log_samples": "samples are always kept, in samples.jsonl of the run folder",
    "--apply_chat_template": "write --set SUITE.apply_chat_template=true",
    "--gen_kwargs": "write --set SUITE.max_new_tokens=256, or another option of the suite; "
    "decoding is greedy, only humaneval and mbpp sample, by temperature and top_p with num_samples "
    "above one; the suite lm_eval/TASK takes --set TASK.gen_kwargs.temperature=0.7",
    "--seed": "write --set SUITE.fewshot_seed=1234, the seed by which solved rows are drawn",
    "--write_out": "`evalution show RUN --samples SUITE` shows prompts and answers",
    "--system_instruction": "only the suite lm_eval/TASK has one: write --set "
    "TASK.system_instruction=TEXT",
    "--fewshot_as_multiturn": "solved rows are turns wherever SUITE.apply_chat_template is true; "
    "only the suite lm_eval/TASK joins them, with --set TASK.fewshot_as_multiturn=false",
    "--predict_only": "nothing does the same: answers are always scored, and kept in samples.jsonl "
    "of the run folder",
    "--use_cache": "write --cache FOLDER",
    "--trust_remote_code": "write --set model.trust_remote_code=true",
    "--model-base-url": "the model may be a URL: --model http://127.0.0.1:8000/v1",
    "--include_path": "write --set TASK.include_path=FOLDER, with the suite lm_eval/TASK",
    "--verbosity": "write -v or -q",
}
_SERVE_OPTIONS = {"--model": "the model stands alone: `evalution serve MODEL --engine NAME`"}
_FILE_OPTIONS = {"-o": "write --output FILE"}
OPTION_HINTS = {
    "run": _RUN_OPTIONS,
    "serve": _SERVE_OPTIONS,
    "report": _FILE_OPTIONS,
    "schema": _FILE_OPTIONS,
}
"""Options that people know from lm-eval, Inspect or another command, by the command that lacks
them, and what does the same there."""

SERVER_HINTS = {"build_openai_compatible_server": '"evalution-openai[server]"'}
"""Builder of a server, as `evalution.engines` has it, to the requirement that brings it."""


LM_EVAL = "evalution-lm-eval"
LM_EVAL_HINT = (
    "; any task of lm-eval is one too: {type: lm_eval, tasks: NAME} in a spec, lm_eval/NAME on a "
    "command line"
)
"""The end of the message on a suite that is like none of ours."""
SUITE_HINTS = {"lm_eval": LM_EVAL}
"""Suite name to the distribution that brings it."""
_OTHER_COMMANDS = {
    "compare": "diff",
    "engines": "backends models",
    "run": "eval evaluate resume test",
    "suites": "benchmarks list ls tasks",
    "view": "dashboard ui",
}
COMMAND_ALIASES = {word: verb for verb, words in _OTHER_COMMANDS.items() for word in words.split()}
"""Words that people know as commands from elsewhere, and the command that is meant."""
SUITE_ALIASES = {
    "arc": "arc_challenge",
    "arc-c": "arc_challenge",
    "arc-e": "arc_easy",
    "bbh_cot_fewshot": "bbh",
    "gsm": "gsm8k",
    "hendrycks_test": "mmlu",
    "lambada": "lambada_openai",
    "wikitext2": "wikitext",
}
"""Words that people know from elsewhere, and the suite that is meant."""

GENERATED_VARIANTS = {"BoolQ": "boolq-seq2seq", "MMLU": "mmlu_generative"}
"""Suite that scores to lm-eval's task that asks the same and generates."""

BACKEND_HINT = "evalution-training"
"""The distribution that reads the section `backend` of a spec."""


def require_extra(module: str, extra: str, purpose: str, package: str) -> None:
    """Check that a module of an extra is there, without importing it; errors as `import_extra`."""
    if find_spec(module) is None:
        raise _name_extra(extra, purpose, package)


def import_extra(module: str, extra: str, purpose: str, package: str) -> Any:
    """A module that an extra of the runner brings, imported when it is needed.

    Raises:
        ConfigurationError: it isn't installed; names the purpose and the command to install it.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise _name_extra(extra, purpose, package) from error


def _name_extra(extra: str, purpose: str, package: str) -> ConfigurationError:
    return ConfigurationError(
        f"{purpose} needs {package}, which isn't installed; pip install 'evalution-runner[{extra}]'"
    )


class CommandHint(NamedTuple):
    """Summary of a command of another package, and the requirement that brings it."""

    summary: str
    requirement: str


COMMAND_HINTS = {
    "bench": CommandHint("Measure how fast an engine or a server answers.", "evalution-guidellm"),
    "inspect-log": CommandHint("Write a run as logs of Inspect, one a suite.", "evalution-inspect"),
    "serve": CommandHint(
        "Serve a model over HTTP, to clients of OpenAI and others.", "evalution-openai[server]"
    ),
}
"""Verb to what is known of it before anything is loaded."""


def suggest_generation(suite: str) -> str:
    """Return the end of a refusal to score: what runs where only texts come back."""
    variant = GENERATED_VARIANTS.get(suite)
    asks_the_same = f", or {variant} of `type: lm_eval`" if variant else ""
    return f"; tests that generate run on it: `type: generation`, gsm8k{asks_the_same}"


@contextmanager
def note_working_folder(name: str) -> Generator[None]:
    """Note with an error of loading `module:Class` that its module is in the working folder."""
    try:
        yield
    except ConfigurationError as error:
        module = name.partition(":")[0]
        file = Path(*module.split(".")).with_suffix(".py") if module.strip(".") else None
        if file is not None and ":" in name and module not in sys.modules and file.is_file():
            error.add_note(
                f"{file} is in the working folder, which `python -m evalution` looks into"
            )
        raise
