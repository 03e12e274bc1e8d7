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


def _wmt(year: int, pair: str) -> Dataset:
    return Dataset(f"wmt/wmt{year}", "test", pair, fewshot_split="validation")


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


@dataclass(kw_only=True)
class WMT14EnFr(_WMT):
    """News of 2014 from English to French (Bojar et al. 2014, W14-3302)."""

    task = "wmt14-en-fr"
    dataset = _wmt(14, "fr-en")
    source, into = "en", "fr"


@dataclass(kw_only=True)
class WMT14FrEn(_WMT):
    """News of 2014 from French to English (Bojar et al. 2014, W14-3302)."""

    task = "wmt14-fr-en"
    dataset = _wmt(14, "fr-en")
    source, into = "fr", "en"


@dataclass(kw_only=True)
class WMT16DeEn(_WMT):
    """News of 2016 from German to English (Bojar et al. 2016, W16-2301)."""

    task = "wmt16-de-en"
    dataset = _wmt(16, "de-en")
    source, into = "de", "en"


@dataclass(kw_only=True)
class WMT16EnDe(_WMT):
    """News of 2016 from English to German (Bojar et al. 2016, W16-2301)."""

    task = "wmt16-en-de"
    dataset = _wmt(16, "de-en")
    source, into = "en", "de"


@dataclass(kw_only=True)
class WMT16EnRo(_WMT):
    """News of 2016 from English to Romanian (Bojar et al. 2016, W16-2301)."""

    task = "wmt16-en-ro"
    dataset = _wmt(16, "ro-en")
    source, into = "en", "ro"


@dataclass(kw_only=True)
class WMT16RoEn(_WMT):
    """News of 2016 from Romanian to English (Bojar et al. 2016, W16-2301)."""

    task = "wmt16-ro-en"
    dataset = _wmt(16, "ro-en")
    source, into = "ro", "en"
