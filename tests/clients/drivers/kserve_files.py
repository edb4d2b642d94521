"""Checks files of Kubernetes objects by kserve's own models, and fetches a bundle by its storage initialiser.

Arguments: folder of the files, address of the bundle (file://…), folder to put it into. Prints JSON: fields
that no model of kserve knows, and the names of the files that were put.
"""

import json
import sys
from pathlib import Path

import kserve.models
import yaml
from kserve_storage import Storage

FOLDER, ADDRESS, TARGET = map(str, sys.argv[1:])


def unknown(model, value, place):
    """The fields of a value that its model does not know, everywhere in it but in Kubernetes's own."""
    fields = {json_name: name for name, json_name in model.attribute_map.items()}
    found = []
    for name, inner in value.items():
        where = f"{place}.{name}"
        if name not in fields:
            found.append(where)
            continue
        kind = model.openapi_types[fields[name]]
        is_list = kind.startswith("list[")
        inner_model = getattr(kserve.models, kind.removeprefix("list[").removesuffix("]"), None)
        if inner_model is not None:
            for item in inner if is_list else [inner]:
                found += unknown(inner_model, item, where)
    return found


faults = []
for path in sorted(Path(FOLDER).glob("*.yaml")):
    for document in yaml.safe_load_all(path.read_text()):
        version = document["apiVersion"].rpartition("/")[2].capitalize()
        model = getattr(kserve.models, version + document["kind"])
        faults += unknown(model, document, f"{path.name}: {document['kind']}")
Storage.download(ADDRESS, TARGET)
put = sorted(str(path.relative_to(TARGET)) for path in Path(TARGET).rglob("*") if path.is_file())
print(json.dumps({"faults": faults, "put": put}))
