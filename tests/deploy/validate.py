"""Validates objects of Kubernetes; run by the interpreter of an environment with kubernetes-validate.

Standard input: a JSON list of objects. Standard output: a JSON object {versions: the last three of
Kubernetes, faults: texts, unknown: kinds without a schema}.
"""

import json
import sys

import kubernetes_validate
from kubernetes_validate.utils import all_versions, major_minor

LAST = 3
versions = sorted({major_minor(each) for each in all_versions()}, key=lambda text: int(text.split(".")[1]))[
    -LAST:
]
faults, unknown = [], set()
for each in json.load(sys.stdin):
    for version in versions:
        try:
            kubernetes_validate.validate(each, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            where = ".".join(map(str, error.path))
            faults.append(f"{version} {each['kind']} {each['metadata']['name']} {where}: {error.message}")
        except kubernetes_validate.SchemaNotFoundError:
            unknown.add(each["kind"])
json.dump({"versions": versions, "faults": faults, "unknown": sorted(unknown)}, sys.stdout)
