"""A model whose tokenizer has no chat template."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from evalution_conformance.reference_values import MODEL
from evalution_conformance.subject import Subject
from evalution_core import Model, builtin_path

_CONFIG = "tokenizer_config.json"


@contextmanager
def model_without_template(subject: Subject) -> Generator[Model]:
    """The one that the vendor names, else `builtin:tiny` with a copy of its tokenizer's files."""
    if subject.untemplated is not None:
        yield subject.untemplated
        return
    if subject.model.path != MODEL:
        pytest.skip("no model without a chat template is given as `untemplated`")
    source = builtin_path(MODEL, "reference_values").parent
    with TemporaryDirectory() as folder:
        for name in ("tokenizer.json", "special_tokens_map.json"):
            shutil.copy(source / name, folder)
        config = json.loads((source / _CONFIG).read_text("utf-8"))
        config.pop("chat_template", None)
        (Path(folder) / _CONFIG).write_text(json.dumps(config), "utf-8")
        yield dataclasses.replace(subject.model, tokenizer_path=folder)
