"""Targets of the serving benchmark, and the list of those that were missed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

AT_LEAST: Final = {
    "throughput_vs_bare": 1.4,
    "throughput_vs_raw": 0.5,
    "throughput_vs_fastapi": 4.0,
    "throughput_vs_mlserver": 20.0,
    "bulk_vs_bare": 2.5,
}
AT_MOST: Final = {
    "p50_vs_bare": 0.8,
    "p99_half_load_vs_bare": 1.5,
    "million_p50_vs_ten": 1.1,
    "million_import_vs_copy": 10.0,
    "million_ready_vs_ten": 1.2,
    "two_processes_cpu_per_request": 1.1,
    "swap_failures": 0.0,
    "v2_vs_native": 1.6,
    "v2_binary_vs_native": 1.6,
    "predict_vs_query": 4.0,
    "two_pieces_vs_bare": 0.95,
    "tabs_p99": 1.1,
    "crowd_p99": 1.5,
}
KEYS: Final = (
    "throughput_vs_bare",
    "throughput_vs_raw",
    "throughput_vs_fastapi",
    "throughput_vs_mlserver",
    "p50_vs_bare",
    "p99_half_load_vs_bare",
    "million_p50_vs_ten",
    "million_import_vs_copy",
    "million_ready_vs_ten",
    "bulk_vs_bare",
    "two_processes_cpu_per_request",
    "swap_failures",
    "v2_vs_native",
    "v2_binary_vs_native",
    "record_vs_native",
    "predict_vs_query",
    "two_pieces_vs_bare",
    "tabs_p99",
    "crowd_p99",
    "memory_mb",
)
"""Keys of the result, in this order; the value is None for what was not measured."""


def result_of(measured: Mapping[str, Any]) -> dict[str, Any]:
    """All `KEYS`, followed by all further measurements."""
    return {key: measured.get(key) for key in KEYS} | dict(measured)


def missed(result: Mapping[str, Any]) -> Iterator[str]:
    """A line for each target that was measured and not met."""
    for key in KEYS:
        value = result[key]
        if value is None:
            continue
        if key in AT_LEAST and value < AT_LEAST[key]:
            yield f"{key} is {value:g}; at least {AT_LEAST[key]:g} is wanted"
        elif key in AT_MOST and value > AT_MOST[key]:
            yield f"{key} is {value:g}; at most {AT_MOST[key]:g} is wanted"
