"""The samples of one run, whatever holds them, for those who read more than one of its suites."""

from __future__ import annotations

from pathlib import Path

from evalution.results import RunResult, SuiteResult
from evalution.samples.columns import SampleColumns
from evalution.samples.reader import SamplesReader, SuiteSamples


class RunSamples:
    """Looks through the run's file once, however many suites are in it.

    Every method may raise `ConfigurationError`: the file can't be read, is damaged or was written
    by something else.
    """

    def __init__(self, run: RunResult):
        self.run = run
        self._readers: dict[Path, SamplesReader] = {}
        self._columns: dict[str, SampleColumns] = {}

    def of(self, suite: SuiteResult) -> SuiteSamples:
        """The samples of a suite, unfinished or not; none where they weren't kept."""
        file = suite.samples_file
        if file is None:
            return suite.stored_samples
        return self._readers.setdefault(file, SamplesReader(file)).of(suite.name)

    def columns(self, suite: SuiteResult) -> SampleColumns:
        """The same samples as columns in the order of the rows, made once."""
        if suite.name not in self._columns:
            self._columns[suite.name] = SampleColumns(self.of(suite))
        return self._columns[suite.name]
