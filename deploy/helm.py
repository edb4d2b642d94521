"""The chart of the service, checked and rendered by Helm in an environment of its own."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.system.environments import environment

ROOT: Final = Path(__file__).parents[1]
CHART: Final = ROOT / "deploy" / "helm" / "stms"
REQUIREMENTS: Final = ROOT / "requirements" / "kubernetes.txt"
_DRIVER: Final = Path(__file__).with_name("helm_driver.py")
_SECONDS: Final = 120


class Refused(Exception):
    """Helm refuses the values, or cannot render the chart; the message is Helm's."""


def lint(values: Mapping[str, Any]) -> list[str]:
    """What Helm has against the chart with these values. Raises as `environment`, and Refused."""
    messages: list[str] = _run("lint", values, "stms")
    return messages


def render(values: Mapping[str, Any], name: str = "stms") -> dict[str, str]:
    """The texts that a release of this name is made of, by the paths of their templates below the chart.

    Templates that make nothing of these values are left out. Raises as `environment`, and Refused.
    """
    texts: dict[str, str] = _run("render", values, name)
    found = {path.partition("/templates/")[2]: text.strip() for path, text in texts.items()}
    return {path: text for path, text in sorted(found.items()) if text}


def _run(action: str, values: Mapping[str, Any], name: str) -> Any:
    python = environment(REQUIREMENTS) / "bin" / "python"
    order = {"action": action, "chart": str(CHART), "values": dict(values), "name": name}
    done = subprocess.run(
        [python, "-I", _DRIVER],
        input=json.dumps(order),
        capture_output=True,
        text=True,
        check=True,
        timeout=_SECONDS,
    )
    answer = json.loads(done.stdout)
    if isinstance(answer, str):
        raise Refused(answer)
    return answer
