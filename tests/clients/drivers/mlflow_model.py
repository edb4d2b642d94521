"""Saves a bundle as a model of MLflow, loads and serves it; prints JSON.

Arguments: folder with our client, bundle of numbers, bundle of records, folder to write to, a record as JSON.
"""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

CLIENT, NUMBERS, RECORDS, FOLDER, RECORD = sys.argv[1:]
sys.path.insert(0, CLIENT)
os.environ["MLFLOW_TRACKING_URI"] = f"file:{FOLDER}/runs"
os.environ |= {"MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_DISABLE_TELEMETRY": "true"}

import mlflow  # noqa: E402
import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402

import stms_client.mlflow as flavor  # noqa: E402
from stms_client.bundle import open_bundle  # noqa: E402

ROWS = np.random.default_rng(0).normal(size=(1000, 3))
FRAME = pd.DataFrame(ROWS[:, ::-1], columns=["c", "b", "a"])


def served(model):
    """What `mlflow models serve` answers to the first rows."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", str(model), "-p", str(port)]
    own = str(Path(sys.executable).parent)
    environment = os.environ | {"PYTHONPATH": CLIENT, "PATH": f"{own}:{os.environ['PATH']}"}
    process = subprocess.Popen(
        [*command, "--env-manager", "local"], env=environment, stdout=sys.stderr, stderr=sys.stderr
    )
    body = json.dumps({"inputs": ROWS[:3].tolist(), "params": {"class": "dog"}}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/invocations", body, {"Content-Type": "application/json"}
    )
    try:
        for _ in range(300):
            try:
                with urllib.request.urlopen(request, timeout=10) as answer:
                    return json.load(answer)["predictions"]
            except (urllib.error.URLError, ConnectionError):
                assert process.poll() is None
                time.sleep(0.2)
    finally:
        process.terminate()
        process.wait()


path = Path(FOLDER) / "saved"
flavor.save_model(path, NUMBERS)
loaded = mlflow.pyfunc.load_model(str(path))
wanted = open_bundle(NUMBERS).query_rows("cat", ROWS).scores
array = loaded.predict(ROWS, params={"class": "cat"})
try:
    loaded.predict(ROWS)
    refusal = ""
except Exception as error:  # noqa: BLE001 - MLflow decides its type
    refusal = str(error)
flavor.save_model(Path(FOLDER) / "records", RECORDS)
records = mlflow.pyfunc.load_model(str(Path(FOLDER) / "records"))
of_record = records.predict(pd.DataFrame([json.loads(RECORD)]), params={"class": "a"})
with mlflow.start_run():
    logged = flavor.log_model(NUMBERS, "pets")
again = mlflow.pyfunc.load_model(logged.model_uri).predict(ROWS, params={"class": "cat"})
print(
    json.dumps(
        {
            "difference": float(np.abs(array["score"].to_numpy() - wanted).max()),
            "columns": list(array.columns),
            "logged": bool((again["score"] == array["score"]).all()),
            "turned": float(
                np.abs(
                    flavor._PyFunc(open_bundle(NUMBERS)).predict(FRAME, {"class": "cat"})["score"].to_numpy()
                    - wanted
                ).max()
            ),
            "refusal": refusal,
            "record": float(of_record["score"].iloc[0]),
            "record_wanted": open_bundle(RECORDS).query("a", json.loads(RECORD)).score,
            "served": served(path),
            "served_wanted": list(open_bundle(NUMBERS).query_rows("dog", ROWS[:3]).scores),
            "files": sorted(str(one.relative_to(path)) for one in path.rglob("*") if one.is_file()),
        }
    )
)
