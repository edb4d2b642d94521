"""Writes what is made from other files for Kubernetes: `make kubernetes`.

    python -m deploy.render

Into the Helm chart: the alarms and the dashboard of `deploy/monitoring`, and into the schema of its values
the names of the settings. Then `deploy/kubernetes/stms.yaml`: what Helm makes of the chart with its default
values, for use with kustomize or kubectl alone.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Final

from app.settings import Settings
from deploy.helm import CHART, ROOT, render

MONITORING: Final = ROOT / "deploy" / "monitoring"
RENDERED: Final = ROOT / "deploy" / "kubernetes" / "stms.yaml"
SCHEMA: Final = CHART / "values.schema.json"
GIVEN_BY_THE_CHART: Final = frozenset(
    {
        "STMS_API_PROCESSES",
        "STMS_BLOBS_SECRET",
        "STMS_CACHE_DIR",
        "STMS_CACHE_DISK_BYTES",
        "STMS_DATABASE_URL",
        "STMS_DATA_DIR",
        "STMS_DRAIN_LISTEN_SECONDS",
        "STMS_DRAIN_SECONDS",
        "STMS_FIRST_KEY_FILE",
        "STMS_GRPC_PORT",
        "STMS_HOST",
        "STMS_MAX_BUNDLE_BYTES",
        "STMS_MAX_HEAD_BYTES",
        "STMS_MAX_INFLIGHT_UPLOAD_BYTES",
        "STMS_MAX_UPLOAD_BYTES",
        "STMS_PORT",
        "STMS_REMOTE_TEACHER_TOKENS",
        "STMS_REQUIRE_KEYS",
        "STMS_SECRETS_DIR",
        "STMS_SOLVER_THREADS",
        "STMS_WORKER_CONCURRENCY",
    }
)
"""Settings that are secrets, that other values of the chart give, or that cannot differ in a container."""
_HEAD: Final = """\
# Made by `make kubernetes` from the Helm chart in deploy/helm/stms with its default values. Do not change it:
# make an overlay of kustomize on this folder, or use the chart. It needs a Secret: see docs/kubernetes.md.
# SHA-256 of the chart's files: {digest}
"""


def copied() -> dict[Path, str]:
    """Texts of the files of the chart that are copies of others, by their paths: Helm reads no others."""
    rules = (MONITORING / "rules.yml").read_text(encoding="utf-8")
    files = CHART / "files"
    return {
        files / "rules.yml": re.sub(r"(?m)^#.*\n", "", rules),
        files / "dashboards" / "stms.json": (MONITORING / "grafana" / "stms.json").read_text(
            encoding="utf-8"
        ),
    }


def schema() -> str:
    """The schema of the values, with the names of the settings that they may give."""
    document = json.loads(SCHEMA.read_text(encoding="utf-8"))
    names = {f"STMS_{name.upper()}" for name in Settings.model_fields}
    document["definitions"]["settings"]["propertyNames"]["enum"] = sorted(names - GIVEN_BY_THE_CHART)
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def chart_digest() -> str:
    """A digest of the names and bytes of all files of the chart."""
    digest = hashlib.sha256()
    for path in sorted(path for path in CHART.rglob("*") if path.is_file()):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(CHART).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def manifest() -> str:
    """What Helm makes of the chart with its default values. Raises as `render`."""
    return _HEAD.format(digest=chart_digest()) + "".join(
        f"---\n{text}\n" for path, text in render({}).items() if path != "NOTES.txt"
    )


def main() -> None:
    """Write all of them."""
    for path, text in copied().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    SCHEMA.write_text(schema(), encoding="utf-8")
    RENDERED.write_text(manifest(), encoding="utf-8")


if __name__ == "__main__":
    main()
