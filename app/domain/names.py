"""The grammar of names: models, aliases, references, classes, and display names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Final, TypeAlias

from pydantic import StringConstraints

from app.domain.errors import InputFault, InvalidRequest

MODEL_PART: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
VERSION_PART: Final = r"[A-Za-z0-9._-]{1,100}"
"""What may follow ``model@``: an alias, or the number of a version."""

MODEL_NAME: Final = rf"^{MODEL_PART}$"
ALIAS: Final = r"^[A-Za-z][A-Za-z0-9._-]{0,99}$"
"""An alias begins with a letter, so that ``model@3`` can only be version 3."""
REFERENCE: Final = rf"^{MODEL_PART}(@{VERSION_PART})?$"
"""A model: ``name``, ``name@alias`` or ``name@3``."""

DATASET_REF: Final = r"^[A-Za-z0-9_-]{1,64}(@latest)?$"
"""A data set by its id, or as ``id@latest`` the newest revision of the series in which it is."""
LATEST_SUFFIX: Final = "@latest"

NAME_RULES: Final[Mapping[str, str]] = {
    MODEL_NAME: "The name of a model or tenant begins with a letter or digit, and has at most 100 letters,"
    " digits, dots, dashes and underscores.",
    ALIAS: "An alias begins with a letter, then letters, digits, '.', '_' or '-', at most 100 in all.",
}
"""What names are, in words, by their patterns."""

ModelName: TypeAlias = Annotated[str, StringConstraints(pattern=MODEL_NAME)]
AliasName: TypeAlias = Annotated[str, StringConstraints(pattern=ALIAS)]
TenantName: TypeAlias = Annotated[str, StringConstraints(pattern=MODEL_NAME)]
Reference: TypeAlias = Annotated[str, StringConstraints(pattern=REFERENCE)]
DatasetRef: TypeAlias = Annotated[str, StringConstraints(pattern=DATASET_REF)]

DEFAULT_TENANT: Final = "default"
"""The tenant of everything that was not given another one. A tenant's name has the form of a model's name."""

MAX_CLASS_NAME: Final = 400
"""Largest number of characters in the name of a class."""
ALL_OTHERS: Final = "*"
"""Stands for all classes of a version for which nothing else is given."""

_UNSEEN: Final = (
    r"\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f"
)
DISPLAY_NAME: Final = rf"^[^{_UNSEEN}]*[^\s{_UNSEEN}][^{_UNSEEN}]*$"
"""Pattern of a display name: no control, direction or invisible characters, and not only blanks."""

MAX_DISPLAY_NAME: Final = 200
"""Characters in the name of a data set."""

_DISPLAY_NAME: Final = re.compile(DISPLAY_NAME)
_MODEL_NAME: Final = re.compile(MODEL_NAME)
_ALIAS: Final = re.compile(ALIAS)
_REFERENCE: Final = re.compile(REFERENCE)
_VERSION: Final = re.compile(VERSION_PART)
_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")
USABLE: Final = r"^[^\x00]*$"
"""Pattern of text without U+0000; JSON schemas cannot exclude lone surrogates."""
_UNUSABLE: Final = re.compile(r"[\0\ud800-\udfff]")


def find_unusable(text: str) -> str | None:
    """The name of the first character in ``text`` that cannot be stored: U+0000, or a lone surrogate.

    PostgreSQL stores no U+0000, and UTF-8 has no lone surrogates.
    """
    found = _UNUSABLE.search(text)
    return None if found is None else f"the character U+{ord(found[0]):04X}"


def without_unusable(text: str) -> str:
    """``text`` with U+FFFD in place of each character that cannot be stored."""
    return _UNUSABLE.sub("\ufffd", text)


def is_usable(text: str) -> bool:
    """Whether ``text`` can be stored and sent; see `find_unusable`."""
    return _UNUSABLE.search(text) is None


def is_display_name(text: str, max_length: int) -> bool:
    """Whether ``text`` matches `DISPLAY_NAME` and has at most ``max_length`` characters."""
    # Lone surrogates cannot be encoded as UTF-8, and JSON Schema patterns cannot exclude them.
    is_valid = len(text) <= max_length and _DISPLAY_NAME.fullmatch(text) is not None
    return is_valid and not _SURROGATE.search(text)


def is_model_name(text: str) -> bool:
    """Whether ``text`` can be the name of a model."""
    return _MODEL_NAME.fullmatch(text) is not None


def check_model_name(model: str) -> None:
    """Raise InvalidRequest unless ``model`` can be the name of a model."""
    if not is_model_name(model):
        message = NAME_RULES[MODEL_NAME]
        fault = InputFault(field="model", code="invalid_name", message=message)
        raise InvalidRequest(message, code="invalid_name", faults=[fault])


def check_alias(alias: str) -> None:
    """Raise InvalidRequest unless ``alias`` can be the name of an alias."""
    if not _ALIAS.fullmatch(alias):
        text = NAME_RULES[ALIAS]
        raise InvalidRequest(text, faults=[InputFault("alias", "bad_name", text)])


def is_reference(text: str) -> bool:
    """Whether ``text`` can refer to a model."""
    return _REFERENCE.fullmatch(text) is not None


def qualified(tenant: str, reference: str) -> str:
    """A reference with its tenant; no tenant's name contains the slash between them."""
    return f"{tenant}/{reference}"


def split_qualified(reference: str) -> tuple[str, str]:
    """The tenant and the reference in it; a reference without a tenant belongs to the default one."""
    tenant, slash, name = reference.partition("/")
    return (tenant, name) if slash else (DEFAULT_TENANT, reference)


def is_version(text: str) -> bool:
    """Whether ``text`` can be an alias or the number of a version."""
    return _VERSION.fullmatch(text) is not None


def is_class_label(label: str) -> bool:
    """Whether ``label`` can be the name of a class."""
    return 0 < len(label) <= MAX_CLASS_NAME and is_usable(label)
