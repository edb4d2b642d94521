"""The protocol over gRPC in this process: the answers of HTTP, limits, and errors without details."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import grpc
import numpy as np
import pytest
from grpc.aio import AioRpcError, Channel, insecure_channel
from hypothesis import given
from hypothesis import strategies as st

from app.auth import places
from app.auth.places import without_key
from app.domain.errors import InvalidRequest, TooLarge
from app.http.client_address import client_of_socket, socket_name
from app.http.problem import Problem
from app.processes.scoreboard import Scoreboard
from app.server.context import ServerContext
from app.server.grpc_listener import GrpcListener
from app.services.audit import list_records
from app.services.keys import create_key, revoke_key
from app.serving.open_inference import operations
from app.serving.open_inference.grpc import service
from app.serving.open_inference.grpc.descriptors import message_classes
from app.serving.open_inference.grpc.messages import GrpcInference, parse
from app.serving.open_inference.grpc.refusals import detail_of
from app.serving.open_inference.grpc.service import InferenceService
from app.serving.open_inference.operations import Operations
from app.store.unit_of_work import Store
from tests.app.started import Client
from tests.refusals import refused_as
from tests.system.processes import free_port

ROWS = np.array([[1.0, 5.0, 0.0], [0.25, -1.0, 7.0]])
LARGEST = 1024 * 1024
Message = Any


def inference(
    model: str = "pets:cat", rows: Any = ROWS, *, raw: bool = True, name: str = "x", **fields: Any
) -> Message:
    request = message_classes()["ModelInferRequest"](model_name=model, **fields)
    tensor = request.inputs.add(name=name, datatype="FP64", shape=list(rows.shape))
    if raw:
        request.raw_input_contents.append(np.asarray(rows, "<f8").tobytes())
    else:
        tensor.contents.fp64_contents.extend(np.ravel(rows).tolist())
    return request


def outputs(response: Message) -> dict[str, list[Any]]:
    """Outputs by name, in whichever form they came."""
    found: dict[str, list[Any]] = {}
    for place, tensor in enumerate(response.outputs):
        is_match = tensor.datatype == "BOOL"
        if response.raw_output_contents:
            data = response.raw_output_contents[place]
            found[tensor.name] = np.frombuffer(data, "?" if is_match else "<f8").tolist()
        else:
            found[tensor.name] = list(
                tensor.contents.bool_contents if is_match else tensor.contents.fp64_contents
            )
    return found


class Caller:
    """Asks a server of this process, whose event loop runs during a call only."""

    def __init__(self, client: Client, key: str) -> None:
        parts = client.control.state.query_parts
        self.client, self.key, self.pipeline = client, key, parts.pipeline
        self.ready, self.draining = True, False
        self.operations = Operations(
            parts.pipeline, parts.store, parts.files, parts.audit_writer, lambda: self.ready
        )
        port = free_port()
        self._listener = GrpcListener(
            "127.0.0.1", port, Path(gettempdir()), largest=LARGEST, certificate=None
        )
        self._channel: Channel

        async def start() -> None:
            limits = ServerContext(Scoreboard.private().slots[0], 8)
            wait = self.pipeline.budgets.wait_without_key
            await self._listener.start(InferenceService(self.operations, lambda: self.draining), limits, wait)
            self._channel = insecure_channel(f"127.0.0.1:{port}", [("grpc.max_send_message_length", -1)])

        client.run(start())

    def close(self) -> None:
        async def stop() -> None:
            await self._channel.close()
            await self._listener.stop(0.0)

        self.client.run(stop())
        self.operations.close()

    @property
    def own(self) -> list[tuple[str, str]]:
        return [("authorization", f"Bearer {self.key}")]

    def unary(self, method: str, message: Message, metadata: Any = None, *, of: str = "") -> Any:
        """A call that can be awaited."""
        data = message if isinstance(message, bytes) else message.SerializeToString()
        path = f"{of or service.OF_INFERENCE}{method}"
        return self._channel.unary_unary(path)(data, metadata=self.own if metadata is None else metadata)

    def stream(self, method: str, metadata: Any = None, *, of: str = "") -> Any:
        path = f"{of or service.OF_INFERENCE}{method}"
        return self._channel.stream_stream(path)(metadata=self.own if metadata is None else metadata)

    def run(self, work: Awaitable[Any]) -> Any:
        async def wait() -> Any:
            return await asyncio.wait_for(work, 60)

        return self.client.run(wait())

    def ask(self, method: str, message: Message, answer: str = "", metadata: Any = None) -> Message:
        """The message of an answer. answer: its name in the table."""

        async def call() -> bytes:
            done: bytes = await self.unary(method, message, metadata)
            return done

        return parse(answer or f"{method}Response", self.run(call()))

    def refused(self, method: str, message: Message, metadata: Any = None) -> AioRpcError:
        async def call() -> None:
            await self.unary(method, message, metadata)

        with pytest.raises(AioRpcError) as refusal:
            self.run(call())
        return refusal.value


def trailing(error: AioRpcError) -> dict[str, Any]:
    return dict(error.trailing_metadata() or ())


@pytest.fixture
def key(store: Any) -> str:
    return create_key(store, "grpc", {"train"}, set())[1]


@pytest.fixture
def start(make_client: Callable[..., Client], key: str, pets: Any) -> Iterator[Callable[..., Caller]]:
    """Starts servers with API keys and settings of their own."""
    started: list[Caller] = []

    def begin(**changed: Any) -> Caller:
        started.append(Caller(make_client(require_keys=True, **changed), key))
        return started[-1]

    yield begin
    for caller in started:
        caller.close()


@pytest.fixture
def caller(start: Callable[..., Caller]) -> Caller:
    return start()


@pytest.mark.parametrize("raw", [True, False])
def test_answers_are_those_of_http_and_have_the_form_of_the_request(caller: Caller, raw: bool):
    rows = np.random.default_rng(0).normal(size=(7, 3))
    answer = caller.ask("ModelInfer", inference(rows=rows, raw=raw, id="seven"))
    assert (answer.model_name, answer.model_version, answer.id) == ("pets:cat", "1", "seven")
    assert bool(answer.raw_output_contents) is raw
    document = {"inputs": [{"name": "x", "shape": [7, 3], "datatype": "FP64", "data": rows.ravel().tolist()}]}
    headers = {"authorization": f"Bearer {caller.key}"}
    same = caller.client.post("/v2/models/pets:cat/infer", json=document, headers=headers).json()
    assert outputs(answer) == {output["name"]: output["data"] for output in same["outputs"]}


def test_sampled_answers_are_named_in_the_trailing_metadata(start: Callable[..., Caller], store: Store):
    caller = start(query_samples="ids")
    trainer = create_key(store, "trainer", {"train"})[1]
    caller.client.refresh()
    monitor = {"classes": {"cat": {}}, "ask": {"yes": 1.0, "floor": 1.0, "no": "uniform"}}
    path, headers = "/v1/models/pets/aliases/latest/monitor", {"authorization": f"Bearer {trainer}"}
    assert caller.client.put(path, json=monitor, headers=headers).status_code == 200

    async def ask(*more: tuple[str, str]) -> dict[str, Any]:
        call = caller.unary("ModelInfer", inference(), [*caller.own, *more])
        await call
        return dict(await call.trailing_metadata() or ())

    named = caller.run(ask())["x-sample-id"].split(", ")
    assert [text.partition(";")[2] for text in named] == ["row=0", "row=1"]
    assert "x-sample-id" not in caller.run(ask(("x-sample", "no")))


def test_fields_of_later_versions_of_the_protocol_are_passed_over(caller: Caller):
    # Field 1000, of the wire types fixed64 and fixed32.
    of_eight_bytes, of_four = b"\xc1\x3e" + b"\xff" * 8, b"\xc5\x3e" + b"\xff" * 4
    data = of_eight_bytes + of_four + inference().SerializeToString()
    assert outputs(caller.ask("ModelInfer", data))["score"] == [1.0, 0.25]


def test_a_class_is_named_as_over_http(caller: Caller):
    by_parameter = inference("pets")
    by_parameter.parameters["class"].string_param = "dog"
    assert outputs(caller.ask("ModelInfer", by_parameter))["score"] == [5.0, -1.0]
    typed = inference("pets", raw=False)
    labels = typed.inputs.add(name="class", datatype="BYTES", shape=[2])
    labels.contents.bytes_contents.extend([b"cat", "日本".encode()])
    assert outputs(caller.ask("ModelInfer", typed))["score"] == [1.0, -6.25]
    versioned = inference("pets:cat", model_version="latest")
    versioned.outputs.add(name="score")
    assert outputs(caller.ask("ModelInfer", versioned)) == {"score": [1.0, 0.25]}


CONTENTS = [
    ("BOOL", "bool_contents"),
    ("INT8", "int_contents"),
    ("INT16", "int_contents"),
    ("INT32", "int_contents"),
    ("INT64", "int64_contents"),
    ("UINT8", "uint_contents"),
    ("UINT16", "uint_contents"),
    ("UINT32", "uint_contents"),
    ("UINT64", "uint64_contents"),
    ("FP32", "fp32_contents"),
    ("FP64", "fp64_contents"),
]


@pytest.mark.parametrize(("datatype", "field"), CONTENTS, ids=[kind for kind, _ in CONTENTS])
def test_every_datatype_has_its_contents(caller: Caller, datatype: str, field: str):
    request = message_classes()["ModelInferRequest"](model_name="pets:cat")
    tensor = request.inputs.add(name="x", datatype=datatype, shape=[2, 3])
    getattr(tensor.contents, field).extend([1, 0, 1, 0, 1, 1])
    assert outputs(caller.ask("ModelInfer", request))["score"] == [1.0, 0.0]


def _input(**fields: Any) -> Message:
    request = message_classes()["ModelInferRequest"](model_name="pets:cat")
    contents = fields.pop("contents", {})
    tensor = request.inputs.add(**({"name": "x", "datatype": "FP64", "shape": [1, 3]} | fields))
    for name, elements in contents.items():
        getattr(tensor.contents, name).extend(elements)
    return request


def _both() -> Message:
    request = inference()
    request.inputs[0].contents.fp64_contents.append(1.0)
    return request


def _two_raw() -> Message:
    request = inference()
    request.raw_input_contents.append(b"")
    return request


FAULTS = {
    "too few elements": (
        _input(contents={"fp64_contents": [1.0]}),
        "1 numbers in fp64_contents",
        "bad_tensor",
    ),
    "another field": (
        _input(contents={"fp32_contents": [1.0] * 3}),
        "0 numbers in fp64_contents",
        "bad_tensor",
    ),
    "too large": (
        _input(datatype="INT8", contents={"int_contents": [1, 2, 300]}),
        "INT8 cannot hold",
        "bad_tensor",
    ),
    "half": (_input(datatype="FP16"), "only raw_input_contents", "bad_tensor"),
    "unknown": (_input(datatype="BF16"), "unknown datatype", "bad_tensor"),
    "negative": (_input(shape=[-1, 3]), "shape [-1, 3]", "bad_tensor"),
    "huge": (_input(shape=[2**40, 2**40]), "sizes must be", "bad_tensor"),
    "nothing": (message_classes()["ModelInferRequest"](model_name="pets:cat"), "0 inputs", "wrong_inputs"),
    "both": (_both(), "contents beside raw_input_contents", "bad_tensor"),
    "two": (_two_raw(), "1 inputs, but 2 raw_input_contents", "bad_tensor"),
    "short": (inference(rows=np.empty((0, 3))), "at least one row", "empty"),
    "no class": (inference("pets"), "Name the target class", "class_missing"),
    "no output": (inference(outputs=[{"name": "odd"}]), "no output 'odd'", "no_output"),
    "shared memory": (
        _input(parameters={"shared_memory_region": {"string_param": "r"}}),
        "not supported",
        "unsupported_parameter",
    ),
    "NaN": (
        inference(rows=np.array([[1.0, np.nan, 0.0]])),
        "row 0 (counted from 0): column 1 is NaN",
        "not_finite",
    ),
    "no protobuf": (b"\xff\xff\xff", "not of the type", "malformed_message"),
    "cut off": (inference().SerializeToString()[:-5], "not of the type", "malformed_message"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_explained(caller: Caller, name: str):
    message, words, code = FAULTS[name]
    error = caller.refused("ModelInfer", message)
    assert (error.code(), words in error.details()) == (grpc.StatusCode.INVALID_ARGUMENT, True), error
    assert trailing(error)["stms-code"] == code


def test_rows_are_views_of_the_bytes_that_arrived():
    data = inference().SerializeToString()
    form = GrpcInference.read(data)
    assert form.raw[0].obj is data
    [tensor] = form.parse(service.model_path("infer", "pets:cat", None)).tensors
    np.testing.assert_array_equal(tensor.numbers(), ROWS)


def test_the_parts_of_a_message_are_bounded():
    many = _input(parameters={str(i): {} for i in range(20_000)}).SerializeToString()
    with refused_as(TooLarge, "too_many_objects", match="parts"):
        GrpcInference.read(many)


@given(st.binary(max_size=200))
def test_bytes_of_any_kind_are_a_message_or_an_invalid_request(data: bytes):
    try:
        form = GrpcInference.read(data)
    except InvalidRequest:
        return
    whole = message_classes()["ModelInferRequest"].FromString(data)
    assert [bytes(part) for part in form.raw] == list(whole.raw_input_contents)
    assert form.message.model_name == whole.model_name


def test_an_unexpected_error_reveals_no_details(caller: Caller, monkeypatch, caplog):
    def fail(*_arguments: Any) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(operations, "answer", fail)
    error = caller.refused("ModelInfer", inference())
    assert error.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in repr(error)
    assert trailing(error)["stms-code"] == "internal_error"
    assert trailing(error)["x-request-id"] in caplog.text
    assert "secret" in caplog.text


def test_an_error_outside_of_the_pipeline_reveals_no_details_either(caller: Caller, monkeypatch, caplog):
    def fail(*_arguments: Any) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(service, "streamed", fail)
    monkeypatch.setattr(service, "_health", fail)

    async def call() -> list[AioRpcError]:
        found = []
        stream = caller.stream("ModelStreamInfer")
        await stream.write(inference().SerializeToString())
        for each in (stream, caller.stream("Watch", [], of=service.OF_HEALTH)):
            with pytest.raises(AioRpcError) as refusal:
                await each.read()
            found.append(refusal.value)
        return found

    for error in caller.run(call()):
        assert (error.code(), "secret" in repr(error)) == (grpc.StatusCode.INTERNAL, False)
    assert caplog.text.count("RuntimeError: secret") == 2
    assert caller.pipeline.budgets.body_bytes.used == caller.pipeline.budgets.queries.used == 0


def test_errors_have_the_status_of_their_kind(start: Callable[..., Caller], store: Any):
    caller = start(rate_limit=0.001, rate_burst=2)
    assert caller.refused("ModelInfer", inference(), []).code() is grpc.StatusCode.UNAUTHENTICATED
    asks_only = create_key(store, "asks", {"query"}, {"pets"})[1]
    caller.client.refresh()
    load = message_classes()["RepositoryModelLoadRequest"](model_name="pets")
    asked = [("x-api-key", asks_only)]
    error = caller.refused("RepositoryModelLoad", load, asked)
    assert (error.code(), trailing(error)["stms-code"]) == (
        grpc.StatusCode.PERMISSION_DENIED,
        "scope_required",
    )
    assert caller.refused("ModelInfer", inference("dogs:cat"), asked).code() is (
        grpc.StatusCode.PERMISSION_DENIED
    )
    caller.refused("ModelInfer", inference("pets:wolf"))
    assert outputs(caller.ask("ModelInfer", inference()))
    error = caller.refused("ModelInfer", inference())
    assert (error.code(), trailing(error)["stms-code"]) == (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "rate_limited",
    )
    status = parse("Status", trailing(error)["grpc-status-details-bin"])
    delay = parse("RetryInfo", status.details[0].value).retry_delay.seconds
    assert delay == int(trailing(error)["retry-after"]) > 1


def test_another_tenant_finds_nothing(caller: Caller, store: Any):
    caller.ask("ModelInfer", inference())
    rival = [("x-api-key", create_key(store.of_tenant("rival"), "rival", {"train"})[1])]
    caller.client.refresh()
    classes = message_classes()
    for method, message in (
        ("ModelInfer", inference()),
        ("ModelMetadata", classes["ModelMetadataRequest"](name="pets")),
        ("ModelStatistics", classes["ModelStatisticsRequest"](name="pets")),
        ("RepositoryModelLoad", classes["RepositoryModelLoadRequest"](model_name="pets")),
        ("RepositoryModelUnload", classes["RepositoryModelUnloadRequest"](model_name="pets")),
    ):
        assert caller.refused(method, message, rival).code() is grpc.StatusCode.NOT_FOUND, method
    ready = classes["ModelReadyRequest"](name="pets")
    assert caller.ask("ModelReady", ready, metadata=rival).ready is False
    assert not caller.ask("RepositoryIndex", b"", metadata=rival).models
    assert not caller.ask("ModelStatistics", b"", metadata=rival).model_stats
    assert caller.ask("ModelReady", ready).ready is True
    assert [model.name for model in caller.ask("RepositoryIndex", b"").models] == ["pets"]


def test_a_detail_fits_into_the_metadata_of_clients():
    detail = detail_of(Problem(400, "bad", "ß" * 5000 + "\ud800"))
    assert len(detail.encode()) <= 1000


def test_a_message_that_is_late_counts_as_a_large_one(start: Callable[..., Caller], monkeypatch):
    monkeypatch.setattr(service, "MESSAGE_SECONDS", 1.0)
    caller = start(max_inflight_bytes=32 * LARGEST, key_share=1)

    async def call() -> tuple[list[str], int]:
        # Streams on the wire: the calls begin, and no message follows.
        path = f"{service.OF_INFERENCE}ModelInfer"
        late = [caller._channel.stream_unary(path)(metadata=caller.own) for _ in range(3)]
        while not (held := caller.pipeline.budgets.body_bytes.used):
            await asyncio.sleep(0.01)
        codes = []
        for each in late:
            with pytest.raises(AioRpcError) as refusal:
                await each
            codes.append(str(trailing(refusal.value)["stms-code"]))
        return codes, held

    codes, held = caller.run(call())
    assert sorted(codes) == ["overloaded", "overloaded", "slow_body"]
    assert held == caller.pipeline.max_bytes + service.OVERHEAD
    assert caller.pipeline.budgets.body_bytes.used == caller.pipeline.budgets.queries.used == 0


def test_a_stream_answers_in_order_and_goes_on_after_an_error(caller: Caller):
    async def call() -> list[Message]:
        stream = caller.stream("ModelStreamInfer")
        found = []
        for number, model in enumerate(("pets:cat", "pets:wolf", "pets:dog")):
            await stream.write(inference(model, id=str(number)).SerializeToString())
            found.append(parse("ModelStreamInferResponse", await stream.read()))
        await stream.done_writing()
        assert await stream.code() is grpc.StatusCode.OK
        return found

    cat, wolf, dog = caller.run(call())
    assert outputs(cat.infer_response)["score"] == [1.0, 0.25]
    assert "wolf" in wolf.error_message
    assert wolf.infer_response.id == "1"
    assert wolf.infer_response.parameters["stms-code"].string_param == "class_not_found"
    assert outputs(dog.infer_response)["score"] == [5.0, -1.0]
    assert caller.pipeline.budgets.body_bytes.used == caller.pipeline.budgets.queries.used == 0


@pytest.mark.parametrize("end", ["key", "drain"])
def test_a_stream_that_waits_ends_with_its_key_and_with_the_process(caller: Caller, store: Any, end: str):
    async def call() -> AioRpcError:
        stream = caller.stream("ModelStreamInfer")
        await stream.write(inference().SerializeToString())
        await stream.read()
        if end == "drain":
            caller.draining = True
        else:
            revoke_key(store, "_".join(caller.key.split("_")[1:3]))
            await caller.client.context.refresher.refresh()
        with pytest.raises(AioRpcError) as refusal:
            await stream.read()
        return refusal.value

    error = caller.run(call())
    expected = (grpc.StatusCode.UNAVAILABLE, "shutting_down")
    if end == "key":
        expected = (grpc.StatusCode.UNAUTHENTICATED, "invalid_key")
    assert (error.code(), trailing(error)["stms-code"]) == expected


def test_health_needs_no_key_and_can_be_watched(caller: Caller):
    async def call() -> list[int]:
        once = await caller.unary("Check", b"", [], of=service.OF_HEALTH)
        watch = caller.stream("Watch", [], of=service.OF_HEALTH)
        await watch.write(b"")
        found = [once, await watch.read()]
        caller.ready = False
        found += [await watch.read(), await caller.unary("Check", b"", [], of=service.OF_HEALTH)]
        caller.draining = True
        assert await watch.code() is grpc.StatusCode.OK
        return [parse("HealthCheckResponse", data).status for data in found]

    assert caller.run(call()) == [1, 1, 2, 2]
    for method in ("ServerLive", "ServerMetadata", "ServerReady"):
        assert caller.ask(method, b"", metadata=[]) is not None
    assert caller.ask("ServerReady", b"", metadata=[]).ready is False


def test_watches_are_bounded_and_one_network_has_a_share(caller: Caller):
    watches = caller.pipeline.budgets.watches

    async def watch() -> grpc.StatusCode | None:
        call = caller.stream("Watch", [], of=service.OF_HEALTH)
        try:
            await call.read()
        except AioRpcError as error:
            return error.code()
        call.cancel()
        return None

    async def calls() -> list[grpc.StatusCode | None]:
        codes = []
        for network, count in (("127.0.0.1", watches.share), ("203.0.113.9", watches.limit), ("::2", 1)):
            watches.add(without_key(network), count)
            codes.append(await watch())
            watches.release(without_key(network), count)
        return codes

    assert caller.run(calls()) == [grpc.StatusCode.RESOURCE_EXHAUSTED] * 2 + [None]


def test_a_method_that_does_not_exist_is_refused(caller: Caller):
    refusal = caller.refused("ModelTrain", inference())
    assert refusal.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(
    ("of", "method"), [(service.OF_INFERENCE, "ModelInfer"), ("/a/", "b"), (service.OF_HEALTH, "Watch")]
)
def test_calls_without_a_key_that_are_given_up_keep_their_turns(
    caller: Caller, of: str, method: str, monkeypatch: pytest.MonkeyPatch
):
    """They have cost what the others did, so that their network waits longer, and no other one."""
    monkeypatch.setattr(places, "PER_SECOND", 20.0)
    budgets, order = caller.pipeline.budgets, list[str]()
    given_up = budgets.keyless_turns._given_up

    async def wait(address: str, count: int) -> None:
        for _ in range(count):
            await budgets.wait_without_key(address)
        order.append(address)

    async def calls() -> None:
        wrong = [("authorization", "Bearer stms_wrong")]
        begun = [caller.unary(method, inference(), wrong, of=of) for _ in range(30)]
        while not budgets.keyless_turns._waiting:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.2)
        for call in begun:
            call.cancel()
        while given_up.total() < 10:
            await asyncio.sleep(0.001)
        await asyncio.gather(wait("127.0.0.1", 1), wait("203.0.113.9", 5))
        while given_up:
            await asyncio.sleep(0.01)

    caller.run(calls())
    assert order == ["203.0.113.9", "127.0.0.1"]


def test_inferences_are_counted_and_refusals_audited(caller: Caller, store: Any):
    caller.ask("ModelInfer", inference())
    caller.refused("ModelInfer", inference("pets:wolf"))
    caller.refused("ModelInfer", inference(), [("authorization", "Bearer stms_wrong")])
    request = message_classes()["ModelStatisticsRequest"](name="pets")
    [counted] = caller.ask("ModelStatistics", request).model_stats
    assert (counted.inference_count, counted.inference_stats.success.count) == (2, 1)
    caller.run(caller.client.context.audit_writer.write())
    [record], _ = list_records(store.of_all_tenants(), limit=10, action="request.refused")
    assert (record.object, record.outcome, record.address) == (
        "POST /inference.GRPCInferenceService/ModelInfer",
        "invalid_key",
        "127.0.0.1",
    )


@pytest.mark.parametrize("host", ["10.0.0.1", "2001:db8::1", "fe80::1%eth0"])
def test_the_address_of_a_client_is_in_the_name_of_its_socket(host: str):
    assert client_of_socket(f"unix:/tmp/folder/{socket_name(host, 5000)}") == (host, 5000)
    assert client_of_socket("unix:/tmp/folder_1/") is None


def test_nothing_of_grpc_is_imported_before_a_port_is_set():
    program = (
        "import sys, app.query_process, app.main, app.commands.processes; "
        "print([name for name in sys.modules if name.split('.')[0] == 'grpc' or 'protobuf' in name])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
