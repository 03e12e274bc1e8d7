from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evalution.user_input import allow_code
from evalution.yaml_spec.named_code import check_named_code
from evalution_core import ConfigurationError

ALIAS = ["antigravity:X"]
CODE: list[dict[str, Any]] = [
    {"engine": "os:system"},
    {"engine": {"type": "o s : system"}},
    {"engine": {"kind": "Replicas", "params": {"engine": {"kind": "os:system"}}}},
    {"engine": {"type": "VLLM", "python": "./python"}},
    {"engine": {"type": "VLLM", "vllm_kwargs": {"worker_cls": "evil"}}},
    {"engine": {"type": "VLLM", "vllm_kwargs": {"a": {"b": ["evil.Processor"]}}}},
    {"engine": {"type": "SGLang", "sglang_kwargs": {"tool_parser": "tools.py"}}},
    {"engine": {"type": "Transformers", "attn_implementation": "owner/kernel"}},
    {"engine": {"type": "Ray", "runtime_env": {"pip": ["evil"]}}},
    {"engine": {"type": "RayReplicas", "address": "ray://evil:10001"}},
    {"engine": {"type": "RayReplicas", "address": "10.0.0.1:6379"}},
    {"model": {"path": "m", "trust_remote_code": True}},
    {"tests": ["antigravity:X"]},
    {"tests": [{"type": "suite.py:X"}]},
    {"tests": [{"type": "lm_eval", "tasks": ["arc_easy", "task.yaml"]}]},
    {"tests": [{"type": "lm_eval", "include_path": "tasks"}]},
    {"tests": [{"type": "humaneval", "execute": "partial"}]},
    {"tests": [{"type": "gsm8k", "judge": {"engine": {"type": "os:system"}}}]},
    {"against": {"engine": "os:system"}},
    {"backend": {"kind": "os:system"}},
    {"tests": ALIAS, "model": {"path": "m", "chat_template_kwargs": {"a": ALIAS}}},
]
PLAIN: list[dict[str, Any]] = [
    {"engine": {"type": "RayReplicas", "address": "auto"}},
    {"model": {"path": "m", "chat_template_kwargs": {"address": "12 Main Street"}}},
    {"engine": "evalution_enginekit.mock:Mock", "model": "owner/name:file.gguf"},
    {"engine": {"type": "acme/VLLM", "vllm_kwargs": {"seed": 1, "worker_cls": None}}},
    {"model": {"path": "m", "trust_remote_code": False, "chat_template_kwargs": {"a": "b.c"}}},
    {"tests": [{"type": "generation", "data": [{"type": "a:b", "python": "print"}]}]},
    {"tests": [{"type": "humaneval", "execute": "sandbox"}]},
]


@pytest.mark.parametrize("document", CODE, ids=str)
def test_code_that_a_spec_names_is_refused_unless_allowed(document: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"is code, which could do .*--allow-code"):
        check_named_code(document)
    with allow_code():
        check_named_code(document)


@pytest.mark.parametrize("document", PLAIN, ids=str)
def test_spec_without_code_needs_no_permission(document: dict[str, Any]) -> None:
    check_named_code(document)


def test_interpreter_that_a_spec_names_is_not_started(
    command_line: Any, spec: Any, folder: Path
) -> None:
    program = folder / "python"
    program.write_text("#!/bin/sh\ntouch started\n", encoding="utf-8")
    program.chmod(0o755)
    (folder / spec(folder)).write_text(
        "engine: {type: Reference, python: ./python}\ntests: [wikitext]\n", encoding="utf-8"
    )
    done = command_line("validate", "spec.yaml")
    assert done.returncode == 2
    assert "spec.yaml: python: ./python is code, which could do whatever you can" in done.stderr
    assert not (folder / "started").exists()
