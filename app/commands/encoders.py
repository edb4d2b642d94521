"""`stms encoders`: own encoders of pictures."""

from __future__ import annotations

from typing import Annotated

import typer

from app.commands.methods import made
from app.commands.output import field, moment
from stms_client import Client

commands = typer.Typer(no_args_is_help=True)

commands.command("add")(
    made(
        Client.add_encoder,
        example="stms encoders add my.onnx --input image:224x224:rgb:imagenet",
        says="Encoder {answer[name]}@{answer[digest]} gives {answer[width]} numbers.",
        options={
            "expects": Annotated[
                str,
                typer.Option("--input", help="image:SIDExSIDE:rgb|bgr:SCALING, with :crop for the centre."),
            ]
        },
    )
)
commands.command("list")(
    made(
        Client.own_encoders,
        columns=[*map(field, ("name", "digest", "kind", "width", "size", "licence")), moment("created_at")],
        empty="There are no own encoders.",
    )
)
commands.command("show")(made(Client.own_encoder))
commands.command("delete")(made(Client.delete_encoder, says="Encoder {name} is deleted."))
