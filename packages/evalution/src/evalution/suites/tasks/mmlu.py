"""The subjects of MMLU in their groups, as lm-evaluation-harness 0.4.13 groups them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated

from pydantic import Field

from evalution.rows.local import Row
from evalution.scoring.metrics import Mean, Measure, Metric
from evalution.suites.choice_suite import ChoiceSample, ChoiceSuite
from evalution.suites.dataset import ALL, Dataset, DatasetRows, Subset, Subsets, local_folder
from evalution.suites.prompted_suite import FixedShotsOption
from evalution.suites.row_suite import Split
from evalution_core import ConfigurationError

SUBJECTS = Subsets(
    {
        "stem": (
            "abstract_algebra",
            "anatomy",
            "astronomy",
            "college_biology",
            "college_chemistry",
            "college_computer_science",
            "college_mathematics",
            "college_physics",
            "computer_security",
            "conceptual_physics",
            "electrical_engineering",
            "elementary_mathematics",
            "high_school_biology",
            "high_school_chemistry",
            "high_school_computer_science",
            "high_school_mathematics",
            "high_school_physics",
            "high_school_statistics",
            "machine_learning",
        ),
        "other": (
            "business_ethics",
            "clinical_knowledge",
            "college_medicine",
            "global_facts",
            "human_aging",
            "management",
            "marketing",
            "medical_genetics",
            "miscellaneous",
            "nutrition",
            "professional_accounting",
            "professional_medicine",
            "virology",
        ),
        "social_sciences": (
            "econometrics",
            "high_school_geography",
            "high_school_government_and_politics",
            "high_school_macroeconomics",
            "high_school_microeconomics",
            "high_school_psychology",
            "human_sexuality",
            "professional_psychology",
            "public_relations",
            "security_studies",
            "sociology",
            "us_foreign_policy",
        ),
        "humanities": (
            "formal_logic",
            "high_school_european_history",
            "high_school_us_history",
            "high_school_world_history",
            "international_law",
            "jurisprudence",
            "logical_fallacies",
            "moral_disputes",
            "moral_scenarios",
            "philosophy",
            "prehistory",
            "professional_law",
            "world_religions",
        ),
    }
)


_LETTERS = ("A", "B", "C", "D")


@dataclass(kw_only=True)
class MMLU(DatasetRows, ChoiceSuite):
    """Exam questions of 57 subjects (Hendrycks et al. 2020, arXiv:2009.03300).

    `subsets` is `all`, a group (`stem`), a subject (`stem.abstract_algebra`), or a list of those:
    their union. `acc` is over all chosen questions; beside it stand `acc,<group>` of each group
    that was chosen as a whole and `acc,<group>.<subject>` of each subject. A group's score is that
    of all its questions together, as lm-evaluation-harness 0.4.13 weights it. `data` is a folder
    with one folder for each subject. A row's number runs on from subject to subject. Solved rows
    are the first of the subject's dev split unless `fixed_shots` is off.
    """

    task = "mmlu"
    dataset = Dataset("cais/mmlu", "test", fewshot_split="dev")

    subsets: Annotated[
        str | Sequence[str],
        Field(
            description="Subjects: all, a group such as stem, a subject such as "
            "stem.abstract_algebra, or a list of those."
        ),
    ] = ALL
    fixed_shots: FixedShotsOption = True

    def check_options(self) -> None:
        super().check_options()
        try:
            _ = self._chosen
        except ValueError as error:
            raise self.wrong("subsets", str(error)) from None
        if self.data is not None and local_folder(self.data) is None:
            raise self.wrong("data", "must be a folder with one folder for each subject")

    def splits(self) -> Sequence[Split]:
        return [self._subject_split(subset) for subset in self._chosen]

    def make_metrics(self) -> Mapping[str, Metric]:
        return self._metrics

    def description_text(self, row: Row) -> str:
        subject = row.subset.partition(".")[2].replace("_", " ")
        return f"The following are multiple choice questions (with answers) about {subject}.\n\n"

    def question_text(self, row: Row) -> str:
        choices = row.texts("choices")
        if len(choices) != len(_LETTERS):
            raise ConfigurationError(f"{row.place}: there must be four choices, got {choices!r}")
        lettered = [f"{letter}. {text}" for letter, text in zip(_LETTERS, choices, strict=True)]
        return "\n".join([row.text("question").strip(), *lettered, "Answer:"])

    def choice_texts(self, row: Row) -> Sequence[str]:
        return _LETTERS

    def gold_index(self, row: Row, choices: Sequence[str]) -> int:
        return row.index_in("answer", len(choices))

    def measures(
        self, sample: ChoiceSample, chosen: Mapping[str, int]
    ) -> Mapping[str, Measure | None]:
        right = Measure(float(chosen["acc"] == sample.gold))
        return {**dict.fromkeys(self._metrics), **dict.fromkeys(self._find_metrics(sample), right)}

    def failure(self, sample: ChoiceSample) -> Mapping[str, Measure]:
        return dict.fromkeys(self._find_metrics(sample), Measure(0.0))

    @cached_property
    def _chosen(self) -> Sequence[Subset]:
        return SUBJECTS.select(self.subsets)

    @cached_property
    def _metrics(self) -> Mapping[str, Metric]:
        names = [*SUBJECTS.whole_groups(self._chosen), *(subset.name for subset in self._chosen)]
        return dict.fromkeys(["acc", *(f"acc,{name}" for name in names)], Mean())

    def _find_metrics(self, sample: ChoiceSample) -> list[str]:
        group = sample.subset.partition(".")[0]
        names = ("acc", f"acc,{group}", f"acc,{sample.subset}")
        return [name for name in names if name in self._metrics]

    def _subject_split(self, subset: Subset) -> Split:
        subject = replace(self.dataset, name=subset.child)
        if self.data is None:
            return self.make_split(subject, None, subset.name)
        folder = local_folder(self.data)
        if folder is None or not (folder / subset.child).is_dir():
            raise ConfigurationError(
                f"{self.data} holds no folder {subset.child}, which is a subject of the subsets "
                f"{self.subsets!r}; choose others with subsets"
            )
        return self.make_split(subject, folder / subset.child, subset.name)
