"""How a column of pictures is encoded: by vectors, which somebody else has made of its pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from core.data.schema import Kind
from core.data.table import Cells, PictureCells
from core.packed.codec import Arrays, Header
from core.packed.encoded_columns import ColumnEncoder, Floats, described


@final
@dataclass(frozen=True, slots=True, eq=False)
class EmbeddedColumn(ColumnEncoder):
    """Pictures by the vectors that an encoder makes of them; a value is such a vector, never a picture.

    encoder: digest of the encoder. encoder_name: what people call it. pixels: how pictures become pixels,
    such as ``pixels.1``. centre, scale: (w,), the vector v becomes (v − centre) · scale, so that all its
    numbers together have a variance of about 1, as one other column has. A gap becomes the centre.
    """

    kind: ClassVar[Kind] = Kind.IMAGE
    name: str
    required: bool
    encoder: str
    encoder_name: str
    pixels: str
    centre: Floats
    scale: Floats
    marks_gaps: bool
    fills: bool = False

    @property
    def vector_width(self) -> int:
        """Numbers of a vector, w."""
        return len(self.centre)

    @property
    def width(self) -> int:
        return len(self.centre) + self.marks_gaps

    @property
    def labels(self) -> tuple[str, ...]:
        return (*map(str, range(len(self.centre))), *(["missing"] if self.marks_gaps else ()))

    def checked(self, value: Any) -> list[float]:
        wanted = len(self.centre)
        otherwise = (
            f"must be a vector of {wanted} numbers of the encoder {self.encoder_name}, not"
            f" {described(value)}; a server makes it of a picture"
        )
        return self._checked_vector(value, wanted, otherwise)

    def row(self, value: list[float] | None) -> list[float]:
        if value is None:
            numbers = [0.0] * len(self.centre)
        else:
            numbers = ((np.array(value, dtype=np.float64) - self.centre) * self.scale).tolist()
        return [*numbers, float(value is None)] if self.marks_gaps else numbers

    def usual(self, means: Floats) -> list[float]:
        del means
        return [0.0] * self.width

    def fill(self, cells: Cells, out: Floats) -> None:
        assert isinstance(cells, PictureCells)  # noqa: S101 - the caller has converted them
        vectors, w = cells.vectors.get(self.encoder), len(self.centre)
        if vectors is None or vectors.shape[1:] != (w,):
            message = f"The pictures have no vectors of the encoder {self.encoder_name}."
            raise self._fault("not_encoded", message)
        known = np.flatnonzero(~cells.is_gap)
        out[known, :w] = (vectors[cells.codes[known]].astype(np.float64) - self.centre) * self.scale
        if self.marks_gaps:
            out[:, w] = cells.is_gap

    def header(self) -> Header:
        return {
            "required": self.required,
            "marks_gaps": self.marks_gaps,
            "encoder": self.encoder,
            "encoder_name": self.encoder_name,
            "pixels": self.pixels,
        }

    def arrays(self) -> Arrays:
        return {"centre": self.centre, "scale": self.scale}
