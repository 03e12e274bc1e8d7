"""The policy of a gate: the largest losses that a candidate may have."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from evalution.yaml_spec.yaml_file import as_mapping, read_yaml
from evalution_core.options import check_option_names, parse_options

Margin = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True)
class SuitePolicy:
    """Margin, metric and weight of one suite."""

    declared_as: ClassVar[str] = "the gate's"

    loss: Annotated[Margin | None, Field(description="Margin, in place of the general one.")] = None
    metric: Annotated[str | None, Field(description="Metric that counts, if not the first.")] = None
    advisory: Annotated[bool, Field(description="Show the check, and decide without it.")] = False


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The largest loss of each kind that a candidate may have.

    Without `loss`, the suites that are named are checked, each of which needs a margin of its own.
    """

    declared_as: ClassVar[str] = "the gate's"

    loss: Annotated[Margin | None, Field(description="Of each suite, in units of its metric.")] = (
        None
    )
    suites: Annotated[
        dict[str, SuitePolicy], Field(description="Suites with rules of their own, by name.")
    ] = field(default_factory=dict[str, SuitePolicy])
    kl: Annotated[
        Margin | None,
        Field(description="Mean KL divergence in nats; beyond the control's, where one was run."),
    ] = None
    log_ppl_ratio: Annotated[
        Margin | None, Field(description="Logarithm of the ratio of perplexities.")
    ] = None
    other_top: Annotated[
        Margin | None, Field(description="Share of positions with another likeliest token.")
    ] = None


def read_policy(path: Path) -> Policy:
    """Return the policy of a YAML file.

    Raises:
        ConfigurationError: the file can't be read, or a name or a value in it is wrong.
    """
    found = as_mapping(read_yaml(path), f"the policy {path}")
    for name, rule in as_mapping(found.get("suites", {}), f"'suites' of {path}").items():
        check_option_names(SuitePolicy, as_mapping(rule, f"suite {name!r} of {path}"))
    return Policy(**parse_options(Policy, found))
