"""Whether a tenant can learn anything of another one: ``python -m verification.isolation``.

There are two services with the same API keys. In the first, a tenant has data sets, jobs, a model, aliases,
an audit log and events; in the second it has none of them. Every route of the OpenAPI document is asked for
these objects without a key, with query, train and admin keys of another tenant, with a token of its issuer,
and with a key of the same tenant that is limited to another model. Both services must answer the same status,
headers and body, execute the same database statements, and name nothing that was not in the request. At the
end the objects must be unchanged. The last line of the output is JSON.

That the measurement can fail is shown with a leak that is planted: repositories that ignore the tenant.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from unittest import mock

import httpx
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from app.auth.audit_writer import AuditWriter
from app.domain.entities import ApiKey, JobState, new_id
from app.domain.errors import NotFound
from app.domain.evaluation import ALPHA, EVALUATION_ID, LEAST_ROWS, TOLERANCE, Evaluation, Gate
from app.domain.own_encoder import OwnEncoder
from app.domain.ports import JobQueue
from app.domain.webhook import EVENTS
from app.main import create_app
from app.services import webhooks
from app.services.keys import create_key
from app.services.token_revocations import revoke_tokens
from app.serving.refresher import Refresher
from app.settings import Settings
from app.store.migrate import upgrade
from app.store.repositories.scoped import Scoped
from app.store.tables import dataset_classes, datasets
from app.store.unit_of_work import Store
from tests.system.in_process import gated
from tests.system.postgres import NoPostgres, postgres
from tests.system.published import publish_linear
from tests.system.token_issuer import issuer_setting, key_set, public_jwk, token
from verification.isolation_probes import CSV, WEBHOOK_URL, Names, Probe, routes

OWNER: Final = "acme-tenant"
RIVAL: Final = "rival-tenant"
CALLERS: Final = ("none", "query", "train", "admin", "token", "limited")
"""The last one is a query key of the owner that may only query another model."""

_OWNERS_ISSUER: Final = "https://issuer-of-acme.example.com"
_GENERATED: Final = (
    (re.compile(r"stms_key_[0-9a-f]{24}_[\w-]{43}"), "<key>"),
    (re.compile(r"whsec_[\w+/=-]+"), "<secret>"),
    (re.compile(r"\b(ds|job|key|aud|wh|del|evt|rev)_[0-9a-f]{24,}"), r"<\1>"),
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z"), "<time>"),
    (re.compile(r'"request_id":"[^"]*"'), ""),
    (re.compile(r'"instance":"[^"]*"'), ""),
)
_BACKGROUND: Final = (
    "INTO audit_log",
    "registry_clock",
    "registry_changes",
    "api_keys.id IN",
    "SET last_used_at",
)
"""Parts of statements of background work, which any request may meet."""


_ATTEMPTS: Final = 3
"""Background work may execute a statement beside a request, but hardly beside each of three."""


class _Queue(JobQueue):
    """Takes jobs and starts none."""

    def enqueue(self, job_id: str, workflow_id: str) -> None:
        """Accept a job."""

    def enqueue_evaluation(self, evaluation_id: str, turn: int) -> None:
        """Accept an evaluation."""

    def cancel(self, workflow_id: str) -> None:
        """Accept a cancellation."""

    def ping(self) -> None:
        """Answer."""


@dataclass
class Service:
    """A running application. audit: writes its denied requests. statements: since the last request."""

    http: httpx.AsyncClient
    store: Store
    audit: AuditWriter
    statements: list[str]
    refresher: Refresher
    settings: Settings

    async def ask(
        self, method: str, probe: Probe, names: Names, key: str | None, extra: Mapping[str, str]
    ) -> Answer:
        """Send a probe, and have its denial written at once.

        The audit log adds up the denials of a second, so its rows would otherwise depend on the time.
        """
        target, body, headers = probe.filled(names)
        headers |= {"x-request-id": "probe", **extra} | (
            {} if key is None else {"authorization": f"Bearer {key}"}
        )
        self.statements.clear()
        response = await self.http.request(method, target, content=body, headers=headers)
        sent = f"{target} {(body or b'').decode('latin-1')} {headers}"
        statements = sorted(self.statements)
        await self.audit.write()
        return Answer(response.status_code, _headers(response), response.text, statements, sent)


@dataclass(frozen=True)
class Answer:
    """What a client sees of a response, the statements that it took, and what was sent."""

    status: int
    headers: str
    body: str
    statements: list[str]
    sent: str

    def leaks_to(self, other: Answer, hidden: Sequence[str], *, same_work: bool) -> list[str]:
        """In what the answer differs from ``other``, of a service without the objects, or names them."""
        found = []
        if self.status != other.status:
            found.append(f"status {self.status} instead of {other.status}")
        if _plain(self.headers) != _plain(other.headers):
            found.append(f"headers {self.headers} instead of {other.headers}")
        if _plain(self.body) != _plain(other.body):
            found.append(f"body {self.body[:300]} instead of {other.body[:300]}")
        if same_work and self.statements != other.statements:
            mine, others = Counter(self.statements), Counter(other.statements)
            found.append(f"statements {[*(mine - others)]} instead of {[*(others - mine)]}")
        shown = f"{self.headers} {self.body}"
        found += [f"names {word}" for word in hidden if word in shown and word not in self.sent]
        return found


def main() -> int:
    """0 if nothing leaked and the planted leak was found."""
    parser = argparse.ArgumentParser(prog="python -m verification.isolation", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="SQLite only")
    figures = measure(quick=parser.parse_args().quick)
    print(json.dumps(figures))
    return int(bool(figures["leaks"] or figures["unmapped_routes"] or not figures["planted_leaks"]))


def measure(*, quick: bool) -> dict[str, Any]:
    """Run the matrix; returns the numbers of combinations, leaks, routes without probes and planted leaks."""
    combinations, leaks, unmapped = 0, 0, set[str]()
    with tempfile.TemporaryDirectory() as name, databases_in(Path(name), quick=quick) as databases:
        for number, pair in enumerate(databases):
            result = asyncio.run(compare(Path(name) / str(number), pair))
            combinations += result.combinations
            leaks += len(result.leaks)
            unmapped |= result.unmapped
        with planted_leak(), databases_in(Path(name) / "planted", quick=True) as [pair]:
            planted = asyncio.run(compare(Path(name) / "planted", pair, show=False))
    for route in sorted(unmapped):
        print(f"no probe for {route}")
    return {
        "combinations": combinations,
        "leaks": leaks,
        "unmapped_routes": len(unmapped),
        "planted_leaks": len(planted.leaks),
    }


@contextmanager
def planted_leak(repository: type[Scoped] = Scoped) -> Iterator[None]:
    """Repositories, or only one, that find rows of every tenant, as before tenants existed."""
    # Half-shared rows also cause internal errors, which are logged.
    logging.disable()
    try:
        with mock.patch.object(repository, "_owns", return_value=sa.true()):
            yield
    finally:
        logging.disable(logging.NOTSET)


@dataclass
class Result:
    """Number of combinations that were compared, what leaked, and routes that no probe asks."""

    combinations: int
    leaks: list[str]
    unmapped: set[str]


async def compare(
    folder: Path, addresses: tuple[str, str], *, callers: Sequence[str] = CALLERS, show: bool = True
) -> Result:
    """Ask two services over two databases; only the first has the objects of the owner."""
    full_address, bare_address = addresses
    async with (
        _service(folder / "full", full_address) as full,
        _service(folder / "bare", bare_address) as bare,
    ):
        keys = _make_keys(full.store, bare.store)
        names = await _fill(full, bare, keys)
        before = _state(full.store, names)
        app_routes = await _documented(full)
        probes = routes()
        result = Result(0, [], app_routes ^ set(probes))
        for route, tries in probes.items():
            method = route.partition(" ")[0]
            for probe in tries:
                for extra in [{}, {"if-none-match": "*"}] if method == "GET" else [{}]:
                    for caller in callers:
                        key = keys.get(caller)
                        found: list[str] = []
                        for _attempt in range(_ATTEMPTS):
                            given = await full.ask(method, probe, names, key, extra)
                            expected = await bare.ask(method, probe, names, key, extra)
                            hidden = [word for word in names.secrets if caller != "limited" or word != OWNER]
                            found = given.leaks_to(expected, hidden, same_work=probe.same_work)
                            if not found:
                                break
                        result.combinations += 1
                        asked = f"{caller}: {method} {probe.target} {extra}"
                        result.leaks += [f"{asked}: {text}" for text in found]
        if _state(full.store, names) != before:
            result.leaks.append("the objects of the owner were changed")
    for leak in result.leaks if show else ():
        print(leak)
    return result


@asynccontextmanager
async def _service(folder: Path, address: str) -> AsyncIterator[Service]:
    upgrade(address)
    values = {"data_dir": folder, "database_url": address, "refresh_seconds": 1.0, "require_keys": True}
    values |= {
        "webhooks": WEBHOOK_URL.removesuffix("/stms"),
        "webhook_secret": "the same in both services " * 2,
        "token_issuers": _issuers(folder),
    }
    app = create_app(Settings.model_validate(values), queue=_Queue())
    gate = gated(app)
    async with gate.lifespan(gate):
        # On a busy machine this takes longer than a request without a key may take.
        await asyncio.to_thread(app.encoded_openapi)
        context = app.state.context
        transport = httpx.ASGITransport(gate, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            statements = _watch(context.store.engine)
            yield Service(
                http, context.store, context.audit_writer, statements, context.refresher, context.settings
            )


def _issuers(folder: Path) -> list[dict[str, Any]]:
    """One issuer of tokens for each tenant; that of the rival gives administrators."""
    folder.mkdir(parents=True, exist_ok=True)
    keys = folder / "keys.json"
    keys.write_bytes(key_set(public_jwk("ES256")))
    rules = [{"claim": "sub", "equals": "robot", "scopes": ["admin"]}]
    names = {OWNER: _OWNERS_ISSUER, RIVAL: "https://issuer-of-rival.example.com"}
    return [issuer_setting(keys, issuer=name, tenant=tenant, rules=rules) for tenant, name in names.items()]


def _watch(engine: Engine) -> list[str]:
    statements: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        if not any(table in statement for table in _BACKGROUND) and not statement.startswith("PRAGMA"):
            statements.append(statement)

    sa.event.listen(engine, "before_cursor_execute", note)
    return statements


def _make_keys(*stores: Store) -> dict[str, str]:
    """The same keys in both databases; the texts by caller."""
    first, *others = stores
    texts: dict[str, str] = {}
    made: list[ApiKey] = []
    for name in ("query", "train", "admin"):
        key, texts[name] = create_key(first.of_tenant(RIVAL), name, {name})
        made.append(key)
    limited, texts["limited"] = create_key(first.of_tenant(OWNER), "limited", {"query"}, {"aaa"})
    for other in others:
        for key in [*made, limited]:
            with other.of_tenant(key.tenant).begin() as uow:
                uow.keys.add(key)
                details = {"name": key.name, "scopes": sorted(key.scopes), "models": len(key.models)}
                uow.audit.append("key.create", key.id, details=details)
    texts["token"] = token(
        iss="https://issuer-of-rival.example.com", sub="robot", exp=int(time.time()) + 3500
    )
    return texts


async def _fill(full: Service, bare: Service, keys: Mapping[str, str]) -> Names:
    """What others have in both services, and then the objects of the owner in the first one."""
    own = ""
    for service in (full, bare):
        for tenant in (OWNER, RIVAL):
            _publish(service.store.of_tenant(tenant), "aaa", "left")
        await _refresh(service)
        own = _same_id(
            service, await _upload(service, keys["train"], "mine", CSV.replace(b"label", b"kind_"))
        )
    owner = full.store.of_tenant(OWNER)
    webhook, delivery = _add_webhook(full, owner)
    key, text = create_key(owner, "key-of-acme", {"train"})
    await _refresh(full)
    dataset = await _upload(full, text, "payroll-of-acme", CSV)
    body = {"dataset_id": dataset, "model": "model-of-acme"}
    jobs = []
    for word in ("once-of-acme", "twice-of-acme"):
        headers = {"authorization": f"Bearer {text}", "idempotency-key": word}
        sent = await full.http.post("/v1/training-jobs", json=body, headers=headers)
        jobs.append(sent.raise_for_status().json()["id"])
    _publish(owner, "model-of-acme", "class-of-acme")
    with owner.begin() as uow:
        uow.jobs.move(jobs[0], JobState.FAILED)
        uow.jobs.move(jobs[1], JobState.RUNNING)
        evaluation = _evaluation(dataset)
        uow.evaluations.add(evaluation)
        uow.gates.set(_gate(dataset), expected_revision=0)
    issuers = full.settings.token_issuers
    revocation = revoke_tokens(owner, issuers, _OWNERS_ISSUER, sub="revoked-of-acme")
    with owner.read() as uow:
        audit = uow.audit.page(limit=1)[0][0].id
    await _refresh(full, bare)
    return Names(
        tenant=OWNER,
        dataset=dataset,
        job=jobs[0],
        running=jobs[1],
        model="model-of-acme",
        label="class-of-acme",
        key=key.id,
        audit=audit,
        idempotency="once-of-acme",
        evaluation=evaluation.id,
        encoder=_add_encoder(owner),
        webhook=webhook,
        delivery=delivery,
        revocation=revocation.id,
        own=own,
    )


def _evaluation(dataset: str) -> Evaluation:
    """An evaluation of the owner that waits."""
    return Evaluation(
        id=new_id(EVALUATION_ID),
        version="model-of-acme@1",
        baseline=None,
        dataset_id=dataset,
        part="all",
        tolerance=TOLERANCE,
        alpha=ALPHA,
        unknown_classes="drop",
        state=JobState.QUEUED,
        created_at=time.time(),
        created_by="key",
        tenant=OWNER,
    )


def _gate(dataset: str) -> Gate:
    """The gate of an alias of the owner."""
    return Gate(
        model="model-of-acme",
        alias="latest",
        rule="not_worse",
        dataset_id=dataset,
        tolerance=TOLERANCE,
        alpha=ALPHA,
        least_rows=LEAST_ROWS,
        revision=0,
        updated_at=time.time(),
        tenant=OWNER,
    )


def _add_encoder(owner: Store) -> str:
    """The name of an encoder of the owner; nobody runs its file."""
    with owner.begin() as uow:
        digest, size = uow.blobs.put([b"encoder of acme"])
        encoder = OwnEncoder(
            "encoder-of-acme", digest, "image", 64, size, {}, "", time.time(), "key", owner.tenant
        )
        uow.own_encoders.add(encoder)
    return encoder.name


def _add_webhook(service: Service, owner: Store) -> tuple[str, str]:
    """Ids of a webhook of the owner for all events, and of a delivery to it."""
    webhook, _ = webhooks.create_webhook(
        owner,
        service.settings,
        name="webhook-of-acme",
        url=WEBHOOK_URL,
        events=EVENTS,
        models=(),
        form="cloudevents",
        created_by="key",
    )
    return webhook.id, webhooks.test_webhook(owner, webhook.id).id


async def _upload(service: Service, key: str, name: str, content: bytes) -> str:
    headers = {"authorization": f"Bearer {key}"}
    sent = await service.http.post(f"/v1/datasets?name={name}&format=csv", content=content, headers=headers)
    return str(sent.raise_for_status().json()["id"])


def _same_id(service: Service, dataset: str) -> str:
    """Give the rival's data set the same id in both services."""
    same = "ds_" + "0" * 24
    with service.store.engine.begin() as connection:
        # The names of its classes refer to it, so they follow in between.
        row = connection.execute(sa.select(datasets).where(datasets.c.id == dataset)).mappings().one()
        copy = dict(row) | {"id": same, "digest": "0" * 64}
        connection.execute(sa.insert(datasets), copy)
        names = sa.update(dataset_classes).where(dataset_classes.c.dataset_id == dataset)
        connection.execute(names.values(dataset_id=same))
        connection.execute(sa.delete(datasets).where(datasets.c.id == dataset))
        original = sa.update(datasets).where(datasets.c.id == same)
        connection.execute(original.values(digest=row["digest"]))
    return same


async def _refresh(*services: Service) -> None:
    for service in services:
        await service.refresher.refresh()


def _publish(store: Store, model: str, label: str) -> None:
    publish_linear(store, model, [[1.0, 0.0], [0.0, 1.0]], (label, "other"))


async def _documented(service: Service) -> set[str]:
    response = await service.http.get("/openapi.json")
    paths = response.raise_for_status().json()["paths"].items()
    return {f"{method.upper()} {path}" for path, operations in paths for method in operations}


def _state(store: Store, names: Names) -> object:
    """The objects of the owner, which no other tenant may change."""
    with store.of_tenant(OWNER).read() as uow:
        try:
            key = uow.keys.get(names.key)
            return (
                uow.datasets.page(limit=9),
                (uow.jobs.get(names.job), uow.jobs.get(names.running)),
                (uow.models.version(names.model, 1), uow.models.aliases_of(names.model)),
                (key.digest, key.revoked_at),
                uow.own_encoders.get(names.encoder),
                (uow.webhooks.get(names.webhook), uow.webhooks.deliveries(names.webhook, limit=99)),
                (uow.evaluations.get(names.evaluation), uow.gates.of_model(names.model)),
            )
        except NotFound as missing:
            return missing.message


def _headers(response: httpx.Response) -> str:
    shown = sorted((name, value) for name, value in response.headers.items() if name != "x-request-id")
    if response.headers.get("content-type", "").startswith("text/plain; version"):
        shown = [(name, value) for name, value in shown if name != "content-length"]
    return json.dumps(shown)


def _plain(text: str) -> str:
    """The text without what is new in every answer; of metrics only names and labels.

    Values of metrics are sums over all tenants, and so is whether a route was ever used with some status: its
    series begin with the first request.
    """
    if text.startswith("# HELP"):
        lines = [line for line in text.splitlines() if not line.startswith(("#", "stms_request"))]
        return "\n".join(sorted({line.rpartition(" ")[0] for line in lines}))
    for pattern, replacement in _GENERATED:
        text = pattern.sub(replacement, text)
    return text


@contextmanager
def databases_in(folder: Path, *, quick: bool) -> Iterator[list[tuple[str, str]]]:
    """Pairs of addresses of empty databases: of SQLite, and of PostgreSQL unless ``quick`` is true."""
    folder.mkdir(exist_ok=True)
    files = (f"sqlite:///{folder / 'with.sqlite'}", f"sqlite:///{folder / 'without.sqlite'}")
    if quick:
        yield [files]
        return
    try:
        with postgres() as server:
            for name in ("isolation_with", "isolation_without"):
                server.create_database(name)
            yield [files, (server.address("isolation_with"), server.address("isolation_without"))]
    except NoPostgres as missing:
        print(f"only on SQLite: {missing}")
        yield [files]


if __name__ == "__main__":
    sys.exit(main())
