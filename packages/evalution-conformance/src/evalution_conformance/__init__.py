"""Checks an engine against the contract: subclass `EngineConformance`, run pytest."""

from typing import Final

from evalution_conformance.checks.boundary import BoundaryChecks, WindowChecks
from evalution_conformance.checks.checkpoint import CheckpointChecks
from evalution_conformance.checks.continuous import ContinuousChecks
from evalution_conformance.checks.discovery import DiscoveryChecks, PackagingChecks
from evalution_conformance.checks.distributions import DistributionChecks
from evalution_conformance.checks.generation import GenerationChecks
from evalution_conformance.checks.isolation import IsolationChecks
from evalution_conformance.checks.lifecycle import BuildChecks, LifecycleChecks
from evalution_conformance.checks.rolling import RollingChecks
from evalution_conformance.checks.sampling import SamplingChecks
from evalution_conformance.checks.scoring import ScoringChecks
from evalution_conformance.checks.stopping import StoppingChecks
from evalution_conformance.checks.top_logprobs import TopLogprobsChecks
from evalution_conformance.suite import Conformance, Gap

__all__ = [
    "PRECISION_CHECKS",
    "WRAPPER_CHECKS",
    "EngineConformance",
    "Gap",
    "StructuralConformance",
]

PRECISION_CHECKS: Final = frozenset(
    {
        "boundary",
        "checkpoint",
        "distributions",
        "generation",
        "isolation",
        "rolling",
        "sampling",
        "scoring",
        "top_logprobs",
        "test_describe_execution_is_json_safe_and_stable",
        "test_the_self_check_passes",
    }
)
"""Checks of values: for a further precision of an engine that runs all of them in one."""

WRAPPER_CHECKS: Final = frozenset(
    {
        "discovery",
        "lifecycle",
        "continuous",
        "test_a_batch_answers_as_its_requests_alone",
        "test_a_seed_fixes_the_sample",
        "test_bad_requests_are_refused_by_index",
        "test_requests_come_back_untouched",
        "test_a_long_prompt_is_cut_from_the_left",
        "test_logprobs_belong_to_the_tokens",
        "test_completions_equal_the_reference",
        "test_a_batch_scores_as_its_pairs_alone",
        "test_a_stream_scores_as_the_list_does",
        "test_bad_pairs_are_refused_by_index",
        "test_a_bad_pair_is_a_value",
        "test_pairs_come_back_untouched",
        "test_scores_equal_the_reference",
        "test_an_empty_text_is_refused",
        "test_texts_score_in_order",
        "test_windows_equal_the_reference",
        "test_rows_come_whole_and_in_order",
        "test_rows_equal_the_reference",
        "test_a_bad_request_for_rows_fails_alone",
        "test_closing_rows_early_leaves_the_session_usable",
        "test_top_logprobs_equal_the_reference",
    }
)
"""Checks that an engine can break which hands requests on to sessions of another engine.

Between the two are processes, wires and schedulers: they can lose or reorder requests, change what
is pickled, keep a stream from ending, and lose an error's class or the index that it names. What
the other engine computes is checked where that engine is.
"""


class StructuralConformance(BuildChecks, DiscoveryChecks, Conformance):
    """The checks that need no working model: imports, options, build, description."""


class EngineConformance(
    PackagingChecks,
    CheckpointChecks,
    TopLogprobsChecks,
    DistributionChecks,
    IsolationChecks,
    WindowChecks,
    RollingChecks,
    BoundaryChecks,
    ScoringChecks,
    ContinuousChecks,
    SamplingChecks,
    StoppingChecks,
    GenerationChecks,
    LifecycleChecks,
    StructuralConformance,
):
    """The whole contract."""
