"""A bucket of moto with one file, until standard input ends. Prints presigned addresses as a JSON object."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import boto3
from moto.server import ThreadedMotoServer

os.environ.update(AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="secret", AWS_DEFAULT_REGION="us-east-1")
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
host, port = server.get_host_and_port()
origin = f"http://{host}:{port}"
s3 = boto3.client("s3", endpoint_url=origin)
s3.create_bucket(Bucket="parts")
s3.put_object(Bucket="parts", Key="in/letters.csv", Body=Path(sys.argv[1]).read_bytes())


def presigned(key: str) -> str:
    return s3.generate_presigned_url("get_object", Params={"Bucket": "parts", "Key": key}, ExpiresIn=300)


addresses = {"origin": origin, "file": presigned("in/letters.csv"), "missing": presigned("in/other.csv")}
print(json.dumps(addresses), flush=True)
sys.stdin.read()
server.stop()
