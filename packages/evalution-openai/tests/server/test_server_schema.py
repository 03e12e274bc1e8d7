"""Schemathesis on the OpenAPI document: what fits it, and what doesn't, is answered as told."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

schemathesis = pytest.importorskip(
    "schemathesis", reason="schemathesis isn't installed; see tools/envs"
)
pytestmark = pytest.mark.wide

PATHS = [
    "/health", "/metrics", "/v1/models", "/v1/completions", "/v1/chat/completions",
    "/v1/eval/loglikelihood", "/v1/eval/loglikelihood/rolling", "/tokenize", "/detokenize",
    "/tokenizer_info",
]  # fmt: skip
SLOW = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


@pytest.mark.parametrize("mode", ["positive", "negative"])
@pytest.mark.parametrize("path", PATHS)
def test_every_answer_is_as_the_document_says(client: Any, path: str, mode: str) -> None:
    from schemathesis.generation import GenerationMode
    from schemathesis.specs.openapi import checks

    base = str(client.base_url).rstrip("/")
    schema = schemathesis.openapi.from_url(f"{base}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    assert sorted(operation.path for operation in operations) == sorted(PATHS)
    (operation,) = [one for one in operations if one.path == path]
    if mode == "negative" and operation.method == "get":
        return  # it takes nothing that could be wrong

    @settings(max_examples=40, deadline=None, suppress_health_check=SLOW)
    @given(case=operation.as_strategy(generation_mode=GenerationMode(mode)))
    def answers(case: Any) -> None:
        response = case.call(base_url=base, timeout=60)
        case.validate_response(
            response,
            checks=[
                schemathesis.checks.not_a_server_error,
                checks.content_type_conformance,
                checks.response_schema_conformance,
                checks.status_code_conformance,
            ],
        )

    answers()
