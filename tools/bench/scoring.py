"""Print how evalution-transformers compares with lm-eval's `hf` model on a random Llama.

Run it in the environment lm-eval of tools/envs, with evalution-transformers installed there. Both
sides get the same texts, the same weights and one thread. Times are processor time: on a machine
that does something else too, a clock on the wall favours whoever is luckier. Pairs are
interleaved; the ratio is the median of the pairs, lm-eval at its fastest batch size: `auto` is one
of them, and detects its size in a run before those that are timed. Tokens are counted in the
model's forward calls, against the unique tokens of the prefix trie of each planned window. Memory
is the peak of two fresh processes. Shapes stand in scoring.toml; `--pairs 1 mmlu` runs one, once.
`--config tools/bench/scoring_lengths.toml` has texts of other lengths, on three models;
`--profile` prints the operations on which each side spends its processor time.

`--config tools/bench/scoring_cuda.toml` runs it on a CUDA device, where times are the clock's and
memory is the most that torch held there at once for each side. `--checkpoint FOLDER` takes a model
that random_llama.py wrote instead of the one of the configuration, and `--json FILE` keeps the
figures, those of a shape as soon as they are there.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from machine import described, timed, write_figures
from random_llama import draw_text, write_checkpoint
from torch._C._profiler import _ExperimentalConfig

from evalution_core import (
    GenerationRequest,
    LoglikelihoodRequest,
    Model,
    RollingLoglikelihoodRequest,
)
from evalution_enginekit import TokenSpan, plan_scoring
from evalution_transformers import Transformers
from evalution_transformers.session import default_pass_tokens

Config = dict[str, Any]
Requests = list[tuple[Any, ...]]


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
    takes_cudnn = True

    def _detect_batch_size(self, requests: Sequence[Any] | None = None, pos: int = 0) -> int:
        if not self.detected:
            self.detected = super()._detect_batch_size(requests, pos)
        return self.detected


@contextmanager
def cudnn_attention(*, allowed: bool) -> Generator[None]:
    """Let torch's attention take cuDNN's kernels, as it does by default, or not."""
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(allowed)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def shape_of(name: str, config: Config) -> Shape:
    settings = config["shapes"][name]
    chance = random.Random(f"{config['seed']} {name}")

    def words(least: int, most: int) -> str:
        return draw_text(chance, (least, most), config["model"]["vocab_size"])

    head = words(settings["head"], settings["head"]) + " " if settings.get("head") else ""
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
        # `auto` announces itself there; attention is torch's own choice unless ours is asked for.
        with redirect_stdout(sys.stderr), cudnn_attention(allowed=peer.takes_cudnn):
            return getattr(peer, method)(instances, disable_tqdm=True)

    return run


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
    print(
        f"{shape.name}: {len(stops)} stop strings; tokens {spread[0]} to {spread[-1]}", flush=True
    )


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
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=config["dtype"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    limit, device = config["peer_max_batch_size"], config["device"]
    settings: Config = {"max_batch_size": limit, "device": device, "add_bos_token": False}
    return Peer(pretrained=model.to(device), tokenizer=tokenizer, **settings)


def largest_difference(left: Sequence[Any], right: Sequence[Any]) -> float:
    """Between our scores and lm-eval's, which are pairs or numbers."""
    values = [found[0] if isinstance(found, tuple) else found for found in right]
    return max(abs(a.logprob - b) / a.token_count for a, b in zip(left, values, strict=True))


def largest_shares(run: Callable[[], object], device: str, most: int = 6) -> str:
    """The operations of torch that take most of a run's time, with their shares.

    It is the processor's or the CUDA device's, of which is said how much of the run it was busy.
    """
    on_cuda = device == "cuda"
    kinds = torch.profiler.ProfilerActivity
    activities = [kinds.CPU, kinds.CUDA] if on_cuda else [kinds.CPU]
    every_thread = _ExperimentalConfig(profile_all_threads=True)  # a session has its own
    with torch.profiler.profile(activities=activities, experimental_config=every_thread) as profile:
        seconds, _ = timed(run, device)
    # A kernel's time is counted with the operation that begins it, too.
    spent = {
        event.key: event.self_device_time_total if on_cuda else event.self_cpu_time_total
        for event in profile.key_averages()
        if event.device_type.name == "CPU"
    }
    whole = sum(spent.values())
    largest = sorted(spent, key=lambda key: -spent[key])[:most]
    shares = [f"{key.removeprefix('aten::')} {spent[key] / whole:.0%}" for key in largest if whole]
    return ", ".join([*shares, *([f"busy {whole / 1e6 / seconds:.0%}"] if on_cuda else [])])


def forget(session: Any) -> None:
    """Forget what the last run computed; torch keeps the memory, which the next run takes again."""
    session._scorer.forget()
    session._generation_path.forget()


def try_once(run: Callable[[], object], device: str) -> float:
    """Seconds of a run, endless where memory runs out."""
    try:
        return timed(run, device)[0]
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return math.inf


def find_best_batch(peer: Peer, shape: Shape, config: Config) -> int | str:
    sizes = shape.settings.get("peer_batch_sizes", config["peer_batch_sizes"])
    peer.detected = 0
    if "auto" in sizes:
        theirs(peer, shape, "auto")()
    trials = {size: try_once(theirs(peer, shape, size), config["device"]) for size in sizes}
    return min(trials, key=trials.__getitem__)


def measure(run: Callable[[], Any], device: str, weights: int) -> tuple[float, Any, int]:
    """Seconds of a run, what it gave, and the MiB that it held at most beside other weights."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    seconds, found = timed(run, device)
    held = torch.cuda.max_memory_allocated() - weights if device == "cuda" else 0
    return seconds, found, held >> 20


def try_pass_tokens(session: Any, run: Callable[[], object], config: Config) -> dict[str, float]:
    """Seconds of ours with other numbers of tokens in a pass than the device's default."""
    scorer, found = session._scorer, dict[str, float]()
    default = scorer._pass_tokens
    for tokens in config.get("pass_tokens", ()):
        scorer._pass_tokens = tokens
        for _ in range(2):  # torch takes its memory and chooses its kernels in the first
            forget(session)
            found[str(tokens)] = try_once(run, config["device"])
    scorer._pass_tokens = default
    return found


def compare(session: Any, peer: Peer, shape: Shape, config: Config) -> dict[str, Any]:
    device = config["device"]
    if shape.kind == "generation":
        add_stops(session, shape)
    best = find_best_batch(peer, shape, config)
    batch = f"auto ({peer.detected})" if best == "auto" else best
    run_ours, run_theirs = ours(session, shape), theirs(peer, shape, best)
    session.gc()
    forwarded = counted(session._model, run_ours)
    times: list[float] = []
    ratios: list[float] = []
    left, right, held, peer_held = [], [], 0, 0
    for _ in range(config["pairs"]):
        forget(session)
        seconds, left, held = measure(run_ours, device, config["peer_bytes"])
        forget(session)
        peers, right, peer_held = measure(run_theirs, device, config["session_bytes"])
        times.append(seconds)
        ratios.append(peers / seconds)
    by_pass_tokens = try_pass_tokens(session, run_ours, config)
    peer.takes_cudnn = device != "cuda"
    without_cudnn = (
        min(try_once(run_theirs, device) for _ in range(2)) if device == "cuda" else None
    )
    peer.takes_cudnn = True
    session.gc()
    unique = unique_tokens(session, shape)
    apart = "" if shape.kind == "generation" else f"{largest_difference(left, right):.1e}"
    ratio, mine = statistics.median(ratios), statistics.median(times)
    print(
        f"{shape.name:<12}{len(shape.requests):>9}{batch:>11}{mine:>9.1f}{forwarded:>10}"
        f"{'' if unique is None else f'{forwarded / unique:.3f}':>9}{apart:>10}"
        f"{ratio:>8.2f}x{shape.settings['least']:>7}x  {min(ratios):.2f} to {max(ratios):.2f}",
        flush=True,
    )
    if config["profile"]:
        for side, run in (("ours", run_ours), ("lm-eval", run_theirs)):
            session.gc()
            print(f"{'':<12}{side}: {largest_shares(run, device)}", flush=True)
    return {
        "shape": shape.name,
        "requests": len(shape.requests),
        "batch": str(batch),
        "seconds": mine,
        "forwarded": forwarded,
        "unique": unique,
        "apart": None if shape.kind == "generation" else largest_difference(left, right),
        "ratios": ratios,
        "ratio": ratio,
        "ours_mib": held,
        "lm_eval_mib": peer_held,
        "by_pass_tokens": by_pass_tokens,
        "lm_eval_s_without_cudnn": without_cudnn,
    }


def memory(folder: Path, side: str, config: Config) -> int:
    """Peak memory in MiB of this process after one run of HellaSwag's shape."""
    shape, device = shape_of("hellaswag", config), config["device"]
    if side == "ours":
        with Transformers(dtype=config["dtype"], device=device).build(
            Model(str(folder))
        ) as session:
            ours(session, shape)()
    else:
        # As many tokens at once as one of our passes has.
        tokens = sum(shape.settings["context"] + shape.settings["answer"]) // 2
        passed = default_pass_tokens(torch.device(device))
        theirs(peer_of(folder, config), shape, passed // tokens)()
    # Not getrusage: its peak includes that of the process which started this one.
    (line,) = (x for x in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in x)
    return int(line.split()[1]) // 1024


def peak(folder: str, side: str, file: Path) -> int:
    """Return the figures of `memory`, in a process of its own."""
    command = [sys.executable, __file__, "--config", str(file), "--memory", folder, side]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stdout.splitlines()[-1])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--config", type=Path, default=Path(__file__).with_suffix(".toml"))
    parser.add_argument("--pairs", type=int)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--memory", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("shapes", nargs="*")
    asked = parser.parse_args(arguments)
    config: Config = {"device": "cpu", "dtype": "float32"}
    config |= tomllib.loads(asked.config.read_text("utf-8"))
    config |= {"pairs": asked.pairs or config["pairs"], "profile": asked.profile}
    device, dtype = config["device"], config["dtype"]
    if asked.memory:
        print(memory(Path(asked.memory[0]), asked.memory[1], config))
        return
    if device == "cuda" and not torch.cuda.is_available():
        parser.error(f"torch {torch.__version__} sees no CUDA device, which {asked.config} is for")
    if unknown := set(asked.shapes) - set(config["shapes"]):
        parser.error(f"no shape {min(unknown)!r}; there are: {', '.join(config['shapes'])}")
    print(dtype, described(device, "evalution-transformers", "transformers", "lm-eval", "torch"))
    print(
        f"{'shape':<12}{'requests':>9}{'batch':>11}{'ours, s':>9}{'tokens':>10}{'/unique':>9}"
        f"{'nats off':>10}{'ratio':>9}{'target':>8}  range"
    )
    found: list[dict[str, Any]] = []
    for name, model in config.get("models", {"": config.get("model")}).items():
        with tempfile.TemporaryDirectory() as made:
            folder = asked.checkpoint or Path(made)
            if asked.checkpoint is None:
                count = write_checkpoint(folder, model, config["seed"], dtype=dtype, device=device)
                print(f"{name or 'model'}: {count / 1e6:.0f} M, vocabulary {model['vocab_size']}")
            shapes = asked.shapes or config["shapes"]
            for row in compare_all(folder, shapes, {**config, "model": model}, asked.config):
                found.append({"model": name, **row})
                write_figures(asked.json, found)


def compare_all(
    folder: Path, shapes: Iterable[str], config: Config, file: Path
) -> Iterator[dict[str, Any]]:
    """Yield the figures of each shape with the checkpoint in `folder`, and of memory."""
    with Transformers(dtype=config["dtype"], device=config["device"]).build(
        Model(str(folder))
    ) as session:
        session.check()
        session.gc()
        ours_bytes = read_bytes(config["device"])
        peer = peer_of(folder, config)
        both = {
            "session_bytes": ours_bytes,
            "peer_bytes": read_bytes(config["device"]) - ours_bytes,
        }
        for name in shapes:
            yield compare(session, peer, shape_of(name, config), config | both)
    del session, peer
    if "hellaswag" in shapes and "models" not in config and config["device"] == "cpu":
        mine, other = (peak(str(folder), side, file) for side in ("ours", "theirs"))
        print(f"peak memory: {mine} MiB, lm-eval {other} MiB")
        yield {"shape": "memory", "ours_mib": mine, "lm_eval_mib": other}


def read_bytes(device: str) -> int:
    """Return what torch holds on a CUDA device."""
    return torch.cuda.memory_allocated() if device == "cuda" else 0


if __name__ == "__main__":
    main()
