"""Names of remote teachers and the addresses at which they may be."""

from __future__ import annotations

import threading

import pytest

from app.domain.origins import AllowedServers, Origin
from app.remote import addresses
from app.remote.addresses import addresses_of
from app.remote.errors import RemoteFailed, RemoteUnavailable
from tests.refusals import refused_as

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
EMBEDDED = [
    "64:ff9b::169.254.169.254",
    "64:ff9b:1::169.254.169.254",
    "64:ff9b:1:a9fe:a9:fe00::",
    "64:ff9b:1:a9:fe:a9fe::",
    "64:ff9b:1:0:a9:fea9:fe00:0",
    "2002:a9fe:a9fe::1",
    "::169.254.169.254",
    "::ffff:0:169.254.169.254",
    "2001:0:0808:0808::5601:5601",
    "2001:0:a9fe:a9fe::f7f7:f7f7",
    "fd00::5efe:169.254.169.254",
    "2400:cb00::200:5efe:169.254.169.254",
]
METADATA = ["100.100.100.200", "192.0.0.192", "168.63.129.16", "fd00:ec2::254", "fd20:ce::254"]


@pytest.mark.parametrize("address", NEVER + EMBEDDED + METADATA)
def test_a_listed_name_may_not_be_at_an_address_of_the_link(address):
    with refused_as(RemoteFailed, "remote_address"):
        resolved(LISTED, "http://triton:8000", PUBLIC, address)


def test_an_address_of_the_link_is_used_if_it_is_listed_as_a_number():
    assert resolved(LISTED, "http://169.254.1.2", "169.254.1.2") == ["169.254.1.2"]
    assert resolved(LISTED, "http://[fe80::1]", "fe80::1") == ["fe80::1"]


PRIVATE = [
    *("10.0.0.7", "172.16.0.1", "192.168.1.1", "127.0.0.1", "100.64.0.1", "fd00::1", "::1", "198.18.0.1"),
    *("192.0.0.9", "192.0.2.1", "198.51.100.1", "203.0.113.1", "240.0.0.1", "255.255.255.255", "192.88.99.1"),
    *("fec0::1", "3fff::1", "5f00::1", "2001:db8::1", "2001:2::1", "2001:20::1", "100::1", "4000::1"),
    *("2002:0808:0808::1", "64:ff9b:1::8.8.8.8", "::ffff:0:8.8.8.8", "::8.8.8.8", "2001:0:808:808::1"),
    *("::ffff:10.0.0.7", "64:ff9b::10.0.0.7", "2400:cb00::5efe:127.0.0.1"),
]


@pytest.mark.parametrize("address", PRIVATE + NEVER + EMBEDDED + METADATA)
def test_a_host_that_only_an_asterisk_covers_must_be_public(address):
    with refused_as(RemoteFailed, "remote_address") as refused:
        resolved(BELOW, "https://a.example.com", PUBLIC, address)
    # What the operator's resolver answers is not the tenant's to know.
    assert address not in refused.value.message


@pytest.mark.parametrize(
    "address", [PUBLIC, "2606:4700::1", "2a00:1450::1", "64:ff9b::8.8.8.8", "::ffff:8.8.8.8"]
)
def test_a_host_that_an_asterisk_covers_may_be_public(address):
    assert resolved(BELOW, "https://a.example.com", address) == [address]


def test_an_origin_that_is_not_allowed_is_not_even_resolved():
    def resolve(_host: str, _port: int) -> list[str]:
        pytest.fail("it was resolved")

    with refused_as(RemoteFailed, "remote_not_allowed") as refused:
        addresses_of(Origin.of("http://other"), LISTED, resolve)
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


def test_a_resolver_that_never_answers_is_waited_for_some_seconds(monkeypatch):
    answered = threading.Event()
    monkeypatch.setattr("socket.getaddrinfo", lambda *of, **options: answered.wait(60) and [])
    monkeypatch.setattr(addresses, "_RESOLVE_SECONDS", 0.05)
    with pytest.raises(RemoteUnavailable, match="no answer within"):
        addresses_of(Origin.of("http://triton:8000"), LISTED)
    answered.set()
