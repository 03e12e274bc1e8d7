"""Print how generation by evalution-transformers compares with upstream's own, on a random Llama.

Run it in the environment torch of tools/envs; on the CPU, or on a CUDA device where one is there or
`--device cuda` is said. Ours is measured twice: with upstream's manager, and with our own forward
passes. The peers are `generate_batch`, upstream's continuous batching, with as large a cache, and
`generate` in batches; each at the fastest of its settings. All get the same ids, and make as many
tokens of each prompt as its budget says, whatever they are. `generate_batch` has one budget for all
prompts: where they differ, what it does is done with one for each.

Times are processor time on the CPU, the clock's on a CUDA device. Each round draws new prompts of
the same lengths, so that no cache knows them, and runs all sides, beginning with another one; the
first round warms up and doesn't count. A ratio is the median of the rounds. Shapes stand in
paged_generation.toml, or in the file behind `--config`; `--pairs 1 even` runs one, once, and
`--json FILE` keeps the figures.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import statistics
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from machine import described, timed, write_figures
from random_llama import PAD, draw_ids, write_checkpoint
from transformers.generation.continuous_batching.utils import WorkloadHints
from transformers.utils import is_flash_attn_2_available

from evalution_core import GenerationRequest, Model
from evalution_transformers import Transformers

Config = dict[str, Any]
Ids = list[list[int]]
Side = Callable[[Ids, Sequence[int]], Ids]
"""Completes prompts, each by as many tokens as its budget."""
CONTINUOUS, STATIC = "generate_batch", "generate"
"""Upstream's ways; behind the name stand a step's tokens or a batch's size."""


@dataclass(frozen=True)
class Shape:
    """Lengths of the prompts and of their completions."""

    name: str
    lengths: list[int]
    budgets: list[int]

    def prompts(self, seed: str, vocabulary: int) -> Ids:
        chance = random.Random(f"{seed} {self.name}")
        return [draw_ids(chance, (length, length), vocabulary) for length in self.lengths]


def shape_of(name: str, settings: Config, seed: int) -> Shape:
    chance = random.Random(f"{seed} {name}")
    most = settings["most_tokens"]
    lengths = [chance.randint(*settings["prompt"]) for _ in range(settings["prompts"])]
    if "mean_tokens" not in settings:
        return Shape(name, lengths, [most] * len(lengths))
    rate = 1 / settings["mean_tokens"]
    return Shape(name, lengths, [min(most, 1 + int(chance.expovariate(rate))) for _ in lengths])


class Upstream:
    """A model of its own, run by what upstream has.

    `limits` are settings of its continuous batching, whose manager is kept until `forget`.
    """

    def __init__(self, folder: str, config: Config, device: str, limits: Config):
        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=config["dtype"], attn_implementation=config["attention"]
        ).to(device)
        self._limits = limits

    def continuously(self, prompts: Ids, budgets: Sequence[int]) -> Ids:
        settings = transformers.GenerationConfig(do_sample=False, eos_token_id=-1)
        limits = transformers.ContinuousBatchingConfig(**self._limits)
        if len(set(budgets)) > 1:
            return self._with_budgets(prompts, budgets, settings, limits)
        outputs = self._model.generate_batch(
            prompts, settings, limits, persistent_manager=True, max_new_tokens=budgets[0]
        )
        return [output.generated_tokens for output in outputs.values()]

    def _with_budgets(
        self, prompts: Ids, budgets: Sequence[int], settings: Any, limits: Any
    ) -> Ids:
        found: dict[str, list[int]] = {}
        with self._model.continuous_batching_context_manager(
            settings,
            timeout=5,
            continuous_batching_config=limits,
            persistent_manager=True,
            workload_hints=WorkloadHints(max(map(len, prompts)), max(budgets), len(prompts)),
        ) as manager:
            names = [
                manager.add_request(prompt, max_new_tokens=budget)
                for prompt, budget in zip(prompts, budgets, strict=True)
            ]
            while len(found) < len(names):
                result = manager.get_result(timeout=1)
                if result is not None and result.is_finished():
                    found[result.request_id] = result.generated_tokens
                elif result is None and not manager.is_running():
                    raise SystemExit("upstream's manager ended before its prompts did")
        return [found[name] for name in names]

    def in_batches(self, size: int, prompts: Ids, budgets: Sequence[int]) -> Ids:
        """By `generate`, prompts of like length together; a batch runs until its largest budget."""
        found: dict[int, list[int]] = {}
        order = sorted(range(len(prompts)), key=lambda at: -len(prompts[at]))
        settings = transformers.GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=PAD)
        for begin in range(0, len(order), size):
            part = order[begin : begin + size]
            width = len(prompts[part[0]])
            blanks = [width - len(prompts[at]) for at in part]
            rows = [[PAD] * blank + prompts[at] for blank, at in zip(blanks, part, strict=True)]
            mask = [[0] * blank + [1] * (width - blank) for blank in blanks]
            settings = transformers.GenerationConfig(
                do_sample=False,
                eos_token_id=-1,
                pad_token_id=PAD,
                max_new_tokens=max(budgets[at] for at in part),
            )
            made = self._model.generate(
                torch.tensor(rows, device=self._model.device),
                attention_mask=torch.tensor(mask, device=self._model.device),
                generation_config=settings,
            )
            for at, row in zip(part, made[:, width:].tolist(), strict=True):
                found[at] = row[: budgets[at]]
        return [found[at] for at in range(len(prompts))]

    def forget(self) -> None:
        self._model.destroy_cached_continuous_batching_manager()


def ours(session: Any) -> Side:
    def run(prompts: Ids, budgets: Sequence[int]) -> Ids:
        requests = [
            GenerationRequest(input_ids=prompt, max_new_tokens=budget, ignore_eos=True)
            for prompt, budget in zip(prompts, budgets, strict=True)
        ]
        return [output.token_ids for output in session.generate(requests)]

    return run


def measured(
    sides: dict[str, Side], shape: Shape, config: Config, device: str
) -> tuple[dict[str, list[float]], dict[str, Ids]]:
    """For each side the seconds of each round, and all completions."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    made: dict[str, Ids] = {name: [] for name in sides}
    names = list(sides)
    for round_ in range(config["pairs"] + 1):
        prompts = shape.prompts(f"{config['seed']} {round_}", config["model"]["vocab_size"])
        first = round_ % len(names)
        for name in names[first:] + names[:first]:
            seconds, found = timed(partial(sides[name], prompts, shape.budgets), device)
            if [len(ids) for ids in found] != shape.budgets:
                raise SystemExit(f"{name}: completions aren't as long as their budgets say")
            if round_:
                times[name].append(seconds)
                made[name] += found
    return times, made


def compare_ways(
    shape: Shape, times: dict[str, list[float]], made: dict[str, Ids]
) -> Iterator[dict[str, Any]]:
    """Each of our ways against each of upstream's at its fastest."""
    medians = {name: statistics.median(found) for name, found in times.items()}
    for mine in ("paged", "forward passes"):
        for way in (CONTINUOUS, STATIC):
            variants = [name for name in times if name.startswith(f"{way}, ")]
            peer = min(variants, key=medians.__getitem__)
            ratios = [b / a for a, b in zip(times[mine], times[peer], strict=True)]
            pairs = [
                (a, b)
                for left, right in zip(made[mine], made[peer], strict=True)
                for a, b in zip(left, right, strict=True)
            ]
            same = 100 * sum(a == b for a, b in pairs) / len(pairs)
            yield {
                "shape": shape.name,
                "prompts": len(shape.budgets),
                "tokens": sum(shape.budgets),
                "ours": mine,
                "seconds": medians[mine],
                "peer": peer,
                "peer_seconds": medians[peer],
                "ratios": ratios,
                "ratio": statistics.median(ratios),
                "same": same,
            }


def format_row(found: dict[str, Any]) -> str:
    ratios = found["ratios"]
    return (
        f"{found['shape']:<8}{found['prompts']:>8}{found['tokens']:>8}  {found['ours']:<14}"
        f"{found['seconds']:>8.2f}  {found['peer']:<20}{found['peer_seconds']:>8.2f}"
        f"{found['ratio']:>8.2f}x  {min(ratios):.2f} to {max(ratios):.2f}{found['same']:>8.1f}"
    )


def compare(
    folder: str, shapes: Sequence[Shape], config: Config, device: str
) -> list[dict[str, Any]]:
    figures: list[dict[str, Any]] = []
    with ExitStack() as stack:

        def session(**options: Any) -> Any:
            engine = Transformers(
                dtype=config["dtype"],
                device=device,
                attn_implementation=config["attention"],
                batch_size=config["rows"],
                **options,
            )
            return stack.enter_context(engine.build(Model(folder)))

        paged = session(paged=True, cache_tokens=config["cache_tokens"])
        described = paged.describe_execution()
        if "paged" not in described:
            raise SystemExit(
                f"the engine can't use upstream's manager here: {described['fallback']}"
            )
        print("  ".join(f"{name} {value}" for name, value in described["paged"].items()))
        sides: dict[str, Side] = {
            "paged": ours(paged),
            "forward passes": ours(session(paged=False)),
        }
        peers: list[Upstream] = []
        for tokens in config["step_tokens"]:
            limits = described["paged"] | {"max_batch_tokens": tokens}
            peers.append(Upstream(folder, config, device, limits))
            sides[f"{CONTINUOUS}, {tokens}"] = peers[-1].continuously
        for size in config["batch_sizes"]:
            sides[f"{STATIC}, {size}"] = partial(peers[0].in_batches, size)
        print(
            f"{'shape':<8}{'prompts':>8}{'tokens':>8}  {'ours':<14}{'s':>8}"
            f"  {'upstream':<20}{'s':>8}{'ratio':>9}  {'range':<12}{'same ids, %':>12}"
        )
        for shape in shapes:
            for found in compare_ways(shape, *measured(sides, shape, config, device)):
                print(format_row(found), flush=True)
                figures.append({**found, "rows": config["rows"]})
            paged.gc()
            for peer in peers:
                peer.forget()
    return figures


def asked_for(arguments: Sequence[str] | None) -> tuple[str, Config, list[Shape], Path | None]:
    """The device, its section of the configuration with what holds for all, shapes and file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    here = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=["cpu", "cuda"], default=here)
    parser.add_argument("--config", type=Path, default=Path(__file__).with_suffix(".toml"))
    parser.add_argument("--pairs", type=int)
    parser.add_argument("--json", type=Path)
    parser.add_argument("shapes", nargs="*")
    asked = parser.parse_args(arguments)
    if asked.device == "cuda" and here == "cpu":
        parser.error(f"torch {torch.__version__} sees no CUDA device; leave --device cuda out")
    every = tomllib.loads(asked.config.read_text("utf-8"))
    config = {"seed": every["seed"], "pairs": asked.pairs or every["pairs"], **every[asked.device]}
    flash = is_flash_attn_2_available()
    config["attention"] = next(
        name for name in config["attention"] if flash or not name.startswith("flash")
    )
    names = asked.shapes or list(config["shapes"])
    if unknown := set(names) - set(config["shapes"]):
        possible = ", ".join(config["shapes"])
        parser.error(f"no shape {min(unknown)!r} for {asked.device}; there are: {possible}")
    shapes = [shape_of(name, config["shapes"][name], config["seed"]) for name in names]
    return asked.device, config, shapes, asked.json


def main(arguments: Sequence[str] | None = None) -> None:
    device, config, shapes, file = asked_for(arguments)
    # Upstream warns of an end that no token is.
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.ERROR)
    dtype, seed = config["dtype"], config["seed"]
    with tempfile.TemporaryDirectory() as folder:
        count = write_checkpoint(Path(folder), config["model"], seed, dtype=dtype, device=device)
        print(described(device, "evalution-transformers", "transformers", "torch"))
        print(
            f"{dtype}, {config['attention']}, {count / 1e6:.0f} M parameters; "
            f"{config['pairs']} rounds"
        )
        write_figures(file, compare(folder, shapes, config, device))


if __name__ == "__main__":
    main()
