"""Calls a server with kserve's InferenceGRPCClient; prints the results as JSON.

Arguments: address of the server (host:port), API key.
"""

import asyncio
import json
import sys

import grpc
import numpy as np
from kserve import InferenceGRPCClient, InferInput, InferRequest

ADDRESS, KEY = sys.argv[1:]
HEADERS = [("authorization", f"Bearer {KEY}")]
ROWS = np.array([[1.0, 5.0, 0.0], [0.25, -1.0, 7.0]])


def request(model, *, binary, datatype="FP64", parameters=None):
    given = InferInput("x", list(ROWS.shape), datatype)
    given.set_data_from_numpy(ROWS.astype({"FP64": "f8", "FP32": "f4"}[datatype]), binary_data=binary)
    return InferRequest(
        model_name=model, infer_inputs=[given], request_id="seven", parameters=parameters or {}
    )


async def infer(client, model, **options):
    answer = await client.infer(request(model, **options), headers=HEADERS)
    found = {output.name: output.as_numpy().tolist() for output in answer.outputs}
    return {"id": answer.id, "model": answer.model_name, "outputs": found}


async def refusal(call):
    try:
        await call
    except grpc.RpcError as error:
        return {"status": str(error.code()), "message": error.details()}
    return None


async def main():
    client = InferenceGRPCClient(ADDRESS)
    found = {
        "live": await client.is_server_live(),
        "ready": await client.is_server_ready(),
        "model_ready": await client.is_model_ready("pets:cat", headers=HEADERS),
        "missing_ready": await client.is_model_ready("cats", headers=HEADERS),
        "raw": await infer(client, "pets:cat", binary=True),
        "typed": await infer(client, "pets:cat", binary=False),
        "float32": await infer(client, "pets:cat", binary=False, datatype="FP32"),
        "parameter": await infer(client, "pets", binary=True, parameters={"class": "dog"}),
        "no_class": await refusal(client.infer(request("pets", binary=True), headers=HEADERS)),
        "no_key": await refusal(client.infer(request("pets:cat", binary=True))),
    }
    await client.close()
    print(json.dumps(found))


asyncio.run(main())
