"""WMT: news in two languages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from evalution.rows.local import Row
from evalution.suites.dataset import Dataset, DatasetRows
from evalution.suites.generation_suite import Stop
from evalution.suites.translation_suite import TranslationSuite
from evalution_core import ConfigurationError

_LANGUAGES = {"de": "German", "en": "English", "fr": "French", "ro": "Romanian"}


@dataclass(kw_only=True)
class _WMT(DatasetRows, TranslationSuite):
    source: ClassVar[str]
    into: ClassVar[str]

    stop: Stop = ("\n",)

    def question_text(self, row: Row) -> str:
        source, into = _LANGUAGES[self.source], _LANGUAGES[self.into]
        return f"{source} phrase: {self._find_text(row, self.source)}\n{into} phrase:"

    def answer_text(self, row: Row) -> str:
        return " " + self._find_text(row, self.into)

    def _find_text(self, row: Row, language: str) -> str:
        texts = row["translation"]
        found = cast("Mapping[str, Any]", texts).get(language) if isinstance(texts, dict) else None
        if not isinstance(found, str):
            raise ConfigurationError(
                f"{row.place}: column 'translation' must hold a text for {language!r}, got "
                f"{texts!r}"
            )
        return found


def _translate(year: int, source: str, into: str, pair: str, paper: str) -> type[_WMT]:
    """Define the suite of a year's news from one language to another."""
    facts = {
        "__module__": __name__,
        "__doc__": f"News of 20{year} from {_LANGUAGES[source]} to {_LANGUAGES[into]} ({paper}).",
        "task": f"wmt{year}-{source}-{into}",
        "dataset": Dataset(f"wmt/wmt{year}", "test", pair, fewshot_split="validation"),
        "source": source,
        "into": into,
    }
    return type(f"WMT{year}{source.title()}{into.title()}", (_WMT,), facts)


_BOJAR_2014, _BOJAR_2016 = "Bojar et al. 2014, W14-3302", "Bojar et al. 2016, W16-2301"
WMT14EnFr = _translate(14, "en", "fr", "fr-en", _BOJAR_2014)
WMT14FrEn = _translate(14, "fr", "en", "fr-en", _BOJAR_2014)
WMT16DeEn = _translate(16, "de", "en", "de-en", _BOJAR_2016)
WMT16EnDe = _translate(16, "en", "de", "de-en", _BOJAR_2016)
WMT16EnRo = _translate(16, "en", "ro", "ro-en", _BOJAR_2016)
WMT16RoEn = _translate(16, "ro", "en", "ro-en", _BOJAR_2016)
