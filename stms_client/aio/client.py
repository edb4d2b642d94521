"""The client: all methods in one class."""

from __future__ import annotations

from stms_client.aio.datasets import Datasets
from stms_client.aio.encoders import Encoders
from stms_client.aio.evaluations import Evaluations
from stms_client.aio.jobs import Jobs
from stms_client.aio.models import Models
from stms_client.aio.monitors import Monitors
from stms_client.aio.operation import Operation
from stms_client.aio.queries import Queries
from stms_client.aio.webhooks import Webhooks


class AsyncClient(Queries, Datasets, Jobs, Models, Evaluations, Monitors, Encoders, Webhooks, Operation):
    """Connects to a running service through a pool of connections. Every method raises StmsError.

    `Client` has the same methods without ``await``, and may be shared by threads.

    api_key: by default the one in ``STMS_API_KEY``, or on the server's machine in its file ``admin.key``.
    tenant: where an operator's calls act, except queries; by default in the key's own tenant.
    timeout: seconds to wait for one response. retry: when calls are repeated; `Retry(attempts=1)` for never.
    ca: a file with certificates (PEM), one of which the server's must come from; by default that of
    ``SSL_CERT_FILE``, or those of well-known authorities. A context of `ssl` may also have a certificate to
    show. Raises ValueError when ``address`` is not the address of a server, OSError if ``ca`` is not usable.
    """
