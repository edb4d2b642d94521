"""Access to a running server for the commands: the client, with its errors as CommandFailed."""

from __future__ import annotations

import functools
import inspect
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import Parameter
from typing import Annotated, Any, Final, cast

import typer

from app.commands.output import Answer, CommandFailed, JsonOption, say
from stms_client import Client, Problem, Retry, StmsError, Unreachable
from stms_client.errors import fault_line

DEFAULT_SERVER = "http://127.0.0.1:8000"

_KEY_HINT = (
    "Set STMS_API_KEY; on the server's machine, set STMS_DATA_DIR to its data folder, which holds admin.key. "
    "If that file is lost: `stms keys create NAME --scope operator`."
)

ServerOption = Annotated[str, typer.Option("--server", envvar="STMS_URL", help="Address of the server.")]
AllowSchemaChange = Annotated[
    bool,
    typer.Option(
        "--allow-schema-change",
        help="Move the alias also where its new version refuses questions that the present one answers.",
    ),
]
KeyOption = Annotated[
    str | None,
    typer.Option(
        "--api-key",
        envvar="STMS_API_KEY",
        help="API key. Other users see an option in the list of processes: prefer the variable, or on the "
        "server's machine the file admin.key, which is found in STMS_DATA_DIR or ./stms-data.",
    ),
]


JobArgument = Annotated[str, typer.Argument(help="Id of the job, from `stms jobs list`.")]
TenantOption = Annotated[
    str | None,
    typer.Option(
        "--tenant",
        envvar="STMS_TENANT",
        help="For operators: the tenant to act in.",
        show_default="that of the key; lists show all tenants",
    ),
]


_OPTIONS: Final = {"server": (ServerOption, DEFAULT_SERVER), "api_key": (KeyOption, None)}
_TENANT: Final = {"tenant": (TenantOption, None)}
_JSON: Final = {"as_json": (JsonOption, False)}


def asks_server(
    *, tenant: bool = True
) -> Callable[[Callable[..., Answer | str | None]], Callable[..., None]]:
    """Gives a command the options that name a server, in place of its first parameter, a `Client`.

    Prints what the command returns: a text as a line, an `Answer` also as JSON, with an option for that.
    tenant: whether there is an option for it.
    """

    def decorate(command: Callable[..., Answer | str | None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        of_server = _OPTIONS | (_TENANT if tenant else {})
        of_output = _JSON if signature.return_annotation is Answer else {}

        @functools.wraps(command)
        def call(**arguments: Any) -> None:
            as_json = arguments.pop("as_json", False)
            with connect(*(arguments.pop(name) for name in of_server)) as client:
                answer = command(client, **arguments)
            if isinstance(answer, Answer):
                answer.print(as_json)
                if answer.exit_code:
                    raise typer.Exit(answer.exit_code)
            elif answer is not None:
                say(answer)

        _, *own = signature.parameters.values()
        added = [
            Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=option)
            for name, (option, default) in (of_output | of_server).items()
        ]
        own = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in own]
        # The options of a command are those of its signature.
        call.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
        return call

    return decorate


class ServerProblem(CommandFailed):
    """The server answered with a problem document: code is its stable error code, faults name rows."""

    def __init__(self, problem: Problem) -> None:
        self.status, self.code, self.faults = problem.status, problem.code, problem.faults
        hints = [_KEY_HINT] if problem.code == "key_required" else []
        super().__init__(problem.summary, [*map(fault_line, problem.further_faults), *hints])


class _Calls:
    """Stands for a client, and converts the errors of its methods to CommandFailed, also while they yield."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        if not callable(method):
            return method

        def call(*arguments: Any, **options: Any) -> Any:
            with client_errors():
                answer = method(*arguments, **options)
            return _converted(answer) if isinstance(answer, Iterator) else answer

        return call


def _converted(items: Iterator[Any]) -> Iterator[Any]:
    with client_errors():
        yield from items


@contextmanager
def connect(
    address: str, api_key: str | None, tenant: str | None = None, *, ca: ssl.SSLContext | None = None
) -> Iterator[Client]:
    """A client of the server at ``address``, with an API key if there is one, whose errors are CommandFailed.

    tenant: where an operator acts; by default in the key's own tenant. ca: as of `Client`.
    """
    try:
        # No automatic retries: the user decides whether to try again.
        client = Client(
            address, api_key, tenant=tenant, retry=Retry(attempts=1), user_agent="stms-cli", ca=ca
        )
    except ValueError as error:
        raise CommandFailed(str(error)) from error
    with client:
        yield cast(Client, _Calls(client))


@contextmanager
def client_errors() -> Iterator[None]:
    """Convert errors of the client to CommandFailed."""
    try:
        yield
    except Problem as problem:
        raise ServerProblem(problem) from problem
    except Unreachable as error:
        hint = "Start one with `stms serve`, or use another with --server or STMS_URL."
        raise CommandFailed(str(error), [] if error.connected else [hint]) from error
    except StmsError as error:
        raise CommandFailed(str(error)) from error
    except UnicodeEncodeError as error:
        raise CommandFailed(f"The request has text that cannot be sent: {error.reason}.") from error
