"""Dates as people write them, in many languages, beside the same date in ISO 8601.

Names of months and days and the order of the parts come from the Unicode CLDR through the `babel` package.
A sample is a pure function of (seed, split, sample number), and the split is a function of the date alone, so
a date of the test split never occurs in training in any form. Only forms that determine the date are made:
02/03/2021 is the second of March to some and the third of February to others, so it is not there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import date
from functools import cache

import numpy as np

from regard.data.synthetic import Split, generator

FIRST, LAST = date(1900, 1, 1).toordinal(), date(2099, 12, 31).toordinal()

# Croatian is missing because its 'listopad' is October while the Czech and the Polish one is November.
# fmt: off
DAY_FIRST = (
    "en", "en_GB", "de", "fr", "es", "it", "pt", "nl", "sv", "da", "nb", "fi", "pl", "cs", "sk", "ro", "tr",
    "ru", "uk", "bg", "el", "id", "ca", "is", "et",
)
OWN_ORDER = ("hu", "lt", "lv", "ja", "ko", "zh", "vi")
MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)
# fmt: on
COMMON = ("d MMMM y", "d MMM y", "EEE d MMM y", "EEEE d MMMM y")

Style = tuple[str, str]  # a locale and a pattern of the CLDR, or 'en' and a key of ENGLISH


def sample(seed: int, split: Split, number: int) -> tuple[str, str]:
    """One pair: ('mercredi 3 mars 2021', '2021-03-03')."""
    draw = generator(seed, split, number)
    days = days_of(split)
    day = date.fromordinal(int(days[draw.integers(len(days))]))
    languages = by_language()
    styles = languages[int(draw.integers(len(languages)))]
    text = spell(day, styles[int(draw.integers(len(styles)))])
    return (text.lower() if draw.random() < 1 / 8 else text), day.isoformat()


def spell(day: date, style: Style) -> str:
    """A date in one style. Narrow and fixed spaces become plain ones: people type those."""
    from babel.dates import format_date

    locale, pattern = style
    text = ENGLISH[pattern](day) if pattern in ENGLISH else format_date(day, pattern, locale=locale)
    return re.sub(r"\s+", " ", text).strip()


@cache
def by_language() -> tuple[tuple[Style, ...], ...]:
    """The styles of each language: its own full, long and medium forms, and common ones where they fit."""
    from babel.dates import get_date_format

    languages = []
    for locale in DAY_FIRST + OWN_ORDER:
        patterns = [str(get_date_format(form, locale=locale).pattern) for form in ("full", "long")]
        medium = str(get_date_format("medium", locale=locale).pattern)
        if "MMM" in medium:  # with the month's name; 03.02.2021 would not say which is the month
            patterns.append(medium)
        if locale in DAY_FIRST:
            patterns.extend(COMMON)
        languages.append(tuple((locale, pattern) for pattern in dict.fromkeys(patterns)))
    languages.append(tuple(("en", form) for form in ENGLISH))
    return tuple(languages)


@cache
def days_of(split: Split) -> np.ndarray:
    """The days that belong to a split, by a hash of the day: 90 % train, 5 % valid, 5 % test."""
    days = np.arange(FIRST, LAST + 1, dtype=np.uint64)
    with np.errstate(over="ignore"):  # splitmix64 (Steele et al. 2014): overflow is part of it
        mixed = days * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        share = (mixed ^ (mixed >> np.uint64(31))) % np.uint64(100)
    low, high = {"test": (0, 5), "valid": (5, 10), "train": (10, 100)}[split]
    return days[(share >= low) & (share < high)].astype(np.int64)


def alphabet() -> list[str]:
    """Every character a date can be written with, in order: what the tokens of this task are."""
    return sorted({c for text in _every_name() for c in text + text.lower()} | set("0123456789-"))


def _every_name() -> Iterator[str]:
    """Each style with each month and each day of the week."""
    for styles in by_language():
        for style in styles:
            for month in range(1, 13):
                for day in range(1, 8):
                    yield spell(date(2021, month, day), style)


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th ... 11th, 12th, 13th ... 21st."""
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"


def _english(form: str) -> Callable[[date], str]:
    def spelled(day: date) -> str:
        return form.format(
            nth=ordinal(day.day),
            d=day.day,
            month=MONTHS[day.month - 1],
            mon=MONTHS[day.month - 1][:3],
            y=day.year,
        )

    return spelled


# Forms the CLDR does not list.
ENGLISH: dict[str, Callable[[date], str]] = {
    form: _english(form)
    for form in (
        "{month} {nth}, {y}",
        "{nth} of {month} {y}",
        "the {nth} of {month}, {y}",
        "{d}-{mon}-{y}",
    )
}
