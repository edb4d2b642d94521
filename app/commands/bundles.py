"""`stms bundle`: versions of models as files, which another server imports."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from app.commands.models import published
from app.commands.output import Answer, CommandFailed, download_progress, upload_progress
from app.commands.remote import AllowSchemaChange, asks_server
from app.domain import bundle
from stms_client import Client

commands = typer.Typer(no_args_is_help=True)


@commands.command("export")
@asks_server()
def export(
    client: Client,
    model: Annotated[str, typer.Argument(help="Model, MODEL@ALIAS or MODEL@NUMBER.")],
    file: Annotated[Path, typer.Argument(help="Tar file to write, such as letters.tar.")],
    classes: Annotated[
        list[str] | None,
        typer.Option("--class", help="Only this class; repeat it for more.", show_default="all"),
    ] = None,
    teacher: Annotated[
        bool, typer.Option("--teacher/--no-teacher", help="Whether the file has the teacher.")
    ] = True,
) -> Answer:
    """Write one version to a tar file: its students, teacher, encoder and metrics.

    Example:  stms bundle export letters@production letters.tar --class A --no-teacher
    """
    name, _, version = model.partition("@")
    with download_progress(file) as progress, _written(file):
        size = client.export_bundle(
            name,
            file,
            version=version or "latest",
            classes=classes or None,
            teacher=teacher,
            progress=progress,
        )
    text = f"{file}: {size} bytes. `stms bundle import {file}` publishes it on another server."
    return Answer({"file": str(file), "bytes": size}, text)


@commands.command("onnx")
@asks_server()
def onnx(
    client: Client,
    model: Annotated[str, typer.Argument(help="Model, MODEL@ALIAS or MODEL@NUMBER.")],
    label: Annotated[str, typer.Argument(metavar="CLASS", help="Class of the student.")],
    file: Annotated[Path, typer.Argument(help="File to write, such as letters-A.onnx.")],
) -> Answer:
    """Write the student of one class as an ONNX model, which other runtimes evaluate.

    Example:  stms bundle onnx letters@production A letters-A.onnx
    """
    name, _, version = model.partition("@")
    with _written(file):
        size = client.export_onnx(name, label, file, version=version or "latest")
    return Answer({"file": str(file), "bytes": size}, f"{file}: {size} bytes.")


@commands.command("import")
@asks_server()
def import_(
    client: Client,
    file: Annotated[
        Path,
        typer.Argument(exists=True, readable=True, help="The tar file, or the folder it was unpacked to."),
    ],
    model: Annotated[
        str | None, typer.Option("--model", help="Model that gets the version; by default its own name.")
    ] = None,
    alias: Annotated[
        str, typer.Option("--alias", help="Alias to move to the new version; '' for none.")
    ] = "latest",
    allow_older: Annotated[
        bool, typer.Option("--allow-older", help="Also import an older version than one of the same origin.")
    ] = False,
    allow_schema_change: AllowSchemaChange = False,
) -> Answer:
    """Publish the version in a bundle as the next version of a model.

    Example:  stms bundle import letters.tar --alias staging
    """
    with _packed(file) as tar, upload_progress(tar) as progress:
        version = client.import_bundle(
            tar,
            model=model,
            alias=alias,
            allow_older=allow_older,
            allow_schema_change=allow_schema_change,
            progress=progress,
        )
    return Answer(version, *published(version, alias, "bundle"))


@commands.command("sign")
def sign(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="The tar file; it is changed.")],
    signature: Annotated[
        Path,
        typer.Argument(exists=True, dir_okay=False, help="Signature of its folder by OpenSSF model signing."),
    ],
) -> None:
    """Put a signature into the tar file of a bundle, for servers that import signed ones only.

    The signature is made by `model_signing sign key`, see the page about bundles.

    Example:  stms bundle sign letters.tar letters.sig
    """
    try:
        with file.open("r+b") as opened:
            bundle.attach(opened, signature.read_bytes())
    except (OSError, ValueError) as error:
        raise CommandFailed(f"{file} cannot be signed: {error}.") from error


@contextmanager
def _written(file: Path) -> Iterator[None]:
    """Turns what the disk says of a file into a failure of the command."""
    try:
        yield
    except OSError as error:
        raise CommandFailed(f"{file} cannot be written: {error.strerror}.") from error


@contextmanager
def _packed(path: Path) -> Iterator[Path]:
    """The bundle in a file, or that of a folder, which is packed into a temporary file."""
    if not path.is_dir():
        yield path
        return
    with TemporaryDirectory() as folder:
        packed = Path(folder) / f"{path.resolve().name}.tar"
        try:
            with packed.open("wb") as output:
                for piece in bundle.pack(path):
                    output.write(piece)
        except (OSError, ValueError) as error:
            raise CommandFailed(f"{path} is not the folder of a bundle: {error}.") from error
        yield packed
