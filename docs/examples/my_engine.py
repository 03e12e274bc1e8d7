"""A whole engine: its model is a text file, and it counts which byte follows which."""

import math
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from evalution_core import (
    BaseEngine,
    BaseInferenceSession,
    Capability,
    GenerationOutput,
    LoglikelihoodOutput,
    Model,
    RollingLoglikelihoodOutput,
    SessionInfo,
)

CAPABILITIES = frozenset({Capability.GENERATE, Capability.LOGLIKELIHOOD, Capability.ROLLING})


@dataclass(slots=True)
class MyEngine(BaseEngine):
    smoothing: float = 0.01
    capabilities = CAPABILITIES

    def build(self, model: Model) -> BaseInferenceSession:
        return MySession(Path(model.path).read_bytes(), self.smoothing)


class MySession(BaseInferenceSession):
    info = SessionInfo(CAPABILITIES)

    def __init__(self, text, smoothing):
        self.pairs, self.firsts, self.smoothing = Counter(pairwise(text)), Counter(text), smoothing

    def logprob(self, last, byte):
        total = self.firsts[last] + 256 * self.smoothing
        return math.log((self.pairs[last, byte] + self.smoothing) / total)

    def best(self, last):
        return max(range(256), key=lambda byte: self.pairs[last, byte])

    def generate_continuous(self, requests, *, batch_size=None):
        for key, request in requests:
            text = bytearray(request.prompt.encode() or b"\n")
            for _ in range(request.max_new_tokens):
                text.append(self.best(text[-1]))
            completion = text[-request.max_new_tokens :].decode(errors="replace")
            for stop in request.stop:
                completion = completion.partition(stop)[0]
            yield key, GenerationOutput(request.prompt, completion, request.metadata)

    def generate(self, requests, *, batch_size=None):
        return [output for _, output in self.generate_continuous(enumerate(requests))]

    def score(self, context, text, metadata):
        steps = list(pairwise((context.encode() or b"\n")[-1:] + text.encode()))
        logprob = math.fsum(self.logprob(*step) for step in steps)
        is_greedy = all(byte == self.best(last) for last, byte in steps)
        return LoglikelihoodOutput(logprob, is_greedy, len(steps), metadata)

    def loglikelihood(self, requests, *, batch_size=None):
        return [self.score(each.context, each.continuation, each.metadata) for each in requests]

    def loglikelihood_rolling(self, requests, *, batch_size=None):
        scores = [self.score("", each.text, each.metadata) for each in requests]
        return [RollingLoglikelihoodOutput(s.logprob, s.token_count, s.metadata) for s in scores]

    def gc(self): ...

    def close(self): ...
