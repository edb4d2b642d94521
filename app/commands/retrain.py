"""`stms models retrain`: train a version again."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from app.commands.hyperparameters import ParamsOption, SetOption, given_hyperparameters
from app.commands.output import JsonOption, say
from app.commands.remote import DEFAULT_SERVER, KeyOption, ServerOption, TenantOption, connect
from app.commands.train import followed, print_job
from stms_client import Client, Job


def retrain(
    version: Annotated[
        str,
        typer.Argument(
            metavar="MODEL[@ALIAS|@N]", help="The version; of a model alone that of its alias latest."
        ),
    ],
    dataset: Annotated[
        str | None,
        typer.Argument(
            help="Id of a data set, from `stms datasets upload`.",
            show_default="the one that the version was trained on",
        ),
    ] = None,
    assignments: SetOption = [],  # noqa: B006
    params: ParamsOption = None,
    alias: Annotated[str | None, typer.Option("--alias", help="Alias to move to the new version.")] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--class",
            help="Train the student of this class alone; changed: those of classes whose rows have changed."
            " The others stay as they are. Repeatable.",
        ),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Follow the job to its end.")] = True,
    as_json: JsonOption = False,
    server: ServerOption = DEFAULT_SERVER,
    api_key: KeyOption = None,
    tenant: TenantOption = None,
) -> None:
    """Train a version again, as its job did, on more rows or with some other hyper-parameters.

    The new version keeps the columns and their kinds. No alias moves to it, unless --alias names one. Given
    thresholds, and classes that were added, renamed or removed without a training, are not repeated, which
    warnings say. The exit code is 0 if the job succeeded, otherwise 1.

    Examples:

      stms models retrain letters@production ds_0123 --alias candidate

      stms models retrain letters@3 --set student.C=1e4
    """
    model, _, base = version.partition("@")
    hyperparameters = given_hyperparameters(assignments, params)
    with connect(server, api_key, tenant) as client:
        job = client.retrain(
            model,
            dataset,
            base=base or "latest",
            hyperparameters=hyperparameters,
            alias=alias,
            classes="all" if not only else "changed" if only == ["changed"] else only,
        )
        if wait:
            job = followed(client, job.id)
        print_job(client, job, wait, as_json)
        if wait and not as_json and (comparison := _comparison(client, job)):
            say(f"Compare both:  {comparison}")


def _comparison(client: Client, job: Job) -> str | None:
    """The command that compares the new version with the one before, if an alias points to that."""
    before = job["provenance"]["retrained_from"]["version"]
    aliases = [one["alias"] for one in client.model(job.model)["aliases"] if one["version"] == before]
    if job.version is None or not aliases:
        return None
    baseline = f"{job.model}@{'production' if 'production' in aliases else aliases[0]}"
    command = ["evaluate", f"{job.model}@{job.version}", "--dataset", job["dataset_id"]]
    return shlex.join(["stms", *command, "--baseline", baseline])
