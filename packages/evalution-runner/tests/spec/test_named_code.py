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
    {"engine": {"type": "Transformers", "attn_implementation": "owner/kernel\n"}},
    {"engine": {"type": "VLLM", "vllm_kwargs": {"compilation_config": {"backend": "evil.make"}}}},
    {"engine": {"type": "VLLM", "vllm_kwargs": {"logits_processors": {"a": "evil"}}}},
    {"engine": {"type": "SGLang", "sglang_kwargs": {"custom_weight_loader": ["evil"]}}},
    {"engine": {"type": "SGLang", "sglang_kwargs": {"enable_custom_logit_processor": True}}},
    {"engine": {"type": "VLLM", "vllm_kwargs": {"runtime_env": {"pip": ["evil"]}}}},
    {"model": {"path": "m", "model_kwargs": {"attn_implementation": {"": "owner/kernel"}}}},
    {"model": {"path": "m", "model_kwargs": {"text_config": {"_attn_implementation": "a/b"}}}},
    {"model": {"path": "m", "model_kwargs": {"_attn_implementation_internal": "owner/kernel"}}},
    {"model": {"path": "m", "model_kwargs": {"allow_all_kernels": True}}},
    {"model": {"path": "m", "model_kwargs": {"weights_only": False}}},
    {"model": {"path": "m", "model_kwargs": {"weights_only": []}}},
    {"engine": {"type": "Ray", "runtime_env": {"pip": ["evil"]}}},
    {"engine": {"type": "RayReplicas", "address": "ray://evil:10001"}},
    {"engine": {"type": "RayReplicas", "address": "10.0.0.1:6379"}},
    {"model": {"path": "m", "trust_remote_code": True}},
    {"tests": ["antigravity:X"]},
    {"tests": [{"type": "suite.py:X"}]},
    {"tests": [{"type": "lm_eval", "tasks": ["arc_easy", "task.yaml"]}]},
    {"tests": [{"type": "lm_eval", "tasks": "task.yaml\n"}]},
    {"tests": [{"type": "lm_eval", "include_path": "tasks"}]},
    {"tests": [{"type": "lm_eval", "metadata": {"tokenizer": "owner/name"}}]},
    {"tests": [{"type": "lm_eval", "metadata": {"a": [1, {"b": "…"}]}}]},
    {"engine": {"type": "SGLang", "sglang_kwargs": {"dist_init_addr": "evil:1234"}}},
    {"engine": {"type": "VLLM", "vllm_kwargs": {"data_parallel_address": "evil"}}},
    {"engine": {"type": "VLLM", "vllm_kwargs": {"kv_transfer_config": {"kv_ip": "10.0.0.1"}}}},
    {"engine": {"type": "VLLM", "vllm_kwargs": {"a": "tcp://evil:1234?rank=0"}}},
    {"engine": {"type": "VLLM", "vllm_kwargs": {"master_host": "evil"}}},
    {"engine": {"type": "VLLM", "vllm_kwargs": {"kv_events_config": {"endpoint": "evil:1"}}}},
    {"engine": {"type": "LlamaCpp", "llama_kwargs": {"rpc_servers": "evil:50052"}}},
    {"engine": {"type": "SGLang", "sglang_kwargs": {"extra_config": '{"class_name": "Evil"}'}}},
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
    {"model": {"path": "m", "model_kwargs": {"use_safetensors": False, "weights_only": True}}},
    {"model": {"path": "m", "model_kwargs": {"attn_implementation": {"text_config": "sdpa"}}}},
    {"engine": {"type": "VLLM", "vllm_kwargs": {"compilation_config": {"backend": "eager"}}}},
    {"model": {"path": "m", "trust_remote_code": False, "chat_template_kwargs": {"a": "b.c"}}},
    {"tests": [{"type": "generation", "data": [{"type": "a:b", "python": "print"}]}]},
    {"tests": [{"type": "generation", "fewshot_data": [{"type": "a:b", "python": "print"}]}]},
    {"tests": [{"type": "humaneval", "execute": "sandbox"}]},
    {"tests": [{"type": "lm_eval", "metadata": {"max_seq_lengths": [4096], "a": {"b": True}}}]},
    {"model": {"path": "m", "model_kwargs": {"device_map": {"": "cuda:0"}, "a": "{broken"}}},
    {
        "model": {
            "path": "m",
            "model_kwargs": {"device_map": "xla:0", "proxy": "http://10.1.1.1:80"},
        }
    },
    {"engine": {"type": "VLLM", "vllm_kwargs": {"served_model_name": "llama3:8"}}},
    {"engine": {"type": "VLLM", "vllm_kwargs": {"disable_custom_all_reduce": True}}},
    {"model": {"path": "m", "model_kwargs": {"disable_custom_kernels": True}}},
    {"engine": {"type": "SGLang", "sglang_kwargs": {"override_args": '{"rope": {"a": 1}}'}}},
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


HIDDEN = '{"trust_remote_code": true, "_attn_implementation": "stranger/kernel"}'


@pytest.mark.parametrize("decoy", ['{"a": 1}', '{"a": {"b": 1}, "c": true}', "{}", "[[], {}]"])
@pytest.mark.parametrize("count", range(6))
def test_code_in_json_is_found_beside_any_other_json(decoy: str, count: int) -> None:
    texts = [decoy] * count
    for place in range(count + 1):
        hidden = [*texts[:place], HIDDEN, *texts[place:]]
        options = {str(n): {"override_args": text} for n, text in enumerate(hidden)}
        documents: list[dict[str, Any]] = [
            {"model": {"path": "m", "model_kwargs": options}},
            {"model": {"path": "m", "model_kwargs": {"a": hidden}}},
            {
                "engine": {"type": "SGLang", "sglang_kwargs": {"override_args": HIDDEN}},
                "model": {"path": "m", "model_kwargs": {"a": options["0"], "b": texts, "c": texts}},
            },
        ]
        for document in documents:
            with pytest.raises(ConfigurationError, match="is code"):
                check_named_code(document)


def test_json_that_cant_be_looked_through_is_refused() -> None:
    deep = "[" * 100_000 + "]" * 100_000
    text = f'{{"trust_remote_code": true, "a": {deep}}}'
    document = {"engine": {"type": "VLLM", "vllm_kwargs": {"overrides": text}}}
    with pytest.raises(
        ConfigurationError, match=r'^JSON that is nested too .*, \{"trust_rem.*\[… is'
    ):
        check_named_code(document)
    with allow_code():
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
