"""Print how evalution-transformers compares with lm-eval's `hf` model on a random Llama, on CPU.

Run it in the environment lm-eval of tools/envs, with evalution-transformers installed there. Both
sides get the same texts, the same weights and one thread. Times are processor time: on a machine
that does something else besides, a clock on the wall favours whoever is luckier. Pairs are
interleaved; the ratio is the median of the pairs, lm-eval at its fastest batch size: `auto` is one
of them, and detects its size in a run before those that are timed. Tokens are counted in the
model's forward calls, against the unique tokens of the prefix trie of each planned window. Memory
is the peak of two fresh processes. Shapes stand in scoring.toml; `--pairs 1 mmlu` runs one, once.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from evalution_core import (
    GenerationRequest,
    LoglikelihoodRequest,
    Model,
    RollingLoglikelihoodRequest,
)
from evalution_enginekit import TokenSpan, plan_scoring
from evalution_transformers import Transformers

Config = dict[str, Any]
Requests = list[tuple[Any, ...]]
T = TypeVar("T")


@dataclass
class Shape:
    """Requests of one kind: (context, continuation), (text,) or (prompt,)."""

    name: str
    kind: str
    requests: Requests
    settings: Config


class Peer(HFLM):
    """lm-eval's model, but `auto` keeps the batch size `detected` until that is 0 again."""

    detected = 0

    def _detect_batch_size(self, requests: Sequence[Any] | None = None, pos: int = 0) -> int:
        if not self.detected:
            self.detected = super()._detect_batch_size(requests, pos)
        return self.detected


def write_model(folder: Path, config: Config, seed: int) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    torch.manual_seed(seed)
    settings = transformers.LlamaConfig(
        **config, bos_token_id=0, eos_token_id=1, tie_word_embeddings=False
    )
    transformers.LlamaForCausalLM(settings).save_pretrained(folder)
    specials = ["<s>", "</s>", "<unk>"]
    words = {word: at for at, word in enumerate(specials)}
    words |= {f"w{at}": at for at in range(len(specials), config["vocab_size"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>"
    ).save_pretrained(folder)


def shape_of(name: str, settings: Config, vocab_size: int, seed: int) -> Shape:
    chance = random.Random(f"{seed} {name}")

    def words(least: int, most: int | None = None) -> str:
        count = chance.randint(least, least if most is None else most)
        return " ".join(f"w{chance.randrange(3, vocab_size)}" for _ in range(count))

    head = words(settings["head"]) + " " if settings.get("head") else ""
    requests: Requests = []
    for _ in range(settings["rows"]):
        if settings["kind"] == "rolling":
            requests.append((words(*settings["text"]),))
            continue
        context = head + words(*settings["context"])
        if settings["kind"] == "generation":
            requests.append((context,))
        else:
            answers = [" " + words(*settings["answer"]) for _ in range(settings["choices"])]
            requests += [(context, answer) for answer in answers]
    return Shape(name, settings["kind"], requests, settings)


def ours(session: Any, shape: Shape) -> Callable[[], Any]:
    if shape.kind == "rolling":
        texts = [RollingLoglikelihoodRequest(*request) for request in shape.requests]
        return lambda: session.loglikelihood_rolling(texts)
    if shape.kind == "choices":
        pairs = [LoglikelihoodRequest(*request) for request in shape.requests]
        return lambda: session.loglikelihood(pairs)
    prompts = [
        GenerationRequest(
            *request, stop=shape.settings["stop"], max_new_tokens=shape.settings["max_new_tokens"]
        )
        for request in shape.requests
    ]
    return lambda: session.generate(prompts)


def theirs(peer: Peer, shape: Shape, batch_size: int | str) -> Callable[[], Any]:
    method = {"choices": "loglikelihood", "rolling": "loglikelihood_rolling"}.get(
        shape.kind, "generate_until"
    )
    rest: tuple[Any, ...] = ()
    if shape.kind == "generation":
        limit = shape.settings["max_new_tokens"]
        rest = ({"until": list(shape.settings["stop"]), "max_gen_toks": limit},)
    instances = [
        Instance("loglikelihood", {}, (*request, *rest), at)
        for at, request in enumerate(shape.requests)
    ]

    def run() -> Any:
        peer.batch_size_per_gpu = batch_size
        with redirect_stdout(sys.stderr):  # where `auto` announces itself
            return getattr(peer, method)(instances, disable_tqdm=True)

    return run


def timed(run: Callable[[], T]) -> tuple[float, T]:
    """Seconds of processor time, and what the run gave."""
    start = time.process_time()
    found = run()
    return time.process_time() - start, found


def add_stops(session: Any, shape: Shape) -> None:
    """Stop strings that end the completions after `mean_tokens` tokens on average."""
    settings = shape.settings
    limit = settings["max_new_tokens"]
    prompts = [GenerationRequest(*r, max_new_tokens=limit) for r in shape.requests]
    outputs = [output.token_ids for output in session.generate(prompts)]
    stops: list[int] = []
    lengths = [limit] * len(outputs)
    chance = random.Random(0)
    while statistics.mean(lengths) > settings["mean_tokens"]:
        longest = max(range(len(outputs)), key=lambda at: lengths[at])
        reach = outputs[longest][: min(lengths[longest], 2 * settings["mean_tokens"])]
        stops.append(chance.choice(reach[len(reach) // 2 :]))
        lengths = [
            next((at + 1 for at, i in enumerate(ids) if i in stops), limit) for ids in outputs
        ]
    # A word's text may begin another's: the blank behind it makes it whole.
    settings["stop"] = [f" w{token_id} " for token_id in stops]
    spread = sorted(lengths)
    print(f"gsm8k: {len(stops)} stop strings; tokens {spread[0]} to {spread[-1]}", flush=True)


def counted(model: Any, run: Callable[[], object]) -> int:
    """Tokens in all forward calls of the model's body."""
    total = 0

    def count(_: Any, args: Any, inputs: Config) -> None:
        nonlocal total
        total += (inputs["input_ids"] if "input_ids" in inputs else args[0]).numel()

    handle = model.base_model.register_forward_pre_hook(count, with_kwargs=True)
    try:
        run()
    finally:
        handle.remove()
    return total


def unique_tokens(session: Any, shape: Shape) -> int | None:
    """Tokens of the tries of the windows that the session plans."""
    if shape.kind != "choices":
        return None
    spans: list[TokenSpan] = []
    for context, answer in shape.requests:
        ids = session.tokenizer.encode(context)
        spans.append(TokenSpan(ids + session.tokenizer.encode(answer), len(ids)))
    spans.sort(key=lambda span: list(span.token_ids))
    window = 256
    plans = [plan_scoring(spans[at : at + window]) for at in range(0, len(spans), window)]
    return sum(plan.unique_tokens for plan in plans)


def peer_of(folder: Path, config: Config) -> Peer:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    limit = config["peer_max_batch_size"]
    settings: Config = {"max_batch_size": limit, "device": "cpu", "add_bos_token": False}
    return Peer(pretrained=model, tokenizer=tokenizer, **settings)


def largest_difference(left: Sequence[Any], right: Sequence[Any]) -> float:
    """Between our scores and lm-eval's, which are pairs or numbers."""
    values = [found[0] if isinstance(found, tuple) else found for found in right]
    return max(abs(a.logprob - b) / a.token_count for a, b in zip(left, values, strict=True))


def compare(session: Any, peer: Peer, shape: Shape, config: Config) -> None:
    if shape.kind == "generation":
        add_stops(session, shape)
    peer.detected = 0
    theirs(peer, shape, "auto")()
    sizes = {size: timed(theirs(peer, shape, size))[0] for size in config["peer_batch_sizes"]}
    best = min(sizes, key=sizes.__getitem__)
    batch = f"auto ({peer.detected})" if best == "auto" else best
    run_ours, run_theirs = ours(session, shape), theirs(peer, shape, best)
    ratios: list[float] = []
    mine, left, right = 0.0, [], []
    for _ in range(config["pairs"]):
        session.gc()
        mine, left = timed(run_ours)
        peers, right = timed(run_theirs)
        ratios.append(peers / mine)
    session.gc()
    forwarded = counted(session._model, run_ours)
    unique = unique_tokens(session, shape)
    apart = "" if shape.kind == "generation" else f"{largest_difference(left, right):.1e}"
    ratio = statistics.median(ratios)
    print(
        f"{shape.name:<10}{len(shape.requests):>9}{batch:>11}{mine:>9.1f}{forwarded:>10}"
        f"{'' if unique is None else f'{forwarded / unique:.3f}':>9}{apart:>10}"
        f"{ratio:>8.2f}x{shape.settings['least']:>7}x  {min(ratios):.2f} to {max(ratios):.2f}",
        flush=True,
    )


def memory(folder: Path, side: str, config: Config) -> int:
    """Peak resident memory in MiB of this process after one run of HellaSwag's shape."""
    shape = shape_of(
        "hellaswag", config["shapes"]["hellaswag"], config["model"]["vocab_size"], config["seed"]
    )
    if side == "ours":
        with Transformers(dtype="float32", device="cpu").build(Model(str(folder))) as session:
            ours(session, shape)()
    else:
        # As many tokens at once as one of our passes has.
        theirs(peer_of(folder, config), shape, 512 // 88)()
    # Not getrusage: its peak includes that of the process which started this one.
    (line,) = (x for x in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in x)
    return int(line.split()[1]) // 1024


def main() -> None:
    config = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
    if sys.argv[1:2] == ["--memory"]:
        print(json.dumps(memory(Path(sys.argv[2]), sys.argv[3], config)))
        return
    arguments = sys.argv[1:]
    if arguments[:1] == ["--pairs"]:
        config["pairs"] = int(arguments[1])
        arguments = arguments[2:]
    names = arguments or list(config["shapes"])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_model(folder, config["model"], config["seed"])
        print(
            f"{'shape':<10}{'requests':>9}{'batch':>11}{'ours, s':>9}{'tokens':>10}{'/unique':>9}"
            f"{'nats off':>10}{'ratio':>9}{'target':>8}  range"
        )
        with Transformers(dtype="float32", device="cpu").build(Model(name)) as session:
            session.check()
            peer = peer_of(folder, config)
            for shape in names:
                settings = config["shapes"][shape]
                made = shape_of(shape, settings, config["model"]["vocab_size"], config["seed"])
                compare(session, peer, made, config)
        peaks: dict[str, int] = {}
        for side in ("ours", "theirs"):
            command = [sys.executable, __file__, "--memory", name, side]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            peaks[side] = int(done.stdout.splitlines()[-1])
        print(f"peak memory: {peaks['ours']} MiB, lm-eval {peaks['theirs']} MiB")


if __name__ == "__main__":
    main()
