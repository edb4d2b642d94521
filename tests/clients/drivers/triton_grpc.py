"""Calls the methods of tritonclient's gRPC client, sync or aio, and its stream; prints the results as JSON.

Arguments: sync or aio, address of the server (host:port), API key.
"""

import asyncio
import inspect
import json
import queue
import sys
from importlib import import_module

import numpy as np

ROWS = np.array([[1.0, 5.0, 0.0], [0.25, -1.0, 7.0]])
FORM, ADDRESS, KEY = sys.argv[1:]
grpc = import_module("tritonclient.grpc" if FORM == "sync" else "tritonclient.grpc.aio")
OWN = {"authorization": f"Bearer {KEY}"}


async def now(value):
    """The value, waited for if it is to come."""
    return await value if inspect.isawaitable(value) else value


def rows(dtype="FP64", table=ROWS, name="x"):
    given = grpc.InferInput(name, list(table.shape), dtype)
    given.set_data_from_numpy(table)
    return given


def labels(*names):
    given = grpc.InferInput("class", [len(names)], "BYTES")
    given.set_data_from_numpy(np.array([name.encode() for name in names], dtype=object))
    return given


def values(result):
    """Outputs by name, and what the response says of itself."""
    response = result.get_response()
    found = {output.name: result.as_numpy(output.name).tolist() for output in response.outputs}
    return {
        "model": response.model_name,
        "version": response.model_version,
        "id": response.id,
        "outputs": found,
    }


def refusal_of(error):
    return {"status": error.status(), "message": error.message()}


class Asker:
    def __init__(self, client):
        self.client = client
        self.headers = OWN

    async def __call__(self, verb, *arguments, **options):
        return await now(getattr(self.client, verb)(*arguments, headers=self.headers, **options))

    async def infer(self, model, inputs, **options):
        return values(await self("infer", model, inputs, **options))

    async def refusal(self, verb, *arguments, **options):
        try:
            await self(verb, *arguments, **options)
        except grpc.InferenceServerException as error:
            return refusal_of(error)
        return None


async def control(ask):
    """Every verb that is not inference."""
    found = {
        "live": await ask("is_server_live"),
        "ready": await ask("is_server_ready"),
        "model_ready": await ask("is_model_ready", "pets"),
        "class_ready": await ask("is_model_ready", "pets:größe/1:x"),
        "version_ready": await ask("is_model_ready", "pets", "1"),
        "missing_ready": await ask("is_model_ready", "cats"),
        "server": await ask("get_server_metadata", as_json=True),
        "model": await ask("get_model_metadata", "pets", as_json=True),
        "class": await ask("get_model_metadata", "pets:cat", "latest", as_json=True),
        "traces": await ask.refusal("get_trace_settings", "pets:cat"),
        "missing": await ask.refusal("get_model_metadata", "cats"),
        "index": await ask("get_model_repository_index", as_json=True),
        "load_changed": await ask.refusal("load_model", "pets", config="{}"),
    }
    await ask("load_model", "pets")
    await ask("load_model", "pets:cat")
    found["loaded"] = (await ask.infer("pets:cat", [rows()]))["outputs"]["score"]
    await ask("unload_model", "pets", unload_dependents=True)
    found["unloaded"] = (await ask.infer("pets:cat", [rows()]))["outputs"]["score"]
    found["unload_missing"] = await ask.refusal("unload_model", "cats")
    found["statistics"] = await ask("get_inference_statistics", as_json=True)
    found["model_statistics"] = await ask("get_inference_statistics", "pets", "1", as_json=True)
    return found


async def inference(ask):
    """Inference in every form."""
    wanted = [grpc.InferRequestedOutput("score"), grpc.InferRequestedOutput("match")]
    found = {
        "plain": await ask.infer("pets:cat", [rows()]),
        "wanted": await ask.infer("pets:cat", [rows()], outputs=wanted, request_id="seven"),
        "parameter": await ask.infer("pets", [rows()], parameters={"class": "dog"}),
        "input": await ask.infer("pets", [rows(), labels("cat", "日本")]),
        "version": await ask.infer("pets:cat", [rows()], model_version="1"),
        "alias": await ask.infer("pets:cat", [rows()], model_version="latest"),
        "columns": await ask.infer(
            "pets:cat", [rows(table=ROWS[:, [place]], name=name) for place, name in enumerate("abc")]
        ),
    }
    types = {"float32": "FP32", "float16": "FP16", "int8": "INT8", "int64": "INT64", "uint16": "UINT16"}
    for numpy_type, datatype in {**types, "bool": "BOOL"}.items():
        table = np.array([[1, 0, 1], [0, 1, 1]]).astype(numpy_type)
        found[datatype] = await ask.infer("pets:cat", [rows(datatype, table)])
    for packing in ("gzip", "deflate"):
        found[packing] = await ask.refusal("infer", "pets:cat", [rows()], compression_algorithm=packing)
    large = await ask.infer("pets:cat", [rows(table=np.tile(ROWS, (50_000, 1)))])
    found["large"] = [len(large["outputs"]["score"]), large["outputs"]["score"][-2:]]
    found["nan"] = await ask.refusal("infer", "pets:cat", [rows(table=np.array([[1.0, np.nan, 0.0]]))])
    found["narrow"] = await ask.refusal("infer", "pets:cat", [rows(table=ROWS[:, :2])])
    found["no class"] = await ask.refusal("infer", "pets", [rows()])
    found["missing"] = await ask.refusal("infer", "pets:wolf", [rows()])
    if FORM == "sync":
        answers = queue.Queue()
        for _ in range(3):
            ask.client.async_infer(
                "pets:cat",
                [rows()],
                callback=lambda result, error: answers.put((result, error)),
                headers=OWN,
            )
        found["async"] = [values(answers.get(timeout=30)[0]) for _ in range(3)]
    ask.headers = {}
    found["no key"] = await ask.refusal("infer", "pets:cat", [rows()])
    ask.headers = {"x-api-key": KEY}
    found["other header"] = await ask.infer("pets:cat", [rows()])
    ask.headers = OWN
    return found


REQUESTS = [("pets:cat", "1"), ("pets:wolf", "2"), ("pets:dog", "3")]


def streamed_by_callback(client):
    answers = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)), headers=OWN)
    for model, identity in REQUESTS:
        client.async_stream_infer(model, [rows()], request_id=identity)
    found = [answers.get(timeout=30) for _ in REQUESTS]
    client.stop_stream()
    return [values(result) if error is None else refusal_of(error) for result, error in found]


async def streamed_by_iterator(client):
    async def requests():
        for model, identity in REQUESTS:
            yield {"model_name": model, "inputs": [rows()], "request_id": identity}

    answers = client.stream_infer(requests(), headers=OWN)
    return [values(result) if error is None else refusal_of(error) async for result, error in answers]


async def main():
    client = grpc.InferenceServerClient(ADDRESS)
    try:
        ask = Asker(client)
        found = {"control": await control(ask), "inference": await inference(ask)}
        found["stream"] = (
            streamed_by_callback(client) if FORM == "sync" else await streamed_by_iterator(client)
        )
    finally:
        await now(client.close())
    print(json.dumps(found))


asyncio.run(main())
