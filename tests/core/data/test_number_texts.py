"""Numbers as people write them, beside those that Babel writes for ten countries."""

from __future__ import annotations

import pytest
from babel.numbers import format_currency, format_decimal, format_percent
from hypothesis import given
from hypothesis import strategies as st

from core.data.number_texts import NumberFormat, split_number

LOCALES = ("en_US", "en_IN", "de_DE", "de_CH", "fr_FR", "sv_SE", "pl_PL", "pt_BR", "ar_EG", "hi_IN")
"""With points and commas for decimals, five marks between thousands, groups of two digits, other digits."""
DECIMALS = dict.fromkeys(("de_DE", "fr_FR", "sv_SE", "pl_PL", "pt_BR"), ",")
CURRENCIES = {"en_US": "USD", "en_IN": "INR", "de_CH": "CHF", "sv_SE": "SEK", "pl_PL": "PLN", "pt_BR": "BRL"}


@pytest.mark.parametrize(
    ("text", "pattern", "number"),
    [
        ("42.5%", "5%", 42.5),
        ("42.5 %", "5%", 42.5),
        ("%42,5", "1,5%", 42.5),
        ("$12.50", "$5", 12.5),
        ("-$1,200.50", "$5", -1200.5),
        ("$-5", "$5", -5),
        ("($12)", "$5", -12),
        ("US$5", "US$5", 5),
        ("12,50 €", "1.234,5 €", 12.5),
        ("€ 12,50", "1.234,5 €", 12.5),
        ("1.234,5 kg", "1.234,5 kg", 1234.5),
        ("12 KG.", "5 kg", 12),
        ("0", "5 kg", 0),
        ("1 234,5", "1.234,5", 1234.5),
        ("1\u202f234,5", "1.234,5", 1234.5),
        ("1'234.5", "1,234.5", 1234.5),
        ("1’234.50", "1,234.5", 1234.5),
        ("1,23,456", "1,234.5", 123456),
        ("1.200", "1.234,5", 1200),
        ("1,200", "1,234.5", 1200),
        ("5-", "1,234.5", -5),
        ("−5", "1,234.5", -5),
        ("٤٢٫٥٪", "5%", 42.5),
        ("१२", "1,234.5", 12),
        ("CHF 1’200.–", "CHF 5", 1200),
        ("12,- €", "1.234,5 €", 12),
        ("5 years", "5 years", 5),
        ("1 year", "5 years", 1),
        ("1,000+", "5+", 1000),
        (".5", "1,234.5", 0.5),
        ("$.50", "$5", 0.5),
        ("1,5e3", "1.234,5", 1500),
    ],
)
def test_a_number_is_read_as_its_column_is_written(text: str, pattern: str, number: float):
    assert NumberFormat.parse(pattern).number_of(text) == number


@pytest.mark.parametrize(
    "text",
    [
        *("", "kg", "A5", "#5", "Class 1", "T-12", "007", "$007", "1/2", "12:30", "2024-05-06", "5@", "½"),
        *("1,2,3", "12,34.5", "1.2.3", "192.168.1.1", "+-5", "(-5)", "1e400", "5 (x)", "5 kg 3", "9" * 120),
    ],
)
def test_other_cells_are_no_numbers(text: str):
    for pattern in ("1,234.5", "1.234,5", "5 kg"):
        assert NumberFormat.parse(pattern).number_of(text) is None


def test_a_pattern_fixes_the_sign_and_the_mark_of_decimals():
    comma, point = NumberFormat.parse("1.234,5 €"), NumberFormat.parse("$1,234.5")
    assert comma.number_of("12.5 €") is point.number_of("12,5") is None
    assert comma.number_of("12 $") is point.number_of("12 €") is None
    for written in ("$1,234.5", "1.234,5 €", "1,234.5%", "CHF 1,234.5", "1,234.5", "1.234,5"):
        assert str(NumberFormat.parse(written)) == written
    assert str(NumberFormat.parse("5 kg")) == "1,234.5 kg"
    assert str(NumberFormat.parse("1.234")) == "1.234,5"
    for wrong in ("", "kg", "-5", "1.2.3", "1e5", "A5"):
        with pytest.raises(ValueError, match="number"):
            NumberFormat.parse(wrong)


@given(st.sampled_from(LOCALES), st.integers(-(10**9), 10**9), st.integers(0, 2))
def test_numbers_of_ten_countries_are_read(locale: str, digits: int, places: int):
    number = digits / 10**places
    pattern = "1.234,5" if locale in DECIMALS else "1,234.5"
    form = "#,##,##0.##" if locale.endswith("IN") else "#,##0.##"
    text = format_decimal(number, form, locale)
    assert NumberFormat.parse(pattern).number_of(text) == number
    percent = format_percent(number / 100, form + "%", locale=locale)
    assert NumberFormat.parse(f"{pattern}%").number_of(percent) == pytest.approx(number, abs=0.006)
    currency = CURRENCIES.get(locale, "EUR")
    price = format_currency(number, currency, locale=locale)
    parts = split_number(price)
    assert parts is not None
    value = parts.value("," if locale in DECIMALS else ".")
    assert value == pytest.approx(number, abs=0.006)
