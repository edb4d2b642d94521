"""Names of remote teachers and the addresses at which they may be."""

from __future__ import annotations

import pytest

from app.domain.origins import AllowedServers, Origin
from app.remote.addresses import addresses_of
from app.remote.errors import RemoteFailed, RemoteUnavailable

LISTED = AllowedServers.of("http://triton:8000,http://169.254.1.2,http://[fe80::1]")
BELOW = AllowedServers.of("https://*.example.com")
PUBLIC = "93.184.216.34"


def resolved(allowed: AllowedServers, url: str, *found: str) -> list[str]:
    return addresses_of(Origin.of(url), allowed, lambda _host, _port: found)


@pytest.mark.parametrize(
    "address", [PUBLIC, "10.0.0.7", "192.168.1.1", "127.0.0.1", "fd00::1", "2606:4700::1"]
)
def test_a_listed_name_may_be_at_a_private_address(address):
    assert resolved(LISTED, "http://triton:8000", address) == [address]


NEVER = ["169.254.169.254", "fe80::1", "0.0.0.0", "::", "224.0.0.1", "ff02::1", "::ffff:169.254.169.254"]
EMBEDDED = ["64:ff9b::169.254.169.254", "2002:a9fe:a9fe::1", "::169.254.169.254"]


@pytest.mark.parametrize("address", NEVER + EMBEDDED)
def test_a_listed_name_may_not_be_at_an_address_of_the_link(address):
    with pytest.raises(RemoteFailed) as refused:
        resolved(LISTED, "http://triton:8000", PUBLIC, address)
    assert refused.value.reason == "remote_address"


def test_an_address_of_the_link_is_used_if_it_is_listed_as_a_number():
    assert resolved(LISTED, "http://169.254.1.2", "169.254.1.2") == ["169.254.1.2"]
    assert resolved(LISTED, "http://[fe80::1]", "fe80::1") == ["fe80::1"]


PRIVATE = ["10.0.0.7", "172.16.0.1", "192.168.1.1", "127.0.0.1", "100.64.0.1", "fd00::1", "::1", "198.18.0.1"]


@pytest.mark.parametrize("address", [*PRIVATE, *NEVER, *EMBEDDED, "::ffff:10.0.0.7", "64:ff9b::10.0.0.7"])
def test_a_host_that_only_an_asterisk_covers_must_be_public(address):
    with pytest.raises(RemoteFailed) as refused:
        resolved(BELOW, "https://a.example.com", PUBLIC, address)
    assert refused.value.reason == "remote_address"
    assert resolved(BELOW, "https://a.example.com", PUBLIC) == [PUBLIC]


def test_an_origin_that_is_not_allowed_is_not_even_resolved():
    def resolve(_host: str, _port: int) -> list[str]:
        pytest.fail("it was resolved")

    with pytest.raises(RemoteFailed) as refused:
        addresses_of(Origin.of("http://other"), LISTED, resolve)
    assert refused.value.reason == "remote_not_allowed"
    assert "STMS_REMOTE_TEACHERS" in refused.value.message


def test_a_name_without_an_address_is_unavailable():
    def fail(_host: str, _port: int) -> list[str]:
        raise OSError("unknown")

    for resolve in (fail, lambda _host, _port: []):
        with pytest.raises(RemoteUnavailable):
            addresses_of(Origin.of("http://triton:8000"), LISTED, resolve)
    assert addresses_of(Origin.of("http://127.0.0.1:8"), AllowedServers.of("http://127.0.0.1:8")) == [
        "127.0.0.1"
    ]
