"""Runs below folders, and their documents: the matrix of scores and the details of one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from evalution.redaction import mask_text, mask_value
from evalution.report.rendering import label_runs
from evalution.results import MetricResult, RunResult, SuiteResult
from evalution.runs.progress_file import PROGRESS, read_progress
from evalution.runs.reader import RunSamples, read_run
from evalution.runs.store import RESULTS
from evalution.samples_file import SAMPLES, SamplesTail
from evalution.scoring.metrics import wilson_interval
from evalution.view.documents import (
    ProgressDocument,
    RunDetailDocument,
    RunDocument,
    RunListDocument,
    RunStatus,
    ScoreDocument,
    SuiteDocument,
)
from evalution.view.samples import Judgement, SuiteView
from evalution_core import ConfigurationError
from evalution_core.plugins import did_you_mean
