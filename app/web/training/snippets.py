"""The job of a form for programs: by curl, by the command line and by the Python client."""

from __future__ import annotations

import json
import pprint
import shlex

from app.domain.entities import Json
from app.domain.parameter_table import flat


def snippets(base: str, dataset_id: str, model: str, values: Json, priority: str) -> dict[str, str]:
    """The submission of the job in three ways. base: address of the server. values: hyper-parameters."""
    body: Json = {"dataset_id": dataset_id, "model": model, "hyperparameters": values}
    if priority != "normal":
        body["priority"] = priority
    urgent = f", priority={priority!r}" if priority != "normal" else ""
    sent = shlex.quote(json.dumps(body, ensure_ascii=False, indent=1))
    options = [f"--model {shlex.quote(model)}"]
    options += [f"--set {shlex.quote(f'{name}={_written(value)}')}" for name, value in flat(values)]
    if priority != "normal":
        options.append(f"--priority {priority}")
    return {
        "curl": "\n".join(
            (
                f"curl {shlex.quote(f'{base}/v1/training-jobs')} \\",
                '  -H "Authorization: Bearer $STMS_API_KEY" -H "Content-Type: application/json" \\',
                f"  -d {sent}",
            )
        ),
        "Command line": " \\\n  ".join([f"stms train {dataset_id} --server {base}", *options]),
        "Python": "\n".join(
            (
                "import os",
                "from stms_client import Client",
                "",
                f"with Client({base!r}, api_key=os.environ['STMS_API_KEY']) as stms:",
                f"    job = stms.submit_job({dataset_id!r}, {model!r}, {_indented(values)}{urgent})",
                "    job.wait()",
            )
        ),
    }


def _written(value: object) -> str:
    """A value as ``--set`` takes it: a text that could be read as JSON keeps its quotes."""
    text = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, str):
        return text
    try:
        json.loads(value)
    except ValueError:
        return value
    return text


def _indented(values: Json) -> str:
    return pprint.pformat(values, width=80, sort_dicts=False).replace("\n", "\n        ")
