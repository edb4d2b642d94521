"""Numbers as people write them: with a sign such as % or $, marks between thousands, and any sign for minus.

A pattern says how the numbers of a column are written, by the example of 1234.5: ``$1,234.5`` or
``1.234,5 kg``. It fixes what a single cell does not show, the sign and the mark of decimals. All else may be
written in any usual way: 1 234 and 1'234 for thousands, (5) and 5- and −5 for minus, digits of other scripts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from core.data.validation import MAX_MAGNITUDE

_LONGEST: Final = 48
"""Characters of a cell that may be a number."""
_ZEROS: Final = "٠۰०০੦૦௦౦๐０"
"""The digit 0 of scripts; the others follow it."""
_LIKE: Final = {
    "-": "\u2212\u2012\u2013\u2014\ufe63\uff0d",
    "'": "\u2019\u2018\u02bc\u2032\u00b4`\u066c",
    "%": "\u066a\uff05\ufe6a",
    " ": "\t\u00a0\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u3000",
    "+": "\uff0b",
    ".": "\uff0e",
    ",": "\uff0c",
    "(": "\uff08",
    ")": "\uff09",
    "$": "\uff04",
    "": "\u200b\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff",
}
"""Characters, and others that mean the same."""
_PLAIN: Final = str.maketrans(
    {other: like for like, others in _LIKE.items() for other in others}
    | {chr(ord(zero) + digit): str(digit) for zero in _ZEROS for digit in range(10)}
)
_SYMBOLS: Final = "$¢£¤¥֏؋৲৳৻૱௹฿៛\u20a0-\u20cf\ua838\ufdfc\ufe69\uffe0\uffe1\uffe5\uffe6"
"""Signs of currencies, as a part of a pattern."""
_CURRENCIES: Final = re.compile(
    "usd|eur|gbp|jpy|chf|cny|rmb|inr|rub|brl|krw|sek|nok|dkk|pln|czk|huf|ron|bgn|try|tl|uah|ils|zar|mxn|cad|aud"
    "|nzd|sgd|hkd|twd|thb|idr|myr|php|vnd|aed|sar|egp|ngn|kes|ars|clp|cop|pen|rs|kr|fr|sfr|zł|kč|ft|lei|лв|руб|р"
    "|rm|rp|bs|ca"
)
"""Words that may stand before or after numbers, in lower case; with other words a cell is a code."""
_CELL: Final = re.compile(
    rf"(?P<first>[+-]?) ?(?P<before>(?:(?:[^\W\d_]{{1,4}}\.?|[^\W\d_]{{0,3}}[%{_SYMBOLS}]) ?)?)"
    r"(?P<second>[+-]?) ?"
    r"(?P<digits>[.,٫]?[0-9](?:[0-9.,' ٫]*[0-9])?)(?P<power>[eE][+-]?[0-9]{1,3}(?![^\W\d_]))?"
    r"(?:[.,]-{1,2}(?![^ ]))?(?P<last>-?)(?P<after> ?(?:[^\d\s,;:()\[\]{}_#@-][^\d,;:()\[\]{}_#@-]{0,15})?)"
)
_MAY_FOLLOW: Final = re.compile(rf"[^\W\d_]|[%‰°\"'+{_SYMBOLS}]")
_LEADING_ZERO: Final = re.compile("0[0-9]")
_POINT: Final = re.compile(
    r"(?P<whole>[0-9]+|[1-9][0-9]{0,2}(?P<mark>[, '])[0-9]{3}(?:(?P=mark)[0-9]{3})*"
    r"|[1-9][0-9]?(?:,[0-9]{2})+,[0-9]{3})?"
    r"(?:[.٫](?P<decimals>[0-9]*))?"
)
_COMMA: Final = re.compile(
    r"(?P<whole>[0-9]+|[1-9][0-9]{0,2}(?P<mark>[. '])[0-9]{3}(?:(?P=mark)[0-9]{3})*)?"
    r"(?:[,٫](?P<decimals>[0-9]*))?"
)
_MARKS: Final = str.maketrans("", "", ",.' ")
_EXAMPLES: Final = {".": "1,234.5", ",": "1.234,5"}


class NumberText(NamedTuple):
    """A cell of digits, with or without a sign.

    before, after: the sign, with the blank between it and the digits; one is empty. digits: with their marks.
    power: an exponent, or "". is_negative: whether it has a minus.
    """

    before: str
    digits: str
    power: str
    after: str
    is_negative: bool

    @property
    def sign(self) -> str:
        """The sign, the same however it is written: KG, kg. and kgs are one."""
        sign = (self.before or self.after).strip().lower().rstrip(".")
        return sign[:-1] if len(sign) > 3 and sign.endswith("s") else sign

    def value(self, decimal: str) -> float | None:
        """The number, if ``decimal`` (point or comma) is the decimal mark; None if it is then no number."""
        parts = (_POINT if decimal == "." else _COMMA).fullmatch(self.digits)
        if parts is None:
            return None
        whole = (parts["whole"] or "").translate(_MARKS)
        if _LEADING_ZERO.match(whole):
            return None
        number = float(f"{whole or '0'}.{parts['decimals'] or '0'}{self.power}")
        if number > MAX_MAGNITUDE:
            return None
        return -number if self.is_negative else number


def split_number(text: str) -> NumberText | None:
    """The parts of a cell that has digits, a sign and nothing else; None for other cells."""
    if len(text) > _LONGEST:
        return None
    text = text.translate(_PLAIN).strip()
    in_brackets = text.startswith("(") and text.endswith(")")
    parts = _CELL.fullmatch(text[1:-1].strip() if in_brackets else text)
    if parts is None:
        return None
    before, after = parts["before"], parts["after"].rstrip()
    minus = parts["first"] + parts["second"] + parts["last"] + "-" * in_brackets
    if len(minus) > 1 or (before and after) or not _may_precede(before.rstrip()) or not _may_follow(after):
        return None
    return NumberText(before, parts["digits"], parts["power"] or "", after, minus == "-")


def _may_precede(sign: str) -> bool:
    word = sign.lower().rstrip(".")
    return not word.isalpha() or _CURRENCIES.fullmatch(word) is not None


def _may_follow(sign: str) -> bool:
    return not sign or _MAY_FOLLOW.search(sign) is not None


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """How the numbers of a column are written. before, after: their sign; one of the two is empty. decimal:
    the decimal mark, a point or a comma.
    """

    before: str = ""
    after: str = ""
    decimal: str = "."

    @staticmethod
    @lru_cache(256)
    def parse(pattern: str) -> NumberFormat:
        """The format of a number such as $1,234.5. Raises ValueError."""
        parts = split_number(pattern)
        if parts is None or parts.power or parts.is_negative:
            raise ValueError(f"{pattern!r:.60} is not a number such as $1,234.5 or 1.234,5 kg")
        fitting = [decimal for decimal in _EXAMPLES if parts.value(decimal) is not None]
        if not fitting:
            raise ValueError(f"the marks of {pattern!r:.60} fit no number")
        marks = [mark for mark in parts.digits if mark in _EXAMPLES]
        if len(fitting) == 2 and marks:
            # A single mark before three digits stands between thousands.
            fitting = ["," if marks[0] == "." else "."]
        return NumberFormat(parts.before, parts.after, fitting[0])

    def __str__(self) -> str:
        return f"{self.before}{_EXAMPLES[self.decimal]}{self.after}"

    @property
    def sign(self) -> str:
        """The sign, the same however it is written."""
        return NumberText(self.before, "", "", self.after, False).sign

    def number_of(self, text: str) -> float | None:
        """The number that a cell holds, with the sign or without; None if it holds none."""
        usual = _usual(self).fullmatch(text)
        if usual is not None:
            return float(usual[1] + usual[2].replace(",", "."))
        parts = split_number(text)
        if parts is None or parts.sign not in ("", self.sign):
            return None
        return parts.value(self.decimal)


@lru_cache(256)
def _usual(form: NumberFormat) -> re.Pattern[str]:
    """A pattern that most numbers of a format match: the sign exactly as written, and no thousands marks."""
    before, mark, after = map(re.escape, (form.before, form.decimal, form.after))
    return re.compile(rf"(-?){before}((?:0|[1-9][0-9]{{0,14}})(?:{mark}[0-9]{{1,9}})?){after}")
