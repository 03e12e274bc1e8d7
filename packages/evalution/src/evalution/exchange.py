"""What sessions are asked and what they answer, of whichever kind."""

from __future__ import annotations

from evalution_core import (
    GenerationOutput,
    GenerationRequest,
    LoglikelihoodOutput,
    LoglikelihoodRequest,
    RollingLoglikelihoodOutput,
    RollingLoglikelihoodRequest,
)

Request = GenerationRequest | LoglikelihoodRequest | RollingLoglikelihoodRequest
Answer = GenerationOutput | LoglikelihoodOutput | RollingLoglikelihoodOutput
