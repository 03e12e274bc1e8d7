"""Every reader of a checkpoint's chat templates keeps the one for requests with tools."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evalution_core import Model, load_engine
from evalution_core.builtins import builtin_path
from evalution_enginekit import ChatTemplate, TokenizerFile
from evalution_enginekit.gguf.file import read_gguf
from evalution_enginekit.gguf.tokenizer import read_chat_template

DEFAULT = "{{ messages[0].content }}"
WITH_TOOLS = "{{ tone }}{{ tools | tojson }}" + DEFAULT
CHAT: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
TOOLS = [{"name": "f"}]


def read_folder(folder: Path) -> ChatTemplate | None:
    return TokenizerFile(folder / "tokenizer.json").chat_template


def read_gguf_file(folder: Path) -> ChatTemplate | None:
    file = read_gguf(builtin_path("builtin:tiny", "gguf"))
    written = {  # as llama.cpp's converter does
        "tokenizer.chat_templates": ["tool_use"],
        "tokenizer.chat_template.tool_use": WITH_TOOLS,
        "tokenizer.chat_template": DEFAULT,
    }
    return read_chat_template(replace(file, metadata={**file.metadata, **written}))


def read_session(folder: Path) -> ChatTemplate | None:
    with load_engine("Reference")().build(Model(str(folder))) as session:
        tokenizer: Any = session.tokenizer
        return tokenizer.chat_template


def read_server(folder: Path) -> ChatTemplate | None:
    from evalution_openai import OpenAICompatible
    from evalution_openai.server import build_openai_compatible_server

    with (
        load_engine("Reference")().build(Model(str(folder))) as session,
        build_openai_compatible_server(session=session, model_name="m") as server,
        OpenAICompatible(base_url=server.base_url).build(Model("m")) as remote,
    ):
        tokenizer: Any = remote.tokenizer
        return tokenizer.chat_template


@pytest.mark.parametrize("read", [read_folder, read_gguf_file, read_session, read_server])
def test_reader_keeps_the_template_for_tools(
    read: Callable[[Path], ChatTemplate | None], tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(builtin_path("builtin:tiny", "safetensors"), folder)
    (folder / "chat_template.jinja").unlink()
    config = folder / "tokenizer_config.json"
    named = {"chat_template": {"default": DEFAULT, "tool_use": WITH_TOOLS}}
    config.write_text(json.dumps({**json.loads(config.read_text()), **named}))
    template = read(folder)
    assert template is not None
    assert template.render(CHAT) == "hi"
    assert template.source_with_tools == WITH_TOOLS
    assert template.render(CHAT, tools=TOOLS) == '[{"name": "f"}]hi'
    bound = template.with_variables({"tone": "calm "})
    assert bound.render(CHAT) == "hi"
    assert bound.render(CHAT, tools=TOOLS) == 'calm [{"name": "f"}]hi'
