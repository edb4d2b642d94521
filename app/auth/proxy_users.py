"""People whom a proxy has signed in, such as oauth2-proxy, and whom it names in a header, for the dashboard.

The header counts only on connections from `STMS_TRUSTED_PROXIES`. Every one of these proxies must remove the
header from what its clients send; one that adds a second one instead gives no access.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from app.domain.caller_rules import caller_id, first_rule, is_subject
from app.domain.entities import ApiKey
from app.domain.errors import NotAuthorised
from app.http.client_address import TrustedProxies
from app.http.types import Scope
from app.settings import Settings

_MAX_NAME: Final = 100
_MAX_GROUPS: Final = 8192
"""Characters of the header with the groups."""


class ProxyUsers:
    """Finds who the person is that a trusted proxy names, and what the rules of the settings permit."""

    def __init__(self, settings: Settings, proxies: TrustedProxies) -> None:
        self._user = settings.proxy_user_header.lower().encode("ascii")
        self._groups = settings.proxy_groups_header.lower().encode("ascii")
        self._rules = settings.proxy_rules
        self._proxies = proxies

    def caller_of(self, scope: Scope) -> ApiKey | None:
        """The person of a request; None if no trusted proxy names one.

        Raises NotAuthorised if no rule is for the person, or a header is there twice or has several names.
        """
        client = scope.get("client")
        if not self._user or client is None or str(client[0]) not in self._proxies:
            return None
        name = self._value(scope, self._user)
        if not name:
            return None
        if "," in name or not is_subject(name):
            raise NotAuthorised("The proxy does not name one person.", code="proxy_user_unclear")
        rule = first_rule(self._rules, {"user": name, "groups": self._groups_of(scope)})
        if rule is None:
            raise NotAuthorised(f"No rule of this server is for {name!r}.", code="proxy_user_without_rule")
        return ApiKey(
            id=caller_id("proxy", name),
            name=name[:_MAX_NAME],
            digest="",
            scopes=rule.scopes,
            models=rule.models,
            created_at=0.0,
            tenant=rule.tenant,
        )

    def _groups_of(self, scope: Scope) -> Sequence[str]:
        value = self._value(scope, self._groups) if self._groups else ""
        if len(value) > _MAX_GROUPS:
            raise NotAuthorised("The proxy names too many groups.", code="proxy_user_unclear")
        return [group.strip() for group in value.split(",")]

    @staticmethod
    def _value(scope: Scope, header: bytes) -> str:
        """The value of a header, empty without it. Raises NotAuthorised if it is there twice."""
        values = [value for name, value in scope["headers"] if name == header]
        if len(values) > 1:
            message = f"The header {header.decode()} arrived twice: the proxy must remove it from requests."
            raise NotAuthorised(message, code="proxy_user_unclear")
        return values[0].decode("utf-8", "replace") if values else ""
