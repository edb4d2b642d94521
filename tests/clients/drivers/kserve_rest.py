"""Calls a server with kserve's InferenceRESTClient (v2 protocol); prints the results as JSON.

Arguments: address of the server (host:port), API key.
"""

import asyncio
import json
import sys

import httpx
import numpy as np
from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig
from kserve.protocol.infer_type import RequestedOutput

ADDRESS, KEY = sys.argv[1:]
URL = f"http://{ADDRESS}"
HEADERS = {"Authorization": f"Bearer {KEY}"}
ROWS = np.array([[1.0, 5.0, 0.0], [0.25, -1.0, 7.0]])


def request(model, *, binary, datatype="FP64", outputs=None, parameters=None):
    given = InferInput("x", list(ROWS.shape), datatype)
    given.set_data_from_numpy(ROWS.astype({"FP64": "f8", "FP32": "f4"}[datatype]), binary_data=binary)
    return InferRequest(
        model_name=model,
        infer_inputs=[given],
        request_id="seven",
        parameters=parameters,
        request_outputs=outputs,
    )


async def infer(client, model, **options):
    answer = await client.infer(URL, request(model, **options), model_name=model, headers=dict(HEADERS))
    found = {output.name: output.as_numpy().tolist() for output in answer.outputs}
    return {"id": answer.id, "model": answer.model_name, "outputs": found}


async def refusal(call):
    try:
        await call
    except httpx.HTTPStatusError as error:
        return {"status": error.response.status_code, "message": str(error)}
    return None


async def main():
    async with InferenceRESTClient(RESTConfig(protocol="v2", verbose=False)) as client:
        wanted = [
            RequestedOutput("score", {"binary_data": True}),
            RequestedOutput("match", {"binary_data": False}),
        ]
        document = {"inputs": [{"name": "x", "shape": [1, 3], "datatype": "INT32", "data": [4, 0, 0]}]}
        by_hand = await client.infer(URL, document, model_name="pets:cat", headers=dict(HEADERS))
        found = {
            "live": await client.is_server_live(URL),
            "ready": await client.is_server_ready(URL),
            "model_ready": await client.is_model_ready(URL, "pets:cat", headers=HEADERS),
            "missing_ready": await client.is_model_ready(URL, "cats", headers=HEADERS),
            "json": await infer(client, "pets:cat", binary=False),
            "binary": await infer(client, "pets:cat", binary=True),
            "float32": await infer(client, "pets:cat", binary=True, datatype="FP32"),
            "all_binary": await infer(
                client, "pets:cat", binary=True, parameters={"binary_data_output": True}
            ),
            "mixed": await infer(client, "pets:cat", binary=True, outputs=wanted),
            "parameter": await infer(client, "pets", binary=False, parameters={"class": "dog"}),
            "by_hand": by_hand.outputs[1].as_numpy().tolist(),
            "no_class": await refusal(infer(client, "pets", binary=False)),
            "no_key": await refusal(client.infer(URL, document, model_name="pets:cat")),
        }
    print(json.dumps(found))


asyncio.run(main())
