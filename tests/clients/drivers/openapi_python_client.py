"""Asks a server with the client that openapi-python-client generated; prints the answers as JSON."""

import json
import sys
from typing import Any

folder, address, key = sys.argv[1:]
sys.path.insert(0, folder)

from stms_client.api.models import list_models  # noqa: E402
from stms_client.api.operation import whoami  # noqa: E402
from stms_client.api.queries import query, query_classes  # noqa: E402
from stms_client.models import (  # noqa: E402
    ClassesQueryOfOneRow,
    ClassQueryOfManyRows,
    ClassQueryOfOneRow,
)

from stms_client import AuthenticatedClient  # noqa: E402

client = AuthenticatedClient(base_url=f"http://{address}", token=key, httpx_args={"trust_env": False})


def ask(class_: str, body: Any) -> Any:
    return query.sync("pets", class_, client=client, body=body).to_dict()


print(
    json.dumps(
        {
            "name": whoami.sync(client=client).name,
            "models": [each.name for each in list_models.sync(client=client).data],
            "one": ask("cat", ClassQueryOfOneRow(x=[1.0, 0.0, 0.0])),
            "many": ask("größe/1:x", ClassQueryOfManyRows(rows=[[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])),
            "several": query_classes.sync(
                "pets", client=client, body=ClassesQueryOfOneRow(x=[0.0, 5.0, 0.0], classes=["cat", "dog"])
            ).to_dict(),
        }
    )
)
