"""`stms classes`: add a class from a few examples, give classes other names, and take classes away."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from app.commands.labels import new_name
from app.commands.output import Answer, CommandFailed
from app.commands.remote import asks_server
from app.domain.shown_figures import share
from stms_client import Client
from stms_client.documents import Version

commands = typer.Typer(no_args_is_help=True)

ModelArgument = Annotated[str, typer.Argument(help="Name of the model.")]
BaseOption = Annotated[str, typer.Option("--base", help="Number of a version, or an alias.")]


@commands.command()
@asks_server()
def add(
    client: Client,
    model: ModelArgument,
    name: Annotated[str, typer.Argument(help="Name of the new class.")],
    file: Annotated[
        Path | None,
        typer.Argument(exists=True, dir_okay=False, help="JSON or JSON Lines with 5 to 10 000 examples."),
    ] = None,
    dataset: Annotated[
        str | None, typer.Option("--dataset", help="A data set all rows of which are examples.")
    ] = None,
    max_false_yes: Annotated[
        float, typer.Option("--max-fpr", help="Share of the rows of other classes that may get a yes.")
    ] = 0.01,
    confidence: Annotated[
        float | None, typer.Option("--confidence", help="That this student keeps the share, such as 0.95.")
    ] = None,
    alias: Annotated[str | None, typer.Option("--alias", help="Alias to move to the new version.")] = None,
    base: BaseOption = "latest",
) -> Answer:
    """Add a class from a few examples in seconds; all other students stay as they are.

    The file has one example a line, or a list of them: lists of numbers, records, or texts in quotes.

    Examples:

      stms classes add faces suspect examples.jsonl --max-fpr 0.001

      stms classes add letters Ä --dataset ds_… --alias production
    """
    if (file is None) == (dataset is None):
        raise CommandFailed("Give a file with examples, or --dataset.")
    examples = None if file is None else _examples(file)
    texts = examples if examples and all(isinstance(one, str) for one in examples) else None
    job = client.add_class(
        model,
        name,
        None if texts is not None else examples,
        texts=texts,
        dataset_id=dataset,
        base=base,
        max_false_positive_rate=max_false_yes,
        confidence=confidence,
        alias=alias,
    ).wait()
    found = job["provenance"]["addition"]
    recall = found["recall"]
    wrong = found["false_positives"]
    held_out = (
        f"Left out, {found['accepted']} of {found['of']} examples are accepted (recall"
        f" {share(recall['low'])} to {share(recall['high'])}), and {wrong['accepted']} of"
        f" {wrong['negatives']} rows of other classes."
    )
    text = f"{escape(model)} version {job.version} has the class {escape(name)}."
    return Answer(dict(job), text, held_out, *(escape(one["message"]) for one in job["warnings"]))


@commands.command()
@asks_server()
def rename(
    client: Client,
    model: ModelArgument,
    names: Annotated[list[str], typer.Argument(metavar="OLD=NEW...", help="A class and its new name.")],
    base: BaseOption = "latest",
) -> Answer:
    """Publish a version whose classes have other names, without training. No alias is moved.

    Example:

      stms classes rename pets cat=Cat dog=Dog
    """
    pairs = dict(map(new_name, names))
    return _published(model, client.change_classes(model, rename=pairs, base=base))


@commands.command()
@asks_server()
def remove(
    client: Client,
    model: ModelArgument,
    names: Annotated[list[str], typer.Argument(metavar="CLASS...", help="A class to take away.")],
    base: BaseOption = "latest",
) -> Answer:
    """Publish a version without some of its classes, without training. No alias is moved.

    An alias moves to it only if that is said, since questions about these classes are then refused.

    Example:

      stms classes remove faces left
    """
    return _published(model, client.change_classes(model, remove=names, base=base))


def _examples(file: Path) -> list[Any]:
    text = file.read_text("utf-8")
    try:
        try:
            found = json.loads(text)
        except json.JSONDecodeError:
            found = [json.loads(line) for line in text.splitlines() if line.strip()]
    except ValueError as error:
        raise CommandFailed(f"{file} is neither JSON nor JSON Lines: {error}") from error
    if not isinstance(found, list):
        raise CommandFailed(f"{file} has to hold a list of examples, or one a line.")
    return found


def _published(model: str, version: Version) -> Answer:
    text = (
        f"{escape(model)} version {version['version']} is published with {version['class_count']} classes;"
        " `stms models alias` points an alias to it."
    )
    return Answer(version, text)


@commands.command()
@asks_server()
def merge(
    client: Client,
    model: ModelArgument,
    name: Annotated[str, typer.Argument(help="Name of the class that takes the place of the others.")],
    classes: Annotated[list[str], typer.Argument(metavar="CLASS...", help="Two classes or more.")],
    base: BaseOption = "latest",
    alias: Annotated[str | None, typer.Option("--alias", help="Alias to move to the new version.")] = None,
) -> Answer:
    """Make one class of some. A job trains its student with the rows of all of them; the others stay.

    Example:  stms classes merge pets pet cat dog
    """
    job = client.merge_classes(model, name, classes, base=base, alias=alias)
    return Answer(dict(job), f"Job {job.id} trains {name}: stms jobs watch {job.id}")
