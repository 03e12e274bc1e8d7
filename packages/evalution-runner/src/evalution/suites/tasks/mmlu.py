"""The subjects of MMLU in their groups, as lm-evaluation-harness 0.4.13 groups them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evalution.rows.local import Row
from evalution.suites.choice_suite import ChoiceSample, ChoiceSuite
from evalution.suites.dataset import Dataset
from evalution.suites.prompted_suite import FixedShotsOption
from evalution.suites.subsets import Subsets, SubsetSuite
from evalution_core import ConfigurationError, LoglikelihoodOutput

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
class MMLU(SubsetSuite[ChoiceSample, LoglikelihoodOutput], ChoiceSuite):
    """Exam questions of 57 subjects (Hendrycks et al. 2020, arXiv:2009.03300).

    `subsets` is `all`, a group (`stem`), a subject (`stem.abstract_algebra`), or a list of those:
    their union. `acc` is over all chosen questions; beside it stand `acc,<group>` of each group
    that was chosen as a whole and `acc,<group>.<subject>` of each subject. A group's score is that
    of all its questions together, as lm-evaluation-harness 0.4.13 weights it. `data` is a folder
    with one folder for each subject. A row's number runs on from subject to subject. Solved rows
    are the first of the subject's dev split unless `fixed_shots` is off.
    """

    task = "mmlu"
    dataset = Dataset("cais/mmlu", "test", fewshot_split="dev", rows=14042, licence="MIT")
    parts = SUBJECTS
    part_noun = "subject"

    fixed_shots: FixedShotsOption = True

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
