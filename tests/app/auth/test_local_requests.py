"""A server without API keys answers requests of this machine only."""

from __future__ import annotations

import pytest

from app.auth.local_requests import check_local
from app.domain.errors import NotAuthorised
from tests.refusals import refused_as


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "127.0.0.1:8000"},
        {"host": "127.8.255.1"},
        {"host": "LOCALHOST:1"},
        {"host": "[::1]:8000"},
        {"host": "localhost:8000", "origin": "http://localhost:8000", "sec-fetch-site": "same-origin"},
        {"host": "localhost:8000", "origin": "HTTP://LocalHost:8000"},
        {"host": "localhost", "sec-fetch-site": "none", "user-agent": "x", "accept": "*/*"},
        {
            "host": "localhost",
            **dict.fromkeys(
                (
                    *(
                        "accept-encoding",
                        "authorization",
                        "content-type",
                        "content-length",
                        "cookie",
                        "expect",
                    ),
                    *("if-none-match", "idempotency-key", "inference-header-content-length", "last-event-id"),
                    *(
                        "traceparent",
                        "x-api-key",
                        "x-request-id",
                        "sec-ch-ua-mobile",
                        "connection",
                        "upgrade",
                    ),
                    *("x-prometheus-scrape-timeout-seconds", "x-tensor-shape", "upgrade-insecure-requests"),
                ),
                "1",
            ),
        },
    ],
)
def test_requests_of_this_machine_are_answered(headers: dict[str, str]):
    check_local({name.encode(): value.encode() for name, value in headers.items()})


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": ""},
        {"host": "localhost.evil.example"},
        {"host": "127.0.0.1.evil.example"},
        {"host": "127.0.0.256"},
        {"host": "128.0.0.1"},
        {"host": "localhost:8000:1"},
        {"host": "user@localhost"},
        {"host": "0.0.0.0:8000"},
        {"host": "[::]:8000"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:3000"},
        {"origin": ""},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": ""},
        {"forwarded": "for=198.51.100.7"},
        {"via": "1.1 proxy"},
        {"x-real-ip": "127.0.0.1"},
        {"x-forwarded-for": "127.0.0.1"},
        {"x-forwarded-proto": "https"},
        {"x-forwarded-anything": ""},
        *(
            {name: "198.51.100.7"}
            for name in (
                *("cf-connecting-ip", "cf-ray", "cdn-loop", "true-client-ip", "x-client-ip", "client-ip"),
                *("x-original-forwarded-for", "x-original-url", "x-cluster-client-ip", "fastly-client-ip"),
                *("x-envoy-external-address", "x-amzn-trace-id", "x-azure-clientip", "x-proxyuser-ip"),
                *("x-real-port", "x-host", "x-scheme", "x-varnish", "x-appengine-country", "x-rewrite-url"),
                *(
                    "proxy-authorization",
                    "proxy-connection",
                    "max-forwards",
                    "early-data",
                    "ssl-client-verify",
                ),
                *("x-client-cert", "x-remote-user", "remote-user", "x-arr-log-id", "wl-proxy-client-ip"),
                *(
                    "surrogate-capability",
                    "akamai-origin-hop",
                    "fly-client-ip",
                    "x-vercel-id",
                    "x-nf-client-ip",
                ),
            )
        ),
    ],
)
def test_requests_that_may_come_from_elsewhere_are_refused(headers: dict[str, str]):
    complete = {"host": "localhost:8000", **headers}
    with refused_as(NotAuthorised, "not_local"):
        check_local({name.encode(): value.encode() for name, value in complete.items()})


def test_http_1_0_may_be_of_a_proxy():
    with pytest.raises(NotAuthorised, match=r"HTTP/1\.0"):
        check_local({b"host": b"localhost:8000"}, "1.0")
