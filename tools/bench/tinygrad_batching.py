"""Print how fast evalution-tinygrad answers requests together, against one at a time.

Run it in the environment gguf of tools/envs. Two peers, each given the same ids: the same session
with one request a call, and for generation tinygrad's own `Transformer.generate`, which compiles
once, keeps its cache and re-uses the beginning that two prompts share. All are warm: each runs once
before it is timed, so that nothing is compiled while the clock runs. Pairs are interleaved; the
ratio is the median of the ratios of the pairs. Shapes stand in tinygrad_batching.toml; it runs on
the CPU, or on what `--device` names as tinygrad does, and `--json FILE` keeps the figures.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from evalution_core import GenerationRequest, LoglikelihoodRequest, Model
from evalution_tinygrad import Tinygrad

Config = dict[str, Any]
WORDS = ["The", "cat", "dog", "sees", "the", "red", "house", "and", "one", "plus", "two", "is"]


def prompts_of(config: Config, seed: int) -> list[GenerationRequest]:
    chance = random.Random(seed)
    return [
        GenerationRequest(
            " ".join(chance.choices(WORDS, k=chance.randint(*config["words"]))),
            max_new_tokens=chance.randint(*config["max_new_tokens"]),
            ignore_eos=True,
        )
        for _ in range(config["prompts"])
    ]


def pairs_of(config: Config, seed: int) -> list[LoglikelihoodRequest]:
    chance = random.Random(seed)

    def words(least: int, most: int) -> str:
        return " ".join(chance.choices(WORDS, k=chance.randint(least, most)))

    head = words(config["head"], config["head"])
    return [
        LoglikelihoodRequest(context, " " + words(*config["answer"]))
        for context in (f"{head} {words(*config['words'])}" for _ in range(config["questions"]))
        for _ in range(config["choices"])
    ]


def upstream(session: Any, prompts: list[GenerationRequest]) -> Callable[[], list[list[int]]]:
    """tinygrad's own generation on the session's model, one prompt after the other."""
    transformer, codec = session._forward._model, session.tokenizer
    inputs = [[*codec.leading_ids, *codec.encode(prompt.prompt)] for prompt in prompts]

    def run() -> list[list[int]]:
        with session._placement.activate():
            return [
                list(itertools.islice(transformer.generate(list(ids)), prompt.max_new_tokens))
                for ids, prompt in zip(inputs, prompts, strict=True)
            ]

    return run


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def compare(
    name: str, ours: Callable[[], Any], peer: Callable[[], Any], config: Config
) -> dict[str, Any]:
    ours()
    peer()
    ratios: list[float] = []
    mine = 0.0
    for _ in range(config["pairs"]):
        mine = seconds(ours)
        ratios.append(seconds(peer) / mine)
    print(
        f"{name:<44}{mine:>8.2f} s{statistics.median(ratios):>9.2f}x  "
        f"{min(ratios):.2f} to {max(ratios):.2f}",
        flush=True,
    )
    return {"shape": name, "seconds": mine, "ratios": ratios, "ratio": statistics.median(ratios)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--pairs", type=int)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    config = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
    config["pairs"] = asked.pairs or config["pairs"]
    prompts = prompts_of(config["generation"], config["seed"])
    pairs = pairs_of(config["scoring"], config["seed"])
    with Tinygrad(device=asked.device).build(Model("builtin:tiny")) as session:
        session.check()
        own = upstream(session, prompts)
        together = session.generate(prompts)
        same = sum(a.token_ids == b for a, b in zip(together, own(), strict=True))
        print(f"{same} of {len(prompts)} completions equal tinygrad's own")
        print(f"{'together, against':<44}{'together':>10}{'ratio':>10}")

        def generated() -> object:
            return session.generate(prompts)

        def scored() -> object:
            session.gc()
            return session.loglikelihood(pairs)

        def one_by_one() -> object:
            session.gc()
            return [session.loglikelihood([each]) for each in pairs]

        found = [
            compare(
                "generation, one request a call",
                generated,
                lambda: [session.generate([each]) for each in prompts],
                config,
            ),
            compare("generation, Transformer.generate", generated, own, config),
            compare("scoring, one request a call", scored, one_by_one, config),
        ]
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1), "utf-8")


if __name__ == "__main__":
    main()
