"""Dates in many languages: every text determines its date, and test dates stay unseen."""

from __future__ import annotations

from datetime import date, timedelta

import pytest

from regard.data.dates import FIRST, LAST, alphabet, by_language, days_of, ordinal, sample, spell


def test_every_text_has_one_meaning() -> None:
    """All days of a leap year in all styles; the year is part of the text, so one year is enough."""
    meaning: dict[str, date] = {}
    day = date(2024, 1, 1)
    while day.year == 2024:
        for styles in by_language():
            for style in styles:
                assert meaning.setdefault(spell(day, style).lower(), day) == day, (style, day)
        day += timedelta(1)
    assert len(meaning) > 40_000


def test_there_are_many_languages_and_none_is_all_numbers() -> None:
    assert len(by_language()) >= 30
    for styles in by_language():
        assert len(styles) >= 2
        for style in styles:
            assert any(c.isalpha() for c in spell(date(2021, 2, 3), style)), style


@pytest.mark.parametrize(
    ("locale", "text"),
    [
        ("fr", "mercredi 3 mars 2021"),
        ("de", "3. M\u00e4rz 2021"),
        ("hu", "2021. m\u00e1rcius 3."),
        ("ru", "3 \u043c\u0430\u0440\u0442\u0430 2021 \u0433."),
        ("ja", "2021\u5e743\u67083\u65e5"),
        ("es", "3 de marzo de 2021"),
        ("en", "March 3rd, 2021"),
        ("en_GB", "Wed 3 Mar 2021"),
    ],
)
def test_people_would_write_it_so(locale: str, text: str) -> None:
    assert text in {
        spell(date(2021, 3, 3), style) for s in by_language() for style in s if style[0] == locale
    }


def test_a_date_belongs_to_one_split_in_every_form() -> None:
    splits = {split: set(days_of(split).tolist()) for split in ("train", "valid", "test")}
    assert sum(map(len, splits.values())) == len(set.union(*splits.values())) == LAST - FIRST + 1
    assert 0.045 < len(splits["test"]) / (LAST - FIRST + 1) < 0.055
    for split, days in splits.items():
        for n in range(300):
            assert date.fromisoformat(sample(5, split, n)[1]).toordinal() in days  # type: ignore[arg-type]


def test_a_sample_depends_on_its_address_only() -> None:
    forwards = [sample(0, "train", n) for n in range(100)]
    assert forwards == [sample(0, "train", n) for n in reversed(range(100))][::-1]
    assert forwards != [sample(1, "train", n) for n in range(100)]
    assert len(set(forwards)) > 95


def test_the_alphabet_covers_every_sample() -> None:
    letters = set(alphabet())
    for n in range(3000):
        assert set("".join(sample(3, "train", n))) <= letters


def test_ordinals() -> None:
    said = "1st 2nd 3rd 4th 11th 12th 13th 21st 22nd 23rd 31st"
    assert [ordinal(n) for n in (1, 2, 3, 4, 11, 12, 13, 21, 22, 23, 31)] == said.split()
