"""Calls a server with the codecs of MLServer, as its clients and MLflow's do; prints the results as JSON.

Arguments: address of the server (host:port), API key.
"""

import json
import sys
import urllib.error
import urllib.request

import numpy as np
import pandas as pd
from mlserver.codecs import NumpyCodec, NumpyRequestCodec, PandasCodec
from mlserver.types import InferenceResponse

ADDRESS, KEY = sys.argv[1:]
ROWS = np.array([[1.0, 5.0, 0.0], [0.25, -1.0, 7.0]])
FRAME = pd.DataFrame(ROWS, columns=["a", "b", "c"])


def infer(request, model="pets:cat"):
    url = f"http://{ADDRESS}/v2/models/{model}/infer"
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    body = request if isinstance(request, bytes) else request.model_dump_json(exclude_none=True).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as answer:
            response = InferenceResponse.model_validate_json(answer.read())
    except urllib.error.HTTPError as error:
        return {"status": error.code, "error": json.load(error)["error"]}
    return {output.name: NumpyCodec.decode_output(output).ravel().tolist() for output in response.outputs}


def frame(table):
    return infer(PandasCodec.encode_request(table))


columns = [
    {"name": name, "datatype": "FP64", "shape": [2], "data": FRAME[name].tolist()} for name in ("c", "b", "a")
]
labelled = PandasCodec.encode_request(FRAME.assign(kind=pd.Series(["cat", "dog"], dtype=object)))
print(
    json.dumps(
        {
            "numpy": infer(NumpyRequestCodec.encode_request(ROWS)),
            "float32": infer(NumpyRequestCodec.encode_request(ROWS.astype(np.float32))),
            "frame": frame(FRAME),
            "turned": frame(FRAME[["c", "a", "b"]]),
            "integers": frame(pd.DataFrame({"c": [0, 7], "b": [5, -1], "a": [True, False]})),
            "float32 frame": frame(FRAME.astype(np.float32)),
            "one row": frame(FRAME.iloc[:1]),
            "labelled": infer(labelled),
            "mlflow": infer(json.dumps({"inputs": columns, "parameters": {"content_type": "pd"}}).encode()),
            "missing": frame(FRAME[["a", "b"]]),
            "renamed": frame(FRAME.rename(columns={"c": "C"})),
            "split": infer(json.dumps({"dataframe_split": {"columns": ["a"], "data": [[1]]}}).encode()),
        }
    )
)
