"""Checks or renders a chart with Helm; run by the interpreter of an environment with helm-python-sdk.

Standard input: a JSON object {action: "lint" or "render", chart: folder, values, name: of the release}.
Standard output: a JSON list of messages, or a JSON object of rendered texts by the paths of their templates,
or a JSON string that says why Helm refuses the order.
"""

import json
import sys
from typing import Any

import helm_python as helm

WARNING = 2


def run(action: str, chart: str, values: dict[str, Any], name: str) -> Any:
    """What Helm reports about a chart, or makes of it."""
    if action == "lint":
        report = helm.lint(chart, values)
        faults = [message["error"] for message in report["messages"] if message["severity"] >= WARNING]
        return faults + report["errors"]
    with helm.Chart.load(chart) as loaded:
        loaded.validate_schema(values)
        return loaded.render(values, name=name, namespace="default")


def main() -> None:
    """Carry out the order of standard input."""
    try:
        answer = run(**json.load(sys.stdin))
    except helm.HelmError as error:
        answer = str(error)
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
