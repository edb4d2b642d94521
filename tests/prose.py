"""The sentences of the source code: docstrings and comments, for the rules about them in `test_house`."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass

AVOIDED = {
    r"whoever|whomever|whatever\b(?! is\b)": "name the caller, the process or the value",
    r"nobody|somebody|anybody|everybody": "name the caller, the client or the process",
    r"at hand|in the house|room for|stands on|stand on": "say where it is stored or what it references",
    r"(?:is|are|was|were|be|been) told|tells? (?:of|that|what|how|whether|it)|told (?:of|that|what|how|at)": (
        "use reports, records, returns, says in the message"
    ),
    r"without a word|in silence|goes on without|all the same|once and for all": "say what happens instead",
    r"so much|as it is wanted|what it wants|wishes|is wanted": "say what is required or requested",
    r"lesson|examination|seat\b|witness|deed|doorkeeper|lifeline|parcel\b|crew|manner of": (
        "use the standard term (see the rename map in docs/architecture.md)"
    ),
    r"given up on|have no say|has no say|nothing is lost|comes to an end|by itself alone": "use a plain verb",
}
"""Words that hide who does what, as regular expressions, and what to write instead."""

_AVOIDED = {re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE): advice for pattern, advice in AVOIDED.items()}
_SHORT = 20
"""A line inside a paragraph that is shorter than this breaks its sentence."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """A docstring or a comment. line: number of its first line."""

    line: int
    text: str


def prose(source: str) -> Iterator[Sentence]:
    """Docstrings, strings that document the assignment above them, and comments."""
    yield from docstrings(ast.parse(source))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith(("# noqa", "# type:", "#!")):
            yield Sentence(token.start[0], token.string.lstrip("# "))


def docstrings(block: ast.AST) -> Iterator[Sentence]:
    """Strings that are statements of their own, at any depth; expressions are not entered, which is quick."""
    for node in ast.iter_child_nodes(block):
        if isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):
            yield from docstrings(node)
        elif isinstance(block, ast.Expr) and isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield Sentence(node.lineno, node.value)


def avoided_words(source: str) -> list[str]:
    """Each avoided word, with its line and what to write instead."""
    if not any(pattern.search(source) for pattern in _AVOIDED):
        return []  # a whole file is searched a hundred times faster than it is parsed
    return [
        f"line {sentence.line}: {match[0]!r}: {advice}"
        for sentence in prose(source)
        for pattern, advice in _AVOIDED.items()
        for match in pattern.finditer(sentence.text)
    ]


def broken_lines(source: str) -> list[str]:
    """Docstring lines that end far too early in the middle of a paragraph and of a sentence."""
    return [
        f"line {sentence.line + number}: {lines[number].strip()!r}"
        for sentence in docstrings(ast.parse(source))
        for lines in [sentence.text.splitlines()]
        for number in range(1, len(lines) - 1)
        if breaks_a_sentence(*lines[number - 1 : number + 2])
    ]


def breaks_a_sentence(before: str, line: str, after: str) -> bool:
    """Whether ``line`` is a stub of a few words between two lines of the same paragraph."""
    line, after = line.strip(), after.strip()
    return (
        len(before.strip()) > _SHORT
        and 0 < len(line) < _SHORT
        and re.fullmatch(r"[A-Za-z][\w ,'’-]*", line) is not None
        and after[:1].islower()
        and " " in after
    )
