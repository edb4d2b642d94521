"""What an encoder is: the process that turns the bytes of a picture or a text into a vector of fixed width.

Two encoders of pictures need no file. Both are NumPy arithmetic on the decoded pixels:

hlc  histograms of oriented gradients, local binary patterns, and colours of a 4 × 4 grid
rnd  300 fixed random kernels of 6 × 6 pixels: their share of positive answers and their maxima by quadrant
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

PIXELS: Final = "pixels.1"
"""The rules by which pictures become pixels, see `app.encoders.pixels`; others have another name."""


@dataclass(frozen=True, slots=True)
class EncoderSpecification:
    """An encoder, as a trained version stores it.

    name: what people call it. digest: of its file, or of the code of a built-in one, such as ``hlc.1``.
    width: numbers (float32) of a vector. kind: what it encodes. pixels: the rules of decoding. probe: digest
    (SHA-256, hexadecimal) of the vectors that the pictures of `app.encoders.probes` have; a child that
    computes others is not asked. An empty probe is not compared.
    side: width and height in pixels of the square that an own encoder gets; 0 for built-in ones.
    order, scaling: how its pixels become numbers, see `app.encoders.picture_input`. crop: whether the square
    is cut from the centre; otherwise the picture is stretched. output: name of the output of an ONNX file.
    size: bytes of its file.
    """

    name: str
    digest: str
    width: int
    kind: Literal["image", "text"] = "image"
    pixels: str = PIXELS
    probe: str = ""
    side: int = 0
    order: str = "rgb"
    scaling: str = ""
    crop: bool = False
    output: str = ""
    size: int = 0

    @property
    def is_built_in(self) -> bool:
        """Whether it needs no file."""
        return self.size == 0

    @property
    def identity(self) -> str:
        """What tells encoders with different vectors apart: of a built-in one its digest, of an own one the
        SHA-256 (hexadecimal) of its file, input and output, since one file may be added with several inputs.
        """
        if self.is_built_in:
            return self.digest
        said = [self.digest, self.pixels, self.side, self.order, self.scaling, self.crop, self.output]
        return hashlib.sha256(json.dumps(said).encode()).hexdigest()


_HLC_PROBE: Final = "a814afd2212ffb4cac05683a8331692d3c9816e3b67b0942a50a38acaf75c15d"
_RND_PROBE: Final = "bdccf8c06e188e06a836e50cd05f83b3be2ca7685e419a222bcbbf6952af9316"
HLC: Final = EncoderSpecification("hlc", "hlc.1", 1764 + 944 + 608, probe=_HLC_PROBE)
RND: Final = EncoderSpecification("rnd", "rnd.1", 2400, probe=_RND_PROBE)
BUILT_IN: Final[Mapping[str, EncoderSpecification]] = MappingProxyType({"hlc": HLC, "rnd": RND})
