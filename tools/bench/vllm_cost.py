"""Print what evalution-vllm costs on top of vLLM, on its CPU build and a random Llama.

Run it in the environment vllm of tools/envs. Generation is compared with one `LLM.generate` call of
the same session's own `LLM`, choices with a `prompt_logprobs` request for each, as harnesses send
them. Pairs are interleaved; a ratio is the median of the ratios of the pairs. The adapter's own
share is the processor time of the calling thread and of the session's own one, less that inside of
vLLM's calls. Shapes stand in vllm_cost.toml; `--pairs 1 choices` runs one, once.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
os.environ["HF_HUB_OFFLINE"] = "1"

from random_llama import draw_text, write_checkpoint

from evalution_core import GenerationRequest, LoglikelihoodRequest, Model
from evalution_vllm import VLLM
from evalution_vllm.load import load
from evalution_vllm.session import make_session

Config = dict[str, Any]


def texts(count: int, length: list[int], vocabulary: int, chance: random.Random) -> list[str]:
    return [draw_text(chance, length, vocabulary) for _ in range(count)]


class Inside:
    """Processor time inside of vLLM's calls, measured by standing in front of them."""

    def __init__(self, engine: Any):
        self.seconds = 0.0
        for name in ("add_request", "step", "abort_request"):
            setattr(engine, name, self._timed(getattr(engine, name)))

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **options: Any) -> Any:
            start = time.thread_time()
            try:
                return call(*args, **options)
            finally:
                self.seconds += time.thread_time() - start

        return timed


def spent(run: Callable[[], object]) -> tuple[float, float]:
    """Seconds on the clock and of the processor."""
    clock, processor = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - clock, time.process_time() - processor


def compare(
    ours: Callable[[], object], theirs: Callable[[], object], pairs: int
) -> list[tuple[float, float, float]]:
    """Clock of ours, clock of theirs, ratio of processor times; which goes first alternates."""
    found: list[tuple[float, float, float]] = []
    for at in range(pairs):
        if at % 2:
            other, their_processor = spent(theirs)
            clock, processor = spent(ours)
        else:
            clock, processor = spent(ours)
            other, their_processor = spent(theirs)
        found.append((clock, other, processor / their_processor))
    return found


def generation(session: Any, llm: Any, config: Config, pairs: int) -> bool:
    import vllm

    shape = config["generation"]
    chance = random.Random(config["seed"])
    prompts = texts(shape["rows"], shape["prompt"], config["model"]["vocab_size"], chance)
    mean, most = shape["mean_tokens"], shape["most_tokens"]
    lengths = [min(most, 1 + int(chance.expovariate(1 / mean))) for _ in prompts]
    requests = [
        GenerationRequest(prompt, max_new_tokens=length, ignore_eos=True)
        for prompt, length in zip(prompts, lengths, strict=True)
    ]
    ids = [{"prompt_token_ids": session.tokenizer.encode(prompt)} for prompt in prompts]
    parameters = [
        vllm.SamplingParams(max_tokens=length, temperature=0.0, ignore_eos=True, detokenize=False)
        for length in lengths
    ]
    inside = Inside(llm.llm_engine)
    session.generate(requests[: len(requests) // 10])
    shares: list[float] = []

    def threads() -> float:
        return time.thread_time() + session._thread.call(time.thread_time)

    def ours() -> None:
        inside.seconds, before = 0.0, threads()
        _, processor = spent(lambda: session.generate(requests))
        shares.append((threads() - before - inside.seconds) / processor)

    found = compare(ours, lambda: llm.generate(ids, parameters, use_tqdm=False), pairs)
    ratio = statistics.median(clock / other for clock, other, _ in found)
    share = statistics.median(shares)
    print(
        f"generation: {len(requests)} prompts, {sum(lengths)} tokens; "
        f"{ratio:.3f} of the time of LLM.generate (at most {shape['slowest']}), "
        f"{statistics.median(processor for *_, processor in found):.3f} of its processor time, "
        f"{100 * share:.2f} % own processor time (at most {100 * shape['own_share']:.0f} %); "
        f"{statistics.median(clock for clock, _, _ in found):.1f} s"
    )
    return ratio <= shape["slowest"] and share <= shape["own_share"]


def choices(session: Any, llm: Any, config: Config, pairs: int) -> bool:
    import vllm

    shape = config["choices"]
    vocabulary = config["model"]["vocab_size"]
    chance = random.Random(config["seed"])
    (head,) = texts(1, [shape["head"]] * 2, vocabulary, chance)
    questions = texts(shape["rows"], shape["context"], vocabulary, chance)
    answers = texts(shape["choices"], [1, 1], vocabulary, chance)
    requests = [
        LoglikelihoodRequest(f"{head} {question}", f" {answer}")
        for question in questions
        for answer in answers
    ]
    ids = [
        {"prompt_token_ids": session.tokenizer.encode(request.context + request.continuation)}
        for request in requests
    ]
    parameters = vllm.SamplingParams(
        max_tokens=1, temperature=0.0, prompt_logprobs=1, detokenize=False
    )
    scores: list[Any] = []

    def ours() -> None:
        llm.reset_prefix_cache()
        scores[:] = session.loglikelihood(requests)

    def theirs() -> None:
        llm.reset_prefix_cache()
        outputs = llm.generate(ids, parameters, use_tqdm=False)
        for score, output, asked in zip(scores, outputs, ids, strict=True):
            last = asked["prompt_token_ids"][-1]
            value = output.prompt_logprobs[-1][last].logprob
            assert abs(score.logprob - value) < 1e-3, (score.logprob, value)

    found = compare(ours, theirs, pairs)
    ratio = statistics.median(other / clock for clock, other, _ in found)
    print(
        f"choices: {len(requests)} requests; {ratio:.1f} times the speed of prompt_logprobs "
        f"(at least {shape['least']}); {statistics.median(c for c, _, _ in found):.1f} s"
    )
    return ratio >= shape["least"]


def main() -> int:
    config = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
    wanted = sys.argv[1:]
    pairs = int(wanted.pop(wanted.index("--pairs") + 1)) if "--pairs" in wanted else config["pairs"]
    wanted = [name for name in wanted if name != "--pairs"]
    benches = {"generation": generation, "choices": choices}
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(Path(folder), config["model"], config["seed"])
        engine = VLLM(
            dtype="float32",
            enforce_eager=True,
            max_num_seqs=config["max_num_seqs"],
            multiprocessing=False,
        )
        with ExitStack() as resources:
            served = load(engine, Model(folder), resources)
            session = resources.enter_context(
                make_session(engine, served, engine.capabilities, resources)
            )
            llm = served.runtime.llm
            session.check()
            kept = [benches[name](session, llm, config, pairs) for name in wanted or benches]
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
