"""Tokenizer, chat template and weights are those of the model's files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from evalution_conformance.assertions import assert_refused, assert_same_score
from evalution_conformance.probes import CHATS, ENCODING, PAIRS, PROMPTS
from evalution_conformance.reference_values import (
    MODEL,
    load_reference_values,
    open_reference,
    require_cases,
)
from evalution_conformance.subject import Subject
from evalution_conformance.suite import needs
from evalution_core import (
    Capability,
    EvalutionError,
    GenerationRequest,
    LoglikelihoodRequest,
    Model,
)
from evalution_core.builtins import builtin_path
from evalution_core.encoding import encode_pair

_WEIGHT = "model.layers.0.mlp.down_proj.weight"
_RENAMED = b"blk.0.ffn_down.weight", b"blk.0.ffn_dowm.weight"
"""The weight's name in a GGUF file, and another of the same length."""

_WEIGHTS = (".safetensors", ".gguf")
"""Endings of weights; where no file has one, the largest file is taken for them."""
_COPIED_BYTES = 1 << 24


def change_a_bit(content: bytearray) -> None:
    """Change a bit in the middle of a file of weights."""
    content[len(content) // 2 & ~7] ^= 1


def blank_the_end(content: bytearray) -> None:
    """Make the last quarter of a file of weights zeros."""
    length = len(content) // 4
    content[len(content) - length :] = bytes(length)


@contextmanager
def copy_changed(model: Model, change: Callable[[bytearray], None]) -> Generator[Model | None]:
    """Copy a model of a few MB, with each file of weights changed; None: it has none."""
    source = Path(str(model.path)).expanduser()
    if model.path == MODEL:
        source = builtin_path(MODEL, "safetensors")
    # Where `builtin:tiny` is a GGUF file, it is the one in float32.
    found = (file for file in (source, *source.rglob("*")) if file.name != "tiny-q8_0.gguf")
    files = [file for file in found if file.is_file()]
    largest = sorted(files, key=lambda file: file.stat().st_size)[-1:]
    weights = [file for file in files if file.suffix in _WEIGHTS] or largest
    if not weights or sum(file.stat().st_size for file in files) > _COPIED_BYTES:
        yield None
        return
    with TemporaryDirectory() as made:
        copy = Path(made, source.name)
        for file in files:
            content = bytearray(file.read_bytes())
            if file in weights:
                change(content)
            target = copy / file.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        yield replace(model, path=str(copy))


@contextmanager
def list_incomplete_models(subject: Subject) -> Generator[list[Model]]:
    """The one that the vendor names, else copies of `builtin:tiny` in both formats."""
    if subject.incomplete is not None:
        yield [subject.incomplete]
        return
    if subject.model.path != MODEL:
        pytest.skip("no model that lacks a weight is given as `incomplete`")
    source = builtin_path(MODEL, "safetensors")
    with TemporaryDirectory() as made:
        folder = Path(made)
        for file in source.iterdir():
            if file.suffix in (".json", ".jinja"):
                shutil.copy(file, folder)
        safetensors, gguf = folder / "model.safetensors", folder / "tiny-f32.gguf"
        safetensors.write_bytes(_remove_weight((source / safetensors.name).read_bytes()))
        gguf.write_bytes((source / gguf.name).read_bytes().replace(*_RENAMED))
        yield [replace(subject.model, path=str(path)) for path in (folder, gguf)]


def _remove_weight(content: bytes) -> bytes:
    """Return a safetensors file without the weight: header length, header as JSON, data."""
    end = 8 + int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8:end]), content[end:]
    first, last = header.pop(_WEIGHT)["data_offsets"]
    for name, entry in header.items():
        if name != "__metadata__" and entry["data_offsets"][0] >= last:
            entry["data_offsets"] = [at - (last - first) for at in entry["data_offsets"]]
    written = json.dumps(header).encode()
    return len(written).to_bytes(8, "little") + written + data[:first] + data[last:]


class CheckpointChecks:
    def test_text_is_encoded_as_by_the_reference(self, subject: Subject) -> None:
        """Text has the ids that the checkpoint's tokenizer gives it."""
        for case in require_cases(load_reference_values(subject).encoding, "ids of texts"):
            found = subject.codec.encode(case.text)
            assert found == case.token_ids, (
                f"{case.text!r} is encoded as {found}, expected {case.token_ids}"
            )

    def test_ids_are_decoded_as_by_the_reference(self, subject: Subject) -> None:
        """Ids have the text that the checkpoint's tokenizer gives them."""
        for case in require_cases(load_reference_values(subject).encoding, "ids of texts"):
            for shows, expected in (False, case.decoded), (True, case.shown):
                found = subject.codec.decode(case.token_ids, skip_special_tokens=not shows)
                assert found == expected, f"the ids of {expected!r} are decoded as {found!r}"

    @needs(Capability.LOGLIKELIHOOD, Capability.TOKEN_IDS)
    def test_what_is_scored_is_what_the_tokenizer_gives(self, subject: Subject) -> None:
        """The model is fed the ids that the session's tokenizer gives."""
        for text in ENCODING:
            for context, continuation in (text, " 7"), (PROMPTS[0], " " + text):
                (output,) = subject.score(LoglikelihoodRequest(context, continuation))
                expected = subject.score_ids(*encode_pair(subject.codec, context, continuation))
                rule = f"{continuation!r} after {context!r}, and the ids that they are"
                assert_same_score(subject, output, expected, rule)

    @needs(Capability.GENERATE, Capability.CHAT)
    def test_chat_is_rendered_as_by_the_reference(self, subject: Subject) -> None:
        """Messages are rendered as the checkpoint's chat template says, to the last space."""
        for case in require_cases(load_reference_values(subject).chat, "chats"):
            request = GenerationRequest(messages=case.messages, max_new_tokens=1)
            found = subject.complete(request).prompt
            assert found == case.rendered, (
                f"{case.messages} are rendered as {found!r}, expected {case.rendered!r}"
            )
        bare = GenerationRequest(messages=CHATS[0], max_new_tokens=1, add_generation_prompt=False)
        with open_reference(subject, Capability.CHAT) as reference:
            (known,) = reference.generate([bare])
        found = subject.complete(bare).prompt
        assert found == known.prompt, (
            f"without a generation prompt, it is rendered as {found!r}, expected {known.prompt!r}"
        )

    def test_a_missing_weight_is_refused(self, subject: Subject) -> None:
        """A checkpoint that lacks a weight is refused with an error of ours, never filled in."""
        with list_incomplete_models(subject) as models:
            for model in models:
                asked = f"{model.name}, which lacks a weight,"
                assert_refused(lambda m=model: _answer(subject, m), EvalutionError, asked)


def _answer(subject: Subject, model: Model) -> object:
    with subject.fresh(model=model) as session:
        if Capability.LOGLIKELIHOOD in session.capabilities:
            return session.loglikelihood([LoglikelihoodRequest(*PAIRS[0])])
        return session.generate([GenerationRequest(PROMPTS[0], max_new_tokens=2)])
