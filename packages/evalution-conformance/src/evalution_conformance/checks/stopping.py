"""Checks of how a completion ends, and that its text is exactly what was generated."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from evalution_conformance.probes import (
    LONG_ENOUGH,
    PROMPTS,
    Observation,
    decode_after,
    find_ended_completion,
    find_multi_byte_completion,
    find_plain_completion,
    require_token_ids,
    split_by_token,
)
from evalution_conformance.subject import Subject
from evalution_conformance.suite import needs
from evalution_core import Capability, GenerationRequest

_LONG = 96
"""Tokens of a completion that runs on visibly if nothing ends it."""
_BEYOND_DEFAULTS = 264
"""Tokens of an answer, more than runtimes generate where nothing is asked: 16, 20, 128 or 256."""


@needs(Capability.GENERATE)
class StoppingChecks:
    def test_end_of_sequence_ends_the_text(self, subject: Subject) -> None:
        """Special tokens are not shown; `token_ids` end before EOS, which is counted."""
        seen = find_ended_completion(subject)
        eos_id = subject.codec.eos_id
        if eos_id is None:
            pytest.skip("the model has no EOS token")
        spelled = subject.codec.decode([eos_id], skip_special_tokens=False)
        assert spelled not in seen.output.text, f"the text shows the EOS token {spelled!r}"
        if seen.output.token_ids is not None:
            assert eos_id not in seen.output.token_ids, "token_ids hold the EOS token"
            assert seen.output.completion_tokens in (None, len(seen.output.token_ids) + 1), (
                f"{len(seen.output.token_ids)} tokens and EOS were generated, completion_tokens is "
                f"{seen.output.completion_tokens}"
            )

    @needs(Capability.IGNORE_EOS)
    def test_ignore_eos_generates_on(self, subject: Subject) -> None:
        """`ignore_eos` generates on past the end-of-sequence token, which may be a stop string."""
        seen = find_ended_completion(subject)
        window = subject.session.info.max_model_len or 0
        count = max(LONG_ENOUGH, min(window // 2, _BEYOND_DEFAULTS))
        output = subject.complete(
            GenerationRequest(seen.prompt, max_new_tokens=count, ignore_eos=True)
        )
        assert output.finish_reason != "stop", "ignore_eos ended before max_new_tokens"
        assert output.completion_tokens in (None, count), (
            f"ignore_eos gave {output.completion_tokens} tokens of {count}"
        )
        codec, before = subject.session.tokenizer, len(seen.output.token_ids or ())
        ended_by = (output.token_ids or [])[before : before + 1]
        if codec is None or codec.eos_id is None or ended_by != [codec.eos_id]:
            return
        spelled = codec.decode([codec.eos_id], skip_special_tokens=False)
        request = GenerationRequest(
            seen.prompt, max_new_tokens=LONG_ENOUGH, ignore_eos=True, stop=[spelled]
        )
        stopped = subject.complete(request)
        assert stopped.text == seen.output.text, (
            f"stop={spelled!r}, which is generated after {seen.output.text!r}, gave "
            f"{stopped.text!r}: stop strings are matched with special tokens"
        )

    def test_a_stop_string_is_cut(self, subject: Subject) -> None:
        """Text is cut at a stop string, which is not part of it; `finish_reason` is "stop".

        It is looked for as it is spelled, and in what is generated alone.
        """
        seen = find_plain_completion(subject)
        text = seen.output.text
        for stop in (text[len(text) // 2 :][:2], seen.prompt[-1] + text[0]):
            _assert_cut(subject, seen, [stop])
        words = Observation(PROMPTS[1], subject.complete(subject.request(PROMPTS[1])))
        _assert_cut(subject, words, [words.output.text[:4].swapcase() or "e"])

    def test_a_stop_string_ends_the_computation(self, subject: Subject) -> None:
        """Once its stop string is complete, nothing more is generated for a request."""
        seen = find_plain_completion(subject)
        limit = min(_LONG, (subject.session.info.max_model_len or _LONG) // 2)
        ignore_eos = subject.declares(Capability.IGNORE_EOS)
        stop = seen.output.text[:2]
        stopped = subject.request(seen.prompt, max_new_tokens=limit, stop=[stop])
        tokens = subject.complete(stopped).completion_tokens or 0
        assert tokens <= limit // 2, f"{tokens} tokens were generated, and {stop!r} ends the first"
        endless = replace(stopped, ignore_eos=ignore_eos)
        following = replace(endless, prompt=PROMPTS[1], stop=[])
        # One at a time: what still runs for the first is seen while the second waits or runs.
        output, _ = subject.session.generate([endless, following], batch_size=1)
        assert output.text == "", f"stop={stop!r} begins the text, which is {output.text!r}"

    def test_the_earliest_stop_counts(self, subject: Subject) -> None:
        """Of several stop strings the earliest match counts, whatever their order."""
        seen = find_plain_completion(subject)
        text = seen.output.text
        others = [f"\x00{n}" for n in range(4)]
        for stops in ([text[-2:], text[2:4]], [text[2:4], text[-2:]], [*others, text[-1]]):
            _assert_cut(subject, seen, stops)

    def test_a_stop_is_found_across_tokens(self, subject: Subject) -> None:
        """A stop string is matched even across token borders."""
        seen = find_plain_completion(subject)
        pieces = [piece for piece in split_by_token(subject, seen) if piece]
        stops = [left[-1] + right[0] for left, right in pairwise(pieces)]
        for stop in stops[:4]:
            _assert_cut(subject, seen, [stop])

    def test_token_ids_end_with_the_stop(self, subject: Subject) -> None:
        """`token_ids` end before the first token that belongs wholly to the stop string."""
        seen = find_plain_completion(subject)
        pieces = split_by_token(subject, seen)
        border = next((at for at in range(2, len(pieces)) if pieces[at]), None)
        if border is None:
            pytest.skip("the completion is too short to stop within")
        stop = seen.output.text[len("".join(pieces[:border])) :]
        output = subject.complete(subject.request(seen.prompt, stop=[stop]))
        if output.token_ids is None or "".join(pieces[:border]) != output.text:
            pytest.skip("the stop string occurs earlier in the text")
        expected = (seen.output.token_ids or [])[:border]
        assert output.token_ids == expected, (
            f"stopped before token {border}, but token_ids are {output.token_ids}, not {expected}"
        )
        counted = output.completion_tokens
        assert counted is None or counted > len(expected), (
            f"{len(expected)} tokens and those of the stop were generated, completion_tokens is "
            f"{counted}"
        )

    def test_text_is_verbatim(self, subject: Subject) -> None:
        """Text is what the tokens read, whitespace at both ends included."""
        requests = [
            GenerationRequest(prompt, max_new_tokens=limit)
            for prompt in PROMPTS
            for limit in range(1, subject.max_new_tokens + 1, 2)
        ]
        compared = 0
        for request, output in zip(requests, subject.generate(*requests), strict=True):
            expected = decode_after(subject, request.prompt or "", require_token_ids(output))
            compared += expected != expected.strip()
            assert output.text == expected, f"the tokens read {expected!r}, text is {output.text!r}"
        if not compared:
            pytest.skip("no completion of the probes begins or ends with whitespace")

    def test_multi_byte_characters_are_whole(self, subject: Subject) -> None:
        """Multi-byte characters are never broken, in the text or between two deltas."""
        seen = find_multi_byte_completion(subject)
        if seen.output.finish_reason == "stop":
            assert "\ufffd" not in seen.output.text, f"a broken character: {seen.output.text!r}"
        if seen.output.token_ids is not None:
            expected = decode_after(subject, seen.prompt, seen.output.token_ids)
            assert seen.output.text == expected, (
                f"the tokens read {expected!r}, text is {seen.output.text!r}"
            )
        stop = next(character for character in seen.output.text if not character.isascii())
        if stop != "\ufffd":
            _assert_cut(subject, seen, [stop], max_new_tokens=LONG_ENOUGH)
        if not subject.declares(Capability.STREAM):
            return
        request = GenerationRequest(seen.prompt, max_new_tokens=LONG_ENOUGH)
        events = [event for _, event in subject.session.stream([(0, request)])]
        broken = "".join(getattr(event, "text", "") for event in events[:-1]).count("\ufffd")
        assert broken == seen.output.text.count("\ufffd"), "a delta breaks a character"


def _assert_cut(subject: Subject, seen: Observation, stops: list[str], **fields: Any) -> None:
    text = seen.output.text
    cut = min((at for stop in stops if (at := text.find(stop)) >= 0), default=len(text))
    output = subject.complete(subject.request(seen.prompt, stop=stops, **fields))
    assert output.text == text[:cut], (
        f"stop={stops!r} must cut {text!r} to {text[:cut]!r}, got {output.text!r}"
    )
    assert cut == len(text) or output.finish_reason in (None, "stop"), (
        f"a stop string ended it, but finish_reason is {output.finish_reason!r}"
    )
