"""Feed the parsers damaged input, and print what isn't refused in a sentence.

    uv run tools/fuzz.py                      every target, 60 s of processor time in all
    uv run tools/fuzz.py rows --seconds 300   one target, for so long
    uv run tools/fuzz.py rows --seed 7        the same inputs again, as long as the code is the same

An input is a valid one with some edits. A parser may take it or raise one of the project's errors;
any other exception, more than `PATIENCE_S` of processor time, and more memory than `MEMORY` are
findings. Each is printed with its smallest input. Exit status 1: there was one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import httpx
import numpy

import evalution
from evalution import Generation, MultipleChoice, Perplexity, compare
from evalution.comparison.table import make_comparison_table
from evalution.fidelity.divergence import TopRows
from evalution.fidelity.reference_file import Recording, ReferenceFile, ReferenceWriter
from evalution.fidelity.requests import Window
from evalution.fidelity.result import Side
from evalution.journal.records import decode_answer
from evalution.journal.store import Journal
from evalution.report import write_report
from evalution.rows.local import file_rows
from evalution.runs.reader import read_run
from evalution.runs.store import RESULTS
from evalution.samples_file import SAMPLES
from evalution.scoring.filters import apply_filters, parse_filters
from evalution.yaml_spec.run_spec import load_spec
from evalution_core import EvalutionError, GenerationRequest, Model
from evalution_core.builtins import builtin_path
from evalution_enginekit.chat import ChatTemplate
from evalution_enginekit.gguf.file import read_gguf
from evalution_enginekit.gguf.tokenizer import load_gguf_tokenizer
from evalution_enginekit.mock import Mock
from evalution_enginekit.tokenizer import TokenizerFile
from evalution_openai.client.connection import ServerConnection
from evalution_openai.client.responses import ResponseReader
from evalution_openai.client.retry import RetryableError
from evalution_openai.options import OpenAIOptions

PATIENCE_S = 10.0
MEMORY = 4 << 30
TRIES_TO_SHRINK = 300
TINY = builtin_path("builtin:tiny", "safetensors")
TINY = TINY if TINY.is_dir() else TINY.parent
PLACE = Path()
"""The working folder, each process its own."""
PART = b"\0\0"
"""Between the files of an input that is several."""
WINDOWS = [Window([*range(start, start + 6)], 2) for start in range(2)]
SPLICES: Sequence[bytes] = [
    *(b"", b"\0", b"\xff", b"\xef\xbb\xbf", b"\n", b"\r", b'"', b"'", b"{", b"}", b"[", b"]"),
    *(b":", b",", b"&a ", b"*a", b"<<: ", b"- ", b"!!set ", b"!!binary ", b"? ", b"~", b"\t"),
    *(b"null", b"true", b"-1", b"0", b"1e999", b"NaN", b"9" * 30, b"9" * 5000, b"1:1:1.5"),
    *(b"[" * 200, b'{"a":' * 200, b"(" * 50, b'"\\ud800"', b"2026-13-41", b"\xff" * 8, b"\0" * 8),
    *(b"{{", b"}}", b"{%", b"%}", b"|", b"for", b"in", b" ~ ", b" * 99999999", b"|replace('','a')"),
    *(b"data: ", b"[DONE]", b"\n\n", b'"choices":', b'"delta":', b'"logprobs":', b'"error":'),
]
VALUE = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*|\b(?:true|false|null)\b|\[\]|\{\}')
VALUES: Sequence[bytes] = [
    *(b"null", b"true", b"0", b"-1", b"1.5", b"1e999", b"NaN", b"9" * 30, b'""', b'"a"', b"[]"),
    *(b"{}", b"[[]]", b'{"a": 1}', b'["a", null]', b'"\\ud800"', b'"\\u0000"', b'"<script>"'),
]


@dataclass(frozen=True)
class Target:
    """One parser: a call with an input, and valid inputs to begin with."""

    parse: Callable[[bytes], object]
    seeds: Callable[[], list[bytes]]
    share: float = 1.0
    """Of the time of another; less for what only our own runs write."""


def write(name: str, content: bytes) -> Path:
    path = PLACE / name
    path.write_bytes(content)
    return path


def parse_spec(content: bytes) -> None:
    load_spec(str(write("spec.yaml", content)))


def list_specs() -> list[bytes]:
    test = "{type: generation, data: builtin:tiny/sums, prompt: '{question}', target: answer,\n"
    test += " filters: [{regex: {pattern: '([0-9]+)', match: last}}, strip]}"
    return [
        builtin_path("builtin:tiny", "quickstart").read_bytes(),
        f"engine: Reference\nmodel: &m {{path: builtin:tiny}}\ntests: &t\n- {test}\n".encode(),
        b"engine: {kind: Reference, params: {dtype: float32, max_model_len: 64}}\nisolate: true\n"
        b"model: builtin:tiny\ntests: [{type: perplexity, data: builtin:tiny/prose, text: text}]\n"
        b"on_error: raise\nmax_failures: 3\n",
        b'{"engine": {"type": "Mock"}, "tests": ["wikitext", {"type": "gsm8k", "num_fewshot": 2}]}',
    ]


def parse_rows(content: bytes) -> None:
    ending, _, rest = content.partition(b"|")
    name = ending.decode("ascii", "ignore")
    for _ in file_rows(write(f"rows.{name if name in ROW_FILES else 'jsonl'}", rest)):
        pass


ROW_FILES = ("jsonl", "json", "csv", "tsv")
"""Parquet files and workbooks are tried by processes of their own."""


def list_rows() -> list[bytes]:
    lines = (TINY / "rows" / "choices.jsonl").read_bytes().splitlines()[:4]
    return [
        b"jsonl|" + b"\n".join(lines),
        b"json|[" + b",\n".join(lines) + b"]",
        b'csv|q,a\n"1, ""2""\n3",4\n5;6,7\n',
        b"tsv|q\ta\n1\t2\n",
    ]


def parse_journal(content: bytes) -> None:
    for file in PLACE.glob("answers*"):
        file.unlink()
    with Journal.open(write("answers.sqlite", content)) as journal:
        journal.read_declared()
        journal.count()
        if (found := journal.find(b"key")) is not None:
            decode_answer(found, GenerationRequest("a"))
    decode_answer(content[-200:].decode("utf-8", "replace"), GenerationRequest("a"))


def list_journals() -> list[bytes]:
    path = PLACE / "seed.sqlite"
    answer = '{"text":"b","metadata":{},"token_ids":[1,2],"finish_reason":"length"}'
    with Journal.create(path) as journal:
        journal.declare({"engine": {"type": "Mock"}, "schema": 1})
        journal.record(b"key", answer, suite="s", row=0, position=0)
    return [path.read_bytes(), path.read_bytes() + b"\n" * 200 + answer.encode()]


def parse_run(content: bytes) -> None:
    results, _, samples = content.partition(PART)
    write(RESULTS, results)
    write(SAMPLES, samples)
    run = read_run(PLACE)
    write_report([run], PLACE / "report.html", samples_per_suite=5)
    make_comparison_table(compare(run, run), width=80)


def list_runs() -> list[bytes]:
    rows = [{"q": f"{n}+0=", "choices": ["0", "1"], "right": n} for n in range(2)]
    suites = [
        Generation(data=rows, prompt="q", target="right", name="sums", max_new_tokens=4),
        MultipleChoice(data=rows, prompt="q", choices="choices", target="right", name="choice"),
        Perplexity(data=rows, text="q", name="texts"),
    ]
    folder = PLACE / "run"
    evalution.run(engine=Mock(), model="m", tests=suites, output=folder)
    return [PART.join((folder / name).read_bytes() for name in (RESULTS, SAMPLES))]


def parse_reference(content: bytes) -> None:
    with ReferenceFile(write("reference.sqlite", content)) as reference:
        for _ in reference.read(WINDOWS):
            pass


def list_references() -> list[bytes]:
    found: list[bytes] = []
    side = Side({"path": "m"}, {"name": "Reference"}, 1_000)
    for top in (None, 2):
        path = PLACE / f"recorded-{top}.sqlite"
        versions = {"evalution": "0.1.0"}
        recording = Recording(side, 6, "t0", 16, {"wiki": "d0"}, top, versions)
        with ReferenceWriter(path, recording) as writer:
            for window in WINDOWS:
                with writer.add_window(window) as add:
                    rows = numpy.full((4, 6), -numpy.log(6), numpy.float32)
                    ids = numpy.tile(numpy.arange(2, dtype=numpy.int32), (4, 1))
                    add(rows if top is None else TopRows(ids, rows[:, :2], rows[:, 0]))
            writer.finish()
        found.append(path.read_bytes())
    return found


def parse_gguf(content: bytes) -> None:
    file = read_gguf(write("model.gguf", content))
    tokenizer = load_gguf_tokenizer(Model("model.gguf"), file)
    tokenizer.decode(tokenizer.encode("It has a bed: 12 + 30?"))


def list_gguf() -> list[bytes]:
    return [builtin_path("builtin:tiny", "gguf").read_bytes()]


def parse_tokenizer(content: bytes) -> None:
    tokenizer, _, settings = content.partition(PART)
    write("tokenizer_config.json", settings or b"{}")
    found = TokenizerFile(write("tokenizer.json", tokenizer))
    found.decode(found.encode("It has a bed: 12 + 30?"))


def list_tokenizers() -> list[bytes]:
    whole = (TINY / "tokenizer.json").read_bytes()
    settings = (TINY / "tokenizer_config.json").read_bytes()
    content = json.loads(whole)
    content["model"] |= {"vocab": dict(list(content["model"]["vocab"].items())[:300]), "merges": []}
    return [json.dumps(content).encode() + b"\0\0" + settings, whole + b"\0\0" + settings]


@cache
def connect() -> Any:
    return ServerConnection(OpenAIOptions(base_url="http://server/v1"))


def parse_events(content: bytes) -> None:
    request = httpx.Request("POST", "http://server/v1/completions")
    response = httpx.Response(200, content=content, request=request)
    reader = ResponseReader(top=2)

    async def read_all() -> None:
        async for event in connect()._parse_events(response):
            reader.read_event(event)

    asyncio.run(read_all())


def list_events() -> list[bytes]:
    chat = {"choices": [{"index": 0, "delta": {"content": "a", "reasoning": "b"}}]}
    logprobs = {"tokens": ["token_id:5"], "token_logprobs": [-1.0]}
    logprobs["top_logprobs"] = [{"token_id:5": -1.0, "token_id:6": -2.0}]
    text = {"choices": [{"text": "a", "logprobs": logprobs, "finish_reason": "stop"}]}
    steps = {"content": [{"token": "token_id:5", "logprob": -1, "top_logprobs": []}]}
    last = {"choices": [{"delta": {}, "logprobs": steps, "finish_reason": "length"}]}
    usage = {"choices": [], "usage": {"completion_tokens": 3, "prompt_tokens_details": {}}}
    failed = {"error": {"message": "m", "code": 429, "type": "x"}}
    events = [[chat, last, usage], [text, usage], [text, failed]]
    return [
        b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in several)
        + b": comment\n\ndata: [DONE]\n\n"
        for several in events
    ]


def parse_template(content: bytes) -> None:
    template = ChatTemplate(content.decode("utf-8", "replace"), {"bos_token": "<s>"})
    messages = [{"role": "user", "content": "a"}, {"role": "tool", "content": "b" * 50}]
    template.render(messages, tools=[{"name": "f", "parameters": {"a": [1, 2]}}])


def list_templates() -> list[bytes]:
    return [
        (TINY / "chat_template.jinja").read_bytes(),
        b"{%- for m in messages if m.role %}{{ loop.index ~ m['content']|trim * 2 }}{% endfor %}",
        b"{% macro f(x, n=3) %}{{ x.split('a')|join('-') }}{% if n %}{{ f(x ~ x, n - 1) }}{% endif"
        b" %}{% endmacro %}{{ f(messages[0].content) }}{{ tools|tojson(indent=2) }}",
        b"{% set ns = namespace(t=[]) %}{% for i in range(20) %}{% set ns.t = ns.t + [ns.t] %}"
        b"{% endfor %}{{ ns.t }}{{ '%5s' % 'a' }}{{ '{:>4}'.format(1) }}{{ 'a'.center(9) }}",
    ]


def parse_pattern(content: bytes) -> None:
    pattern, _, text = content.partition(PART)
    by = text[:9].decode("utf-8", "replace")
    declared = {"pattern": pattern.decode("utf-8", "replace"), "by": by}
    steps = parse_filters([{"regex": {"pattern": declared["pattern"]}}, {"replace": declared}])
    try:
        for step in steps if isinstance(steps, list) else []:
            apply_filters([step], text.decode("utf-8", "replace"))
    except (TimeoutError, ValueError):
        return  # the sentences of the limits


def list_patterns() -> list[bytes]:
    return [
        rb"(?i)the answer is \(?([A-J])\)?" + b"\0\0" + b"The answer is (B)." * 9,
        rb"(-?[$0-9.,]{2,})|(-?[0-9]+)" + b"\0\0" + rb"\1\g<2>3,000.5 apples",
        rb"(?P<a>(a|b)*?)\b(?=c)[^\s\w]+$" + b"\0\0" + b"abab c!!" * 4,
    ]


TARGETS: Mapping[str, Target] = {
    "specs": Target(parse_spec, list_specs),
    "rows": Target(parse_rows, list_rows),
    "journals": Target(parse_journal, list_journals),
    "runs": Target(parse_run, list_runs, share=1 / 3),
    "references": Target(parse_reference, list_references, share=1 / 3),
    "gguf": Target(parse_gguf, list_gguf),
    "tokenizers": Target(parse_tokenizer, list_tokenizers),
    "events": Target(parse_events, list_events),
    "templates": Target(parse_template, list_templates),
    "patterns": Target(parse_pattern, list_patterns),
}


def change_values(draw: random.Random, seeds: Sequence[bytes]) -> bytes:
    """Return a valid input with other values of JSON in place of some: still JSON, if it was."""
    made = bytearray(draw.choice(seeds))
    for _ in range(draw.randint(1, 3)):
        if (found := VALUE.search(made, draw.randint(0, len(made)))) is not None:
            made[found.start() : found.end()] = draw.choice(VALUES)
    return bytes(made)


def edit(draw: random.Random, seeds: Sequence[bytes]) -> bytes:
    """Return a valid input with one to eight edits, most of them near its beginning."""
    made = bytearray(draw.choice(seeds))
    for _ in range(draw.randint(1, 8)):
        end = len(made) if draw.random() < 0.5 else min(len(made), 4096)
        at = draw.randint(0, end)
        length = min(draw.choice((0, 1, 1, 4, 16, 100)), len(made) - at)
        match draw.randrange(6):
            case 0:
                made[at : at + length] = draw.choice(SPLICES)
            case 1:
                made[at : at + length] = draw.randbytes(length or 1)
            case 2:
                del made[at : at + length]
            case 3:
                made[at:at] = made[at : at + length] * draw.choice((1, 2, 50))
            case 4:
                other = draw.choice(seeds)
                start = draw.randint(0, min(len(other), 4096))
                made[at : at + length] = other[start : start + draw.choice((4, 40, 400))]
            case _:
                for place in range(at, at + min(length, 1)):
                    made[place] ^= 1 << draw.randrange(8)
    return bytes(made)


class TooSlowError(BaseException):
    """A parser took longer than `PATIENCE_S`."""


def find_fault(target: Target, content: bytes) -> BaseException | None:
    """Return what a parser raised, if that is none of the project's errors."""
    signal.setitimer(signal.ITIMER_PROF, PATIENCE_S)
    try:
        target.parse(content)
    except (EvalutionError, RetryableError):
        return None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - what is looked for, a panic of a library too
        return error
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return None


def describe(fault: BaseException) -> str:
    """Return a fault's kind and place, by which equal ones are known."""
    frames = traceback.extract_tb(fault.__traceback__)
    ours = [frame for frame in frames if "/evalution" in frame.filename] or frames
    return f"{type(fault).__name__} at {Path(ours[-1].filename).name}:{ours[-1].lineno}"


def shrink(target: Target, content: bytes, kind: str) -> bytes:
    """Return a smaller input with the same fault, found by leaving out pieces."""
    size, tries = len(content) // 2, 0
    while size and tries < TRIES_TO_SHRINK and not kind.startswith("TooSlow"):
        for at in range(0, len(content), size):
            tries += 1
            smaller = content[:at] + content[at + size :]
            fault = find_fault(target, smaller)
            if fault is not None and describe(fault) == kind:
                content = smaller
                break
            if tries >= TRIES_TO_SHRINK:
                break
        else:
            size //= 2
    return content


def fuzz(name: str, seconds: float, seed: int) -> tuple[int, dict[str, bytes]]:
    """Return the number of inputs, and the smallest input of each fault."""
    target, draw = TARGETS[name], random.Random(seed)
    seeds = target.seeds()
    for valid in seeds:
        if (fault := find_fault(target, valid)) is not None:
            raise fault
    found: dict[str, bytes] = {}
    end, count = time.process_time() + seconds, 0
    while time.process_time() < end:
        count += 1
        content = draw.choice((edit, edit, change_values))(draw, seeds)
        fault = find_fault(target, content)
        if fault is not None and (kind := describe(fault)) not in found:
            found[kind] = shrink(target, content, kind)
            print("".join(traceback.format_exception(fault)[-8:]), flush=True)
            print(f"{name}: {kind}, by {found[kind][:2000]!r}\n", flush=True)
    return count, found


def stop_slow_parser(*_: object) -> None:
    raise TooSlowError


def prepare_process(folder: str) -> None:
    """Work in a new folder within `folder`, with limits of memory and of time for each input."""
    os.chdir(tempfile.mkdtemp(dir=folder))
    os.environ["RUST_BACKTRACE"] = "0"
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGPROF, stop_slow_parser)
    warnings.simplefilter("ignore")  # of `re`, on patterns that will mean something else


def main() -> int:
    parser = argparse.ArgumentParser(description="Feed the parsers damaged input.")
    parser.add_argument("targets", nargs="*", help=f"of {', '.join(TARGETS)}; all if none is named")
    parser.add_argument("--seconds", type=float, default=60, help="of processor time in all")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    chosen = parser.parse_args()
    if unknown := set(chosen.targets) - set(TARGETS):
        parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    names = chosen.targets or list(TARGETS)
    shares = [TARGETS[name].share for name in names]
    seconds = [chosen.seconds * share / sum(shares) for share in shares]
    each = partial(fuzz, seed=chosen.seed)
    faults, cores = 0, len(os.sched_getaffinity(0))
    with (
        tempfile.TemporaryDirectory(prefix="evalution-fuzz-") as folder,
        ProcessPoolExecutor(cores, initializer=prepare_process, initargs=(folder,)) as pool,
    ):
        for name, (count, found) in zip(names, pool.map(each, names, seconds), strict=True):
            faults += len(found)
            print(
                f"{name:12}{count:10,} inputs{len(found):5} findings, seed {chosen.seed}",
                flush=True,
            )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
