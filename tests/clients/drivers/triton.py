"""Calls every method of tritonclient's sync or aio client; prints the results as JSON.

Arguments: sync or aio, address of the server (host:port), API key.
"""

import asyncio
import inspect
import json
import sys
from importlib import import_module

import numpy as np

ROWS = np.array([[1.0, 5.0, 0.0], [0.25, -1.0, 7.0]])
FORM, ADDRESS, KEY = sys.argv[1:]
http = import_module("tritonclient.http" if FORM == "sync" else "tritonclient.http.aio")


async def now(value):
    """The value, waited for if it is to come."""
    return await value if inspect.isawaitable(value) else value


def rows(dtype="FP64", *, binary=True, table=ROWS, name="x"):
    given = http.InferInput(name, list(table.shape), dtype)
    return given.set_data_from_numpy(table, binary_data=binary)


def labels(*names, binary=True):
    given = http.InferInput("class", [len(names)], "BYTES")
    return given.set_data_from_numpy(
        np.array([name.encode() for name in names], dtype=object), binary_data=binary
    )


def values(result):
    """Outputs by name, and what the response says of itself."""
    response = result.get_response()
    found = {output["name"]: result.as_numpy(output["name"]).tolist() for output in response["outputs"]}
    return {"model": response["model_name"], "version": response["model_version"], "outputs": found}


class Asker:
    def __init__(self, client):
        self.client = client
        self.headers = {"Authorization": f"Bearer {KEY}"}

    async def __call__(self, verb, *arguments, **options):
        # A copy: the client adds its own headers to the dictionary it is given.
        options["headers"] = dict(self.headers)
        return await now(getattr(self.client, verb)(*arguments, **options))

    async def infer(self, model, inputs, **options):
        return values(await self("infer", model, inputs, **options))

    async def refusal(self, verb, *arguments, **options):
        """Status and message of an error that the client raises."""
        try:
            await self(verb, *arguments, **options)
        except http.InferenceServerException as error:
            return {"status": error.status(), "message": error.message()}
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
        "server": await ask("get_server_metadata"),
        "model": await ask("get_model_metadata", "pets"),
        "class": await ask("get_model_metadata", "pets:cat", "latest"),
        "config": await ask("get_model_config", "pets:cat"),
        "traces": await ask.refusal("get_trace_settings", "pets:cat"),
        "shared_memory": await ask.refusal("get_system_shared_memory_status"),
        "missing": await ask.refusal("get_model_metadata", "cats"),
        "index": await ask("get_model_repository_index"),
    }
    await ask("load_model", "pets")
    await ask("load_model", "pets:cat")
    found["loaded"] = (await ask.infer("pets:cat", [rows()]))["outputs"]["score"]
    await ask("unload_model", "pets")
    found["unloaded"] = (await ask.infer("pets:cat", [rows()]))["outputs"]["score"]
    found["unload_missing"] = await ask.refusal("unload_model", "cats")
    found["statistics"] = await ask("get_inference_statistics")
    found["model_statistics"] = await ask("get_inference_statistics", "pets", "1")
    return found


async def inference(ask):
    """Inference in every form."""
    wanted = [http.InferRequestedOutput("score", binary_data=False), http.InferRequestedOutput("match")]
    plain = [http.InferRequestedOutput("score", binary_data=False)]
    large = np.tile(ROWS, (500, 1))
    found = {
        "binary": await ask.infer("pets:cat", [rows()]),
        "json": await ask.infer("pets:cat", [rows(binary=False)], outputs=plain),
        "mixed": await ask.infer("pets:cat", [rows()], outputs=wanted, request_id="seven"),
        "parameter": await ask.infer("pets", [rows()], parameters={"class": "dog"}),
        "input": await ask.infer("pets", [rows(), labels("cat", "日本")]),
        "json_input": await ask.infer("pets", [rows(), labels("cat", binary=False)]),
        "encoded_name": await ask.infer("pets:größe/1:x", [rows()]),
        "version": await ask.infer("pets:cat", [rows()], model_version="1"),
        "alias": await ask.infer("pets:cat", [rows()], model_version="latest"),
    }
    for numpy_type, datatype in (
        ("float32", "FP32"),
        ("float16", "FP16"),
        ("int8", "INT8"),
        ("int64", "INT64"),
        ("uint16", "UINT16"),
        ("bool", "BOOL"),
    ):
        table = np.array([[1, 0, 1], [0, 1, 1]]).astype(numpy_type)
        for binary in (True, False):
            answer = await ask.infer("pets:cat", [rows(datatype, table=table, binary=binary)])
            found[f"{datatype} {'binary' if binary else 'json'}"] = answer
    for packing in ("gzip", "deflate"):
        options = {"request_compression_algorithm": packing, "response_compression_algorithm": packing}
        answer = await ask.infer("pets:cat", [rows(table=large)], **options)
        found[packing] = {"rows": len(answer["outputs"]["score"]), "first": answer["outputs"]["score"][:2]}
        answer = await ask.infer("pets:cat", [rows(table=large, binary=False)], outputs=plain, **options)
        found[f"{packing} json"] = {
            "rows": len(answer["outputs"]["score"]),
            "first": answer["outputs"]["score"][:2],
        }
    nan = np.array([[1.0, np.nan, 0.0]])
    found["nan"] = await ask.refusal("infer", "pets:cat", [rows(table=nan)])
    found["nan json"] = await ask.refusal("infer", "pets:cat", [rows(table=nan, binary=False)])
    found["columns"] = await ask.refusal("infer", "pets:cat", [rows(table=ROWS[:, :2])])
    found["no class"] = await ask.refusal("infer", "pets", [rows()])
    if FORM == "sync":
        pending = [ask.client.async_infer("pets:cat", [rows()], headers=dict(ask.headers)) for _ in range(3)]
        found["async"] = [values(answer.get_result()) for answer in pending]
    return found


async def keys(ask):
    """Without a key."""
    ask.headers = {}
    return {"infer": await ask.refusal("infer", "pets:cat", [rows()]), "live": await ask("is_server_live")}


async def main():
    client = http.InferenceServerClient(ADDRESS)
    try:
        ask = Asker(client)
        found = {"control": await control(ask), "inference": await inference(ask), "keys": await keys(ask)}
    finally:
        await now(client.close())
    print(json.dumps(found))


asyncio.run(main())
