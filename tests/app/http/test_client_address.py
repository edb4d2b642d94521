"""Client addresses behind proxies, and the networks that count as one client."""

from __future__ import annotations

import pytest

from app.http.client_address import TrustedProxies, network_of


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("fe80::1%eth0", "fe80::"),
        ("testclient", "testclient"),
        ("", ""),
    ],
)
def test_the_network_that_counts_as_one_client(address, network):
    assert network_of(address) == network


CLIENT = ("10.0.0.9", 5)


@pytest.mark.parametrize(
    ("forwarded", "address"),
    [
        ([], "10.0.0.9"),
        (["192.0.2.1"], "192.0.2.1"),
        (["6.6.6.6, 192.0.2.1"], "192.0.2.1"),
        (["6.6.6.6", "192.0.2.1, 10.1.1.1"], "192.0.2.1"),
        (["192.0.2.1:4711"], "192.0.2.1"),
        (["[2001:db8::1]:4711"], "2001:db8::1"),
        (["2001:db8::1"], "2001:db8::1"),
        (["10.3.3.3, 10.2.2.2"], "10.3.3.3"),
        (["192.0.2.1, nonsense"], "10.0.0.9"),
        (["nonsense, 10.2.2.2"], "10.2.2.2"),
        (["' OR 1=1 --"], "10.0.0.9"),
        (["\xff"], "10.0.0.9"),
    ],
)
def test_forwarded_addresses_count_up_to_the_first_untrusted_one(forwarded, address):
    headers = [(b"x-forwarded-for", value.encode("latin-1")) for value in forwarded]
    proxies = TrustedProxies(["10.0.0.0/8", "::1"])
    assert proxies.address_of(CLIENT, headers) == address


def test_forwarded_addresses_of_untrusted_clients_are_ignored():
    headers = [(b"x-forwarded-for", b"192.0.2.1")]
    assert TrustedProxies().address_of(CLIENT, headers) == "10.0.0.9"
    assert TrustedProxies(["10.9.0.0/16"]).address_of(CLIENT, headers) == "10.0.0.9"
    assert TrustedProxies(["10.0.0.0/8"]).address_of(None, headers) == ""
    assert TrustedProxies(["10.0.0.0/8"]).address_of(("a name", 1), headers) == "a name"
    assert TrustedProxies(["10.0.0.0/8"]).address_of(("::ffff:10.0.0.9", 1), headers) == "192.0.2.1"
    with pytest.raises(ValueError, match=r"10\.0\.0\.0/99"):
        TrustedProxies(["10.0.0.0/99"])
