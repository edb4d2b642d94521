"""Asks a server with the Python client that openapi-generator generated; prints the answers as JSON."""

import json
import sys
from typing import Any

folder, address, key = sys.argv[1:]
sys.path.insert(0, folder)

import openapi_client  # noqa: E402

configuration = openapi_client.Configuration(host=f"http://{address}", access_token=key)
client = openapi_client.ApiClient(configuration)
queries = openapi_client.QueriesApi(client)


def ask(class_: str, body: dict[str, Any]) -> Any:
    request = openapi_client.QueryRequest.from_json(json.dumps(body))
    return json.loads(queries.query("pets", class_, request).to_json())


several = openapi_client.ClassesQueryRequest.from_json(
    json.dumps({"x": [0, 5, 0], "classes": ["cat", "dog"]})
)
print(
    json.dumps(
        {
            "name": openapi_client.OperationApi(client).whoami().name,
            "models": [each.name for each in openapi_client.ModelsApi(client).list_models().data],
            "one": ask("cat", {"x": [1, 0, 0]}),
            "many": ask("größe/1:x", {"rows": [[0, 0, 1], [0, 0, 0]]}),
            "several": queries.query_classes("pets", several).to_dict(),
        }
    )
)
