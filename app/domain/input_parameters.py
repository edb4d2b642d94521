"""What a job may specify about the columns of a data set: their kinds, and how they are encoded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, StringConstraints

from app.domain.names import MODEL_PART
from app.domain.parameter_fields import SpecModel
from core.data.schema import MAX_NULLS, Kind, KindSpec
from core.encoding.rules import ColumnRules
from core.errors import InvalidProblem
from core.packed.encoded_columns import MAX_COLUMNS
from core.packed.terms import Family

AUTO: Final = "auto"
MAX_COMPARED_ENCODERS: Final = 8
"""Most encoders that are compared for one column."""
_ENCODER: Final = rf"{MODEL_PART}(@[0-9a-f]{{64}}|@[a-z0-9.]{{1,20}})?"


def _checked_kind(text: str) -> str:
    try:
        KindSpec.parse(text)
    except InvalidProblem as error:
        raise ValueError(str(error)) from error
    return text


class ColumnParameters(SpecModel):
    """What is said of one column."""

    kind: Annotated[str, StringConstraints(max_length=100), AfterValidator(_checked_kind)] | None = Field(
        None,
        description="number (number:$1,234.5 for numbers that are written so), boolean, category, date"
        " (date:%d/%m/%Y for other dates than those of ISO 8601), text, vector, image or ignore; null: as the"
        " data set has it.",
        json_schema_extra={"pattern": f"^({'|'.join(Kind)}|(date|number):.+)$"},
    )
    nulls: tuple[Annotated[str, StringConstraints(min_length=1, max_length=400)], ...] = Field(
        (),
        max_length=MAX_NULLS,
        description="Texts that stand for a missing value in a column of numbers or dates whose kind is given"
        " here, too, besides those that do in every column.",
    )
    missing: Literal["accept", "refuse"] | None = Field(
        None, description="Whether a row may have no value; null: as on_missing says."
    )
    unseen: Literal["accept", "refuse"] = Field(
        "accept", description="Whether a category may have a value that no training row had."
    )
    terms: tuple[Family, ...] | None = Field(
        None,
        min_length=1,
        max_length=5,
        description="What counts in a text; null: words, pairs of words, and, in texts of fewer than 50 words"
        " on average, three letters in a row.",
        json_schema_extra={"uniqueItems": True},
    )

    encoder: str = Field(
        AUTO,
        max_length=1400,
        pattern=rf"^{_ENCODER}(,{_ENCODER}){{0,{MAX_COMPARED_ENCODERS - 1}}}$",
        description="What makes numbers of pictures. hlc: edges, textures and colours; rnd: fixed random"
        " kernels, for signs and drawn characters; or the name of an own encoder. If several names are given,"
        " with commas between them, they are compared on the training rows, each left out once, and the best"
        " one is taken. auto: hlc,rnd.",
    )

    @property
    def rules(self) -> ColumnRules:
        """These settings as the type of core."""
        families = None if self.terms is None else tuple(dict.fromkeys(self.terms))
        missing = None if self.missing is None else self.missing == "accept"
        return ColumnRules(missing, self.unseen == "refuse", families)


class InputParameters(SpecModel):
    """What is said of the columns of records."""

    columns: dict[Annotated[str, StringConstraints(min_length=1, max_length=400)], ColumnParameters] = Field(
        {}, max_length=MAX_COLUMNS, description="Of some columns, by name."
    )
    extra: Literal["refuse", "ignore"] = Field(
        "refuse", description="Whether a record may have columns that the data set does not have."
    )

    on_missing: Literal["answer", "refuse"] = Field(
        "answer",
        description="Of a query without a value that every training row had: answer by what its other columns"
        " say, and name the column, or refuse. It takes a second column.",
    )

    @property
    def kinds(self) -> dict[str, KindSpec]:
        """The specified kinds, by the name of the column."""
        return {
            name: replace(KindSpec.parse(one.kind), nulls=one.nulls)
            for name, one in self.columns.items()
            if one.kind is not None
        }

    @property
    def encoders(self) -> dict[str, tuple[str, ...]]:
        """The encoders to compare, as ``NAME`` or ``NAME@IDENTITY``, of columns that do not leave it open."""
        return {
            name: tuple(dict.fromkeys(one.encoder.split(",")))
            for name, one in self.columns.items()
            if one.encoder != AUTO
        }

    @property
    def encoder_names(self) -> dict[str, tuple[str, ...]]:
        """The names in ``encoders``."""
        return {
            column: tuple(reference.partition("@")[0] for reference in references)
            for column, references in self.encoders.items()
        }

    def with_encoders(self, pinned: Callable[[str], str]) -> InputParameters:
        """With other references to encoders: each is replaced by what ``pinned`` makes of it."""
        columns = {
            name: self.columns[name].model_copy(update={"encoder": ",".join(map(pinned, references))})
            for name, references in self.encoders.items()
        }
        return self.model_copy(update={"columns": {**self.columns, **columns}}) if columns else self

    @property
    def rules(self) -> dict[str, ColumnRules]:
        """How columns are encoded, by name."""
        return {name: one.rules for name, one in self.columns.items()}
