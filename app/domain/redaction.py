"""Removes secrets from texts that are logged, stored or shown."""

from __future__ import annotations

import re
from typing import Final

_KEY: Final = re.compile(r"(stms(?:_|%5[fF])key(?:_|%5[fF])[0-9a-fA-F]{1,24})(?:_|%5[fF])[A-Za-z0-9_%-]+")
_SESSION: Final = re.compile(r"(ses(?:_|%5[fF])[0-9a-fA-F]{1,24})(?:_|%5[fF])[A-Za-z0-9_%-]+")
_TOKEN: Final = re.compile(r"\b(eyJ[A-Za-z0-9_-]{1,2000}\.eyJ)[A-Za-z0-9_-]{1,4000}\.[A-Za-z0-9_-]+")
"""A JSON Web Token: both of its first parts are objects."""
_ADDRESS: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,40}://[^\s:/@]{0,100}):[^\s@]{1,200}@")
_WEBHOOK: Final = re.compile(r"whsec_[A-Za-z0-9+/=_-]+")
_PASSWORD: Final = re.compile(
    r"\b(password|passwd|secret)(['\"]?\s{0,3}[=:]\s{0,3})(?!\*\*\*)"
    r"('[^']{0,200}'|\"[^\"]{0,200}\"|[^\s,;&]+)",
    re.IGNORECASE,
)


def redact(text: str) -> str:
    """The text without secrets of keys, sessions, tokens and webhooks, and without passwords.

    The id of a key or session and the header of a token stay, because they grant no access.
    """
    if "stms" in text:
        text = _KEY.sub(r"\1_***", text)
    if "ses_" in text or "ses%5" in text:
        text = _SESSION.sub(r"\1_***", text)
    if "whsec_" in text:
        text = _WEBHOOK.sub("whsec_***", text)
    if "eyJ" in text:
        text = _TOKEN.sub(r"\1***", text)
    if "://" in text:
        text = _ADDRESS.sub(r"\1:***@", text)
    return _PASSWORD.sub(r"\1\2***", text)
