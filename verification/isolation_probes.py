"""The requests of `verification.isolation`: for every route, ways to ask for another tenant's objects.

Placeholders such as ``{dataset}`` stand for the identifiers of `Names`. A route that has no entry here fails
the measurement, so a new endpoint cannot be forgotten.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import numpy as np


@dataclasses.dataclass(frozen=True, slots=True)
class Names:
    """Identifiers of one tenant's objects. own: of a data set of the asking tenant."""

    tenant: str
    dataset: str
    job: str
    running: str
    model: str
    label: str
    key: str
    audit: str
    idempotency: str
    encoder: str
    webhook: str
    delivery: str
    revocation: str
    evaluation: str
    own: str

    @property
    def secrets(self) -> list[str]:
        """Those that must not be in an answer unless they were in the request."""
        names = dataclasses.asdict(self)
        return [value for name, value in names.items() if name != "own"]


@dataclasses.dataclass(frozen=True, slots=True)
class Probe:
    """A request with placeholders. body: bytes or JSON.

    same_work: whether it must cost the same database statements. Uploads share blobs between tenants, so the
    known rest of a difference is that an upload of stored bytes writes fewer chunks.
    """

    target: str
    body: bytes | dict[str, Any] | None = None
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    same_work: bool = True

    def filled(self, names: Names) -> tuple[str, bytes | None, dict[str, str]]:
        """Target, body and headers for the objects of ``names``."""
        values = dataclasses.asdict(names)
        body, headers = self.body, dict(self.headers)
        if isinstance(body, dict):
            headers["content-type"] = "application/json"
            text = json.dumps(body)
            for name, value in values.items():
                text = text.replace(f"<{name}>", value)
            body = text.encode()
        filled = {name: value.format(**values) for name, value in headers.items()}
        return self.target.format(**values), body, filled


Routes: TypeAlias = dict[str, list[Probe]]

WEBHOOK_URL: Final = "https://hooks.example.com/stms"
"""The address of all webhooks."""
CSV: Final = b"a,b,label\n" + b"".join(b"%d,%d,%s\n" % (i, i * i % 7, b"ny"[i % 2 :][:1]) for i in range(40))
"""The bytes of the tenant's data set; another tenant uploads the same."""

_JOBS: Final = "/v1/training-jobs"
_JOB: Final = f"{_JOBS}/{{job}}"
_ROW: Final[dict[str, Any]] = {"x": [1.0, 2.0]}
_ROWS: Final[dict[str, Any]] = {
    "inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP64", "data": [1.0, 2.0]}],
    "parameters": {"class": "<label>"},
}
_SVG: Final = {"accept": "text/event-stream"}
_REVOCATION: Final = {"issuer": "https://issuer-of-acme.example.com", "sub": "camera"}
_OPEN: Final = ("/livez", "/metrics", "/version", "/v2", "/v2/health/live", "/v2/health/ready")
"""They need no key; what they read from the database is at most a second old."""
_ANY: Final = {"if-match": "*"}
_FIRST: Final = {"if-match": '"1"'}


def _lists(path: str, name: str) -> list[Probe]:
    """A list, also from another object's id on, one item at a time, and of another tenant."""
    return [
        Probe(path),
        Probe(f"{path}?limit=1"),
        Probe(f"{path}?limit=1&after={{{name}}}"),
        Probe(f"{path}?tenant={{tenant}}"),
    ]


def _one(path: str, **options: Any) -> list[Probe]:
    """One object, also with the name of its tenant."""
    separator = "&" if "?" in path else "?"
    return [Probe(path, **options), Probe(f"{path}{separator}tenant={{tenant}}", **options)]


def _inference(path: str) -> Routes:
    return {
        f"GET {path}": [Probe(path.format(model="{model}", version="1"))],
        f"POST {path}/infer": [Probe(f"{path.format(model='{model}', version='1')}/infer", _ROWS)],
        f"GET {path}/ready": [Probe(f"{path.format(model='{model}', version='1')}/ready")],
        f"GET {path}/config": [Probe(f"{path.format(model='{model}', version='1')}/config")],
        f"GET {path}/stats": [Probe(f"{path.format(model='{model}', version='1')}/stats")],
    }


def head_bytes() -> bytes:
    """A linear head of two classes, as an upload."""
    from safetensors.numpy import save

    labels = {"labels": json.dumps(["acme-left", "acme-right"])}
    return save({"weights": np.eye(2, dtype=np.float32)}, labels)


def bundle_bytes() -> bytes:
    """A bundle of a head of two classes, as an upload."""
    from app.domain import bundle
    from core.packed import PackedLabels
    from core.packed.codec import encode
    from core.packed.head import head_header

    labels = ["acme-up", "acme-down"]
    head = encode(head_header("head"), {"weights": np.eye(2), "bias": np.zeros(2)})
    blobs = {bundle.digest_of(blob): blob for blob in (head, PackedLabels.of(labels).to_bytes())}
    teacher, table = blobs
    manifest = bundle.Manifest(
        format=bundle.FORMAT,
        program="stms",
        model="acme-model",
        version=1,
        created_at=0.0,
        method="head",
        columns=2,
        class_count=2,
        classes=labels,
        class_table=table,
        teacher=teacher,
        encoder=None,
        profile=None,
        dataset_digest=None,
        metrics={},
        spec=None,
        provenance={},
        students=None,
        files={digest: len(blob) for digest, blob in blobs.items()},
    ).to_bytes()
    members = [(bundle.MANIFEST, manifest)]
    members += [(bundle.blob_name(digest), blobs[digest]) for digest in sorted(blobs)]
    pieces = [
        bundle.member_header(name, len(content)) + content + bytes(bundle.padding_of(len(content)))
        for name, content in members
    ]
    return b"".join(pieces) + bundle.END


def routes() -> Routes:
    """By method and path of the OpenAPI document.

    Those of models come last, because the import publishes a model of the same name in the asking tenant.
    """
    return {**_operation_routes(), **_training_routes(), **_model_routes()}


def _operation_routes() -> Routes:
    key: dict[str, Any] = {"name": "camera", "scopes": ["query"], "models": ["<model>"]}
    return {
        **{f"GET {path}": [Probe(path, same_work=False)] for path in _OPEN},
        "GET /v2/models/stats": [Probe("/v2/models/stats")],
        "GET /readyz": [Probe(path, same_work=False) for path in ("/readyz", "/readyz?verbose")],
        "GET /readyz/queries": _one("/readyz/queries", same_work=False),
        "GET /v1/workers": _lists("/v1/workers", "job"),
        "GET /v1/servers": _one("/v1/servers", same_work=False),
        "GET /v1/whoami": _one("/v1/whoami"),
        "GET /v1/usage": _lists("/v1/usage", "tenant"),
        "PATCH /v1/quotas": _one("/v1/quotas", body={"datasets": 1}),
        "GET /v1/audit": [
            *_lists("/v1/audit", "audit"),
            *(Probe(f"/v1/audit?object={{{name}}}") for name in ("job", "dataset", "key")),
            Probe("/v1/audit?actor={key}"),
            Probe("/v1/audit?order=asc&limit=1000"),
        ],
        "GET /v1/keys": _lists("/v1/keys", "key"),
        "POST /v1/keys": [
            Probe("/v1/keys", key),
            Probe("/v1/keys?tenant={tenant}", key),
            Probe("/v1/keys", key | {"scopes": ["operator"], "models": []}),
        ],
        "DELETE /v1/keys/{key_id}": _one("/v1/keys/{key}"),
        "POST /v1/keys/{key_id}/rotate": _one("/v1/keys/{key}/rotate"),
        "GET /v1/token-revocations": _lists("/v1/token-revocations", "revocation"),
        "POST /v1/token-revocations": _one("/v1/token-revocations", body=_REVOCATION),
        **_webhook_routes(),
        **_encoder_routes(),
    }


def _webhook_routes() -> Routes:
    one, listed = "/v1/webhooks/{webhook}", "/v1/webhooks/{webhook}/deliveries"
    path = "/v1/webhooks/{webhook_id}"
    made = {"name": "mine", "url": WEBHOOK_URL, "events": ["job.failed"], "models": ["<model>"]}
    return {
        "GET /v1/webhooks": _lists("/v1/webhooks", "webhook"),
        "POST /v1/webhooks": _one("/v1/webhooks", body=made),
        f"GET {path}": _one(one),
        f"PATCH {path}": [*_one(one, body={"name": "mine"}), *_one(one, body={"enabled": False})],
        f"POST {path}:test": _one(f"{one}:test"),
        f"GET {path}/deliveries": _lists(listed, "delivery"),
        f"POST {path}/deliveries/{{delivery_id}}:repeat": _one(f"{listed}/{{delivery}}:repeat"),
        f"DELETE {path}": _one(one),
    }


def _encoder_routes() -> Routes:
    path, one = "/v1/encoders/{encoder}", "/v1/encoders/{encoder}"
    add = "/v1/encoders?name={encoder}&input=image:32x32:rgb:unit"
    return {
        "GET /v1/encoders": _lists("/v1/encoders", "encoder"),
        "POST /v1/encoders": _one(add, body=b"no model", headers={"content-type": "application/vnd.onnx"}),
        f"GET {path}": _one(one),
        f"DELETE {path}": _one(one),
    }


def _training_routes() -> Routes:
    job = {"dataset_id": "<dataset>", "model": "mine"}
    own = {"dataset_id": "<own>", "model": "mine"}
    pinned = own | {"hyperparameters": {"teacher": {"model": "<model>@1"}}}
    tested = own | {"hyperparameters": {"evaluation": {"dataset_id": "<dataset>"}}}
    return {
        "GET /v1/datasets": _lists("/v1/datasets", "dataset"),
        "POST /v1/datasets": _one("/v1/datasets?name=mine&format=csv", body=CSV, same_work=False),
        # No source is allowed here; the file would be as one that is uploaded.
        "POST /v1/datasets:fetch": _one(
            "/v1/datasets:fetch", body={"url": "https://bucket.example.com/a.csv"}
        ),
        # There is no object store here: tests/app/api/test_presigned_uploads.py asks for another tenant's.
        "POST /v1/uploads": _one("/v1/uploads", body={"bytes": 10, "sha256": "0" * 64}),
        "GET /v1/datasets/{dataset_id}": _one("/v1/datasets/{dataset}"),
        "GET /v1/datasets/{dataset_id}/rows": [
            *_one("/v1/datasets/{dataset}/rows"),
            *_one("/v1/datasets/{dataset}/rows?class=n&part=test"),
        ],
        "GET /v1/datasets/{dataset_id}/classes": _one("/v1/datasets/{dataset}/classes"),
        "POST /v1/datasets/{dataset_id}/revisions": [
            *_one("/v1/datasets/{dataset}/revisions", body={"delete": {"rows": [0]}}),
            Probe("/v1/datasets/{own}/revisions", {"append_dataset_id": "<dataset>"}),
        ],
        "DELETE /v1/datasets/{dataset_id}": _one("/v1/datasets/{dataset}"),
        f"GET {_JOBS}": [*_lists(_JOBS, "job"), Probe(f"{_JOBS}?status=running&model={{model}}")],
        f"GET {_JOBS}/counts": _one(f"{_JOBS}/counts"),
        f"POST {_JOBS}": [
            *(Probe(_JOBS, body) for body in (job, own, pinned, tested)),
            Probe(_JOBS, own, {"idempotency-key": "{idempotency}"}),
            Probe(_JOBS, own | {"model": "<model>"}),
            Probe(f"{_JOBS}?tenant={{tenant}}", job),
        ],
        f"GET {_JOBS}/{{job_id}}": _one(_JOB),
        f"DELETE {_JOBS}/{{job_id}}": _one(_JOB),
        f"POST {_JOBS}/{{job_id}}/cancel": [*_one(f"{_JOB}/cancel"), *_one(f"{_JOBS}/{{running}}/cancel")],
        f"POST {_JOBS}/{{job_id}}/retry": _one(f"{_JOB}/retry"),
        f"GET {_JOBS}/{{job_id}}/labels": _one(f"{_JOB}/labels"),
        f"POST {_JOBS}/{{job_id}}/labels": _one(f"{_JOB}/labels", body={"rename": {"a": "b"}}),
        f"GET {_JOBS}/{{job_id}}/suspects": _one(f"{_JOB}/suspects"),
        f"POST {_JOBS}/{{job_id}}/suspects": _one(
            f"{_JOB}/suspects", body={"corrections": [{"row": 0, "keep": True}]}
        ),
        f"GET {_JOBS}/{{job_id}}/events": [*_one(f"{_JOB}/events"), *_one(f"{_JOB}/events", headers=_SVG)],
        f"GET {_JOBS}/{{job_id}}/students": [
            *_one(f"{_JOB}/students"),
            *_one(f"{_JOB}/students?sort=-f1&label=a"),
        ],
        f"GET {_JOBS}/{{job_id}}/students/{{class_index}}/{{method}}/trace": _one(
            f"{_JOB}/students/0/svm/trace"
        ),
        f"GET {_JOBS}/{{job_id}}/students/{{class_index}}/{{method}}/curve": _one(
            f"{_JOB}/students/0/svm/curve"
        ),
        **_evaluation_routes(),
    }


def _evaluation_routes() -> Routes:
    path, one = "/v1/evaluations", "/v1/evaluations/{evaluation}"
    owners = {"version": "<model>@1", "dataset_id": "<dataset>"}
    return {
        f"GET {path}": [*_lists(path, "evaluation"), Probe(f"{path}?dataset_id={{dataset}}")],
        f"POST {path}": [
            *_one(path, body=owners),
            Probe(path, owners | {"dataset_id": "<own>"}),
            Probe(path, {"version": "aaa@1", "dataset_id": "<dataset>"}),
            Probe(path, {"version": "aaa@1", "baseline": "<model>@1", "dataset_id": "<own>"}),
        ],
        f"GET {path}/{{evaluation_id}}": _one(one),
        f"DELETE {path}/{{evaluation_id}}": _one(one),
        f"POST {path}/{{evaluation_id}}/cancel": _one(f"{one}/cancel"),
    }


def _gate_routes() -> Routes:
    path, one = "/v1/models/{model}/aliases/{alias}/gate", "/v1/models/{model}/aliases/latest/gate"
    return {
        f"GET {path}": _one(one),
        f"PUT {path}": [
            *_one(one, body={"dataset_id": "<dataset>"}),
            *_one(one, body={"dataset_id": "<own>"}, headers=_FIRST),
            Probe("/v1/models/aaa/aliases/latest/gate", {"dataset_id": "<dataset>"}),
        ],
        f"DELETE {path}": [*_one(one), *_one(one, headers=_FIRST)],
    }


def _monitor_routes() -> Routes:
    alias = "/v1/models/{model}/aliases/latest"
    return {
        "GET /v1/models/{model}/aliases/{alias}/monitor": _one(f"{alias}/monitor"),
        "PUT /v1/models/{model}/aliases/{alias}/monitor": _one(
            f"{alias}/monitor", body={"classes": {"*": {}}}
        ),
        "DELETE /v1/models/{model}/aliases/{alias}/monitor": _one(f"{alias}/monitor", headers=_FIRST),
        "POST /v1/models/{model}/aliases/{alias}/monitor:acknowledge": _one(
            f"{alias}/monitor:acknowledge", body={}
        ),
        "GET /v1/models/{model}/aliases/{alias}/samples": _one(f"{alias}/samples?class={{label}}"),
        "GET /v1/models/{model}/aliases/{alias}/performance": _one(f"{alias}/performance"),
        "GET /v1/models/{model}/aliases/{alias}/review": _one(f"{alias}/review?class={{label}}"),
        "POST /v1/models/{model}/aliases/{alias}/review:dataset": _one(f"{alias}/review:dataset", body={}),
        "GET /v1/models/{model}/aliases/{alias}/shadow": _one(f"{alias}/shadow"),
        "PUT /v1/models/{model}/aliases/{alias}/shadow": _one(f"{alias}/shadow", body={"version": 2}),
        "DELETE /v1/models/{model}/aliases/{alias}/shadow": _one(f"{alias}/shadow"),
        "POST /v1/feedback": [
            Probe(
                "/v1/feedback",
                {
                    "feedback": [
                        {
                            "request_id": "order-17",
                            "model": "<model>",
                            "label": "<label>",
                            "answer": True,
                            "correct": False,
                        }
                    ]
                },
            )
        ],
    }


def _schedule_routes() -> Routes:
    one = "/v1/models/{model}/schedule"
    daily = {"every": "daily"}
    return {
        f"GET {one}": _one(one),
        f"PUT {one}": [
            *_one(one, body=daily),
            *_one(one, body=daily | {"dataset_id": "<dataset>"}, headers=_FIRST),
            Probe("/v1/models/aaa/schedule", daily | {"dataset_id": "<dataset>"}),
        ],
        f"DELETE {one}": _one(one, headers=_FIRST),
        # A pseudonym is made by the key of the tenant: the same name is another subject to each of them.
        "DELETE /v1/subjects/{subject}": _one("/v1/subjects/nobody", same_work=False),
    }


def _class_routes() -> Routes:
    return {
        "POST /v1/models/{model}/classes": _one(
            "/v1/models/{model}/classes", body={"base": 1, "name": "other", "rows": [[0.0, 0.0]] * 5}
        ),
        "PATCH /v1/models/{model}/classes": _one(
            "/v1/models/{model}/classes", body={"base": 1, "rename": {"<label>": "other"}}
        ),
        "POST /v1/models/{model}/retrain": [
            *_one("/v1/models/{model}/retrain", body={"from": 1}),
            *_one("/v1/models/{model}/retrain", body={"from": 1, "dataset_id": "<dataset>"}),
        ],
        "POST /v1/models/{model}/classes:merge": _one(
            "/v1/models/{model}/classes:merge",
            body={"base": 1, "name": "other", "classes": ["<label>", "another"]},
        ),
        **_schedule_routes(),
        "POST /v1/models/{model}/classes/{class}:query": [
            Probe("/v1/models/{model}/classes/{label}:query", _ROW)
        ],
        **{
            f"GET /v1/models/{{model}}/classes/{{class}}/{part}": _one(
                f"/v1/models/{{model}}/classes/{{label}}/{part}"
            )
            for part in ("package", "map", "encoder")
        },
    }


def _model_routes() -> Routes:
    alias, version = "/v1/models/{model}/aliases/latest", "/v1/models/{model}/versions/1"
    return {
        "GET /v1/models": [
            *_lists("/v1/models", "model"),
            Probe("/v1/models?limit=1&after={tenant}/{model}"),
        ],
        "GET /v1/models/{model}": [*_one("/v1/models/{model}"), Probe("/v1/models/{model}?limit=1&after=1")],
        "POST /v1/models/{model}/versions": _one(
            "/v1/models/{model}/versions", body={"base": 1, "thresholds": {"<label>": 0.5}}
        ),
        "POST /v1/models/{model}/thresholds": _one(
            "/v1/models/{model}/thresholds", body={"base": 1, "choose": {"<label>": {"recall": 0.5}}}
        ),
        "GET /v1/models/{model}/thresholds": _one("/v1/models/{model}/thresholds?class={label}"),
        "GET /v1/models/{model}/versions/{version}": _one(version),
        "DELETE /v1/models/{model}/versions/{version}": _one(version),
        "GET /v1/models/{model}/versions/{version}/classes": _one(f"{version}/classes"),
        "GET /v1/models/{model}/versions/{version}/bundle": _one(f"{version}/bundle"),
        "GET /v1/models/{model}/versions/{version}/onnx": _one(f"{version}/onnx?class={{label}}"),
        "GET /v1/models/{model}/versions/{version}/schema": _one(f"{version}/schema"),
        "GET /v1/models/{model}/versions/{version}/inputs": _one(f"{version}/inputs"),
        "GET /v1/models/{model}/versions/{version}/answers": [
            *_one(f"{version}/answers"),
            *_one(f"{version}/answers?class={{label}}&days=2"),
        ],
        "GET /v1/models/{model}/aliases/{alias}": _one(alias),
        "GET /v1/models/{model}/aliases/{alias}/history": _one(f"{alias}/history"),
        "PUT /v1/models/{model}/aliases/{alias}": [
            *_one(alias, body={"version": 1}),
            *_one(alias, body={"version": 1}, headers=_FIRST),
        ],
        "DELETE /v1/models/{model}/aliases/{alias}": [
            *_one(alias),
            *_one(alias, headers=_FIRST),
            *_one(alias, headers=_ANY),
        ],
        **_gate_routes(),
        **_monitor_routes(),
        **_class_routes(),
        "POST /v1/models/{model}:packages": [Probe("/v1/models/{model}:packages", {"classes": ["<label>"]})],
        "POST /v1/models/{model}:query": [Probe("/v1/models/{model}:query", _ROW | {"classes": ["<label>"]})],
        "POST /v1/models/{model}:predict": _one("/v1/models/{model}:predict", body=_ROW),
        **_inference("/v2/models/{model}"),
        **_inference("/v2/models/{model}/versions/{version}"),
        "POST /v2/repository/index": [Probe("/v2/repository/index")],
        "POST /v2/repository/models/{model}/load": [Probe("/v2/repository/models/{model}/load")],
        "POST /v2/repository/models/{model}/unload": [Probe("/v2/repository/models/{model}/unload")],
        "POST /v1/bundles": _one("/v1/bundles?model={model}", body=bundle_bytes(), same_work=False),
        "POST /v1/teachers": _one("/v1/teachers?model={model}", body=head_bytes(), same_work=False),
    }
