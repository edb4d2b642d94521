"""Asks a server with `http.client` at its defaults, over one connection.

Arguments: address (host:port), API key, a CSV file. Prints a line for each request: status, a tab, body.
"""

import json
import sys
from http.client import HTTPConnection
from pathlib import Path

ADDRESS, KEY, FILE = sys.argv[1:]
CONNECTION = HTTPConnection(ADDRESS, timeout=60)


def ask(method, path, body=None):
    CONNECTION.request(method, path, body, {"Authorization": f"Bearer {KEY}"})
    response = CONNECTION.getresponse()
    text = response.read().decode()
    print(f"{response.status}\t{text}")
    return text


query = json.dumps({"x": [1, 5, 0]})
tensor = {"name": "x", "shape": [1, 3], "datatype": "FP64", "data": [1, 5, 0]}
ask("GET", "/v1/models")
ask("HEAD", "/livez")
ask("POST", "/v1/models/pets/classes/cat:query", query)
# An iterable has no declared length, so that it is sent in chunks.
ask("POST", "/v1/models/pets/classes/cat:query", iter([query.encode()]))
ask("POST", "/v2/models/pets:cat/infer", json.dumps({"inputs": [tensor]}))
dataset = json.loads(ask("POST", "/v1/datasets?name=python", Path(FILE).read_bytes()))
ask("POST", "/v1/training-jobs", json.dumps({"dataset_id": dataset["id"], "model": "python"}))
