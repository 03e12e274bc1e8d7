"""Print how evalution-llama-cpp compares with llama-cpp-python's own calls on a random Llama.

Run it in the environment gguf of tools/envs. The peer scores a choice as its documentation does:
`reset`, `eval` of context and choice with `logits_all=True`, log-softmax of the rows of the choice;
it generates with `create_completion`, one prompt after the other. Both sides get the same ids, file
and threads. Pairs are interleaved; the ratio is the median of the ratios of the pairs. Tokens are
those given to `llama_decode`, against the unique tokens of the trie of all requests. Shapes stand
in llama_cpp_python.toml; `--pairs 1 mmlu` runs one, once. `--device cuda` runs both sides on a
GPU, where times are the clock's, and `--json FILE` keeps the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import gguf
import llama_cpp
import numpy as np

from evalution_core import GenerationRequest, LoglikelihoodRequest, Model
from evalution_enginekit import TokenSpan, plan_scoring
from evalution_llama_cpp import LlamaCpp

Config = dict[str, Any]
Ids = list[int]
_FIRST = 300
"""Ids below are bytes and special tokens."""


def write_model(path: Path, config: Config, seed: int) -> None:
    """A random Llama with a byte-level tokenizer."""
    chance = np.random.default_rng(seed)
    width, inner, layers = config["hidden_size"], config["intermediate_size"], config["layers"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config["context"])
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(config["heads"])
    writer.add_head_count_kv(config["heads"])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(width // config["heads"])
    writer.add_vocab_size(config["vocab_size"])
    add_tokenizer(writer, config["vocab_size"])

    def add(name: str, *shape: int) -> None:
        values = chance.standard_normal(shape, dtype=np.float32) * 2 / np.sqrt(shape[-1])
        kind = gguf.GGMLQuantizationType[config["weights"].upper()]
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)

    add("token_embd.weight", config["vocab_size"], width)
    add("output.weight", config["vocab_size"], width)
    writer.add_tensor("output_norm.weight", np.ones(width, np.float32))
    for layer in range(layers):
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(width, np.float32))
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"blk.{layer}.{name}.weight", width, width)
        add(f"blk.{layer}.ffn_gate.weight", inner, width)
        add(f"blk.{layer}.ffn_up.weight", inner, width)
        add(f"blk.{layer}.ffn_down.weight", width, inner)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tokenizer(writer: gguf.GGUFWriter, size: int) -> None:
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(code) for code in printable]
    letters += [chr(256 + at) for at in range(256 - len(letters))]
    tokens = [*letters, "th", "<s>", "</s>"]
    tokens += [f"<t{at}>" for at in range(len(tokens), size)]
    normal, control = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL
    types = [control if token in ("<s>", "</s>") else normal for token in tokens]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(["t h"])
    writer.add_bos_token_id(tokens.index("<s>"))
    writer.add_eos_token_id(tokens.index("</s>"))


def pairs_of(settings: Config, vocab_size: int, chance: random.Random) -> list[tuple[Ids, Ids]]:
    head = _ids_between([settings["head"]] * 2, vocab_size, chance)
    found: list[tuple[Ids, Ids]] = []
    for _ in range(settings["rows"]):
        context = head + _ids_between(settings["context"], vocab_size, chance)
        found += [
            (context, _ids_between(settings["answer"], vocab_size, chance))
            for _ in range(settings["choices"])
        ]
    return found


def prompts_of(settings: Config, vocab_size: int, chance: random.Random) -> list[tuple[Ids, int]]:
    lengths = [settings["lengths"][at % len(settings["lengths"])] for at in range(settings["rows"])]
    chance.shuffle(lengths)
    return [(_ids_between(settings["context"], vocab_size, chance), length) for length in lengths]


def _ids_between(bounds: list[int], vocab_size: int, chance: random.Random) -> Ids:
    least, most = bounds
    return [chance.randrange(_FIRST, vocab_size) for _ in range(chance.randint(least, most))]


def peer_scores(peer: llama_cpp.Llama, pairs: list[tuple[Ids, Ids]]) -> list[float]:
    scores: list[float] = []
    for context, answer in pairs:
        peer.reset()
        peer.eval(context + answer)
        rows = peer.scores[len(context) - 1 : len(context) + len(answer) - 1]
        logprobs = peer.logits_to_logprobs(rows)
        scores.append(float(sum(logprobs[at, token] for at, token in enumerate(answer))))
    return scores


def peer_completions(peer: llama_cpp.Llama, prompts: list[tuple[Ids, int]]) -> list[int]:
    outputs = [
        peer.create_completion(ids, max_tokens=length, temperature=0.0) for ids, length in prompts
    ]
    return [output["usage"]["completion_tokens"] for output in outputs]


def sides(session: Any, path: Path, name: str, config: Config) -> tuple[Any, Any, Any]:
    """Return our run, the peer's run, and a check that both did the same work."""
    settings = config["shapes"][name]
    chance = random.Random(f"{config['seed']} {name}")
    vocab_size = config["model"]["vocab_size"]
    scores = settings["kind"] == "choices"
    peer = llama_cpp.Llama(
        str(path),
        n_ctx=config["model"]["context"],
        n_threads=config["threads"],
        n_threads_batch=config["threads"],
        n_gpu_layers=0 if config["device"] == "cpu" else -1,
        logits_all=scores,
        verbose=False,
    )
    if scores:
        pairs = pairs_of(settings, vocab_size, chance)
        requests = [
            LoglikelihoodRequest(context_input_ids=context, continuation_input_ids=answer)
            for context, answer in pairs
        ]
        return (
            lambda: [output.logprob for output in session.loglikelihood(requests)],
            lambda: peer_scores(peer, pairs),
            unique_tokens(pairs),
        )
    prompts = prompts_of(settings, vocab_size, chance)
    asked = [GenerationRequest(input_ids=ids, max_new_tokens=length) for ids, length in prompts]
    return (
        lambda: [output.completion_tokens for output in session.generate(asked)],
        lambda: peer_completions(peer, prompts),
        None,
    )


def unique_tokens(pairs: list[tuple[Ids, Ids]]) -> int:
    spans = [TokenSpan(context + answer, len(context)) for context, answer in pairs]
    return plan_scoring(spans).unique_tokens


def seconds(run: Callable[[], object], device: str) -> float:
    """Processor time on a CPU, where other jobs on the machine disturb it less."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    start = clock()
    run()
    return clock() - start


def compare(name: str, session: Any, path: Path, config: Config) -> dict[str, Any]:
    settings = config["shapes"][name]
    run_ours, run_theirs, unique = sides(session, path, name, config)
    session.gc()
    before = session.decoded_tokens
    apart = max(abs(a - b) for a, b in zip(run_ours(), run_theirs(), strict=True))
    decoded = session.decoded_tokens - before
    ratios: list[float] = []
    mine = 0.0
    for _ in range(config["pairs"]):
        session.gc()
        mine = seconds(run_ours, config["device"])
        ratios.append(seconds(run_theirs, config["device"]) / mine)
    shared = "" if unique is None else f"{decoded / unique:.3f}"
    print(
        f"{name:<12}{mine:>8.2f}{decoded:>9}{shared:>9}{apart:>10.2g}"
        f"{statistics.median(ratios):>8.2f}x{settings['least']:>7}x"
        f"  {min(ratios):.2f} to {max(ratios):.2f}",
        flush=True,
    )
    return {
        "shape": name,
        "seconds": mine,
        "decoded": decoded,
        "unique": unique,
        "apart": apart,
        "ratios": ratios,
        "ratio": statistics.median(ratios),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--config", type=Path, default=Path(__file__).with_suffix(".toml"))
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--pairs", type=int)
    parser.add_argument("--json", type=Path)
    parser.add_argument("shapes", nargs="*")
    asked = parser.parse_args()
    config = tomllib.loads(asked.config.read_text("utf-8"))
    config |= {"device": asked.device, "pairs": asked.pairs or config["pairs"]}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "random.gguf"
        write_model(path, config["model"], config["seed"])
        # The peer's cache is of f16.
        engine = LlamaCpp(
            device=asked.device,
            strict_device=True,
            type_k="f16",
            type_v="f16",
            n_threads=config["threads"],
        )
        print(
            f"{'shape':<12}{'ours, s':>8}{'tokens':>9}{'/unique':>9}{'apart':>10}{'ratio':>9}"
            f"{'target':>8}  range"
        )
        with engine.build(Model(str(path))) as session:
            session.check()
            found = [
                compare(name, session, path, config)
                for name in asked.shapes or list(config["shapes"])
            ]
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1), "utf-8")


if __name__ == "__main__":
    main()
