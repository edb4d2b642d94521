"""What can be wrong with a picture, and what an installation without the libraries of pictures says."""

from __future__ import annotations

from importlib.util import find_spec
from types import MappingProxyType
from typing import Final

from app.domain.errors import InvalidRequest, ServiceError, TooLarge, UnsupportedFormat

STATUSES: Final = MappingProxyType(
    {
        "unsupported_image": 415,
        "broken_image": 400,
        "image_too_small": 400,
        "image_too_large": 413,
        "too_many_pixels": 413,
        "too_many_scans": 400,
        "animated_image": 400,
        "image_too_costly": 413,
    }
)
"""Every code of a faulty picture, with the status of HTTP."""

_KINDS: Final[dict[int, type[ServiceError]]] = {400: InvalidRequest, 413: TooLarge, 415: UnsupportedFormat}


class PictureFault(Exception):
    """A picture that is not encoded. code: one of `STATUSES`. message: a sentence for people."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    @property
    def status(self) -> int:
        """The status of HTTP."""
        return STATUSES[self.code]

    def as_error(self) -> ServiceError:
        """The same as an error of the service."""
        return _KINDS[self.status](self.message, code=self.code)


class EncoderFailed(Exception):
    """The encoder does not do its work, whatever the picture. code and message: as of `PictureFault`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message


def require_images() -> None:
    """Raise InvalidRequest with the code images_not_installed if the library of pictures is missing."""
    _require("PIL", "images_not_installed", "Pictures need Pillow", "images")


def require_onnx() -> None:
    """Raise InvalidRequest with the code encoders_not_installed if the library of ONNX files is missing."""
    require_images()
    _require("onnxruntime", "encoders_not_installed", "Own encoders need onnxruntime", "encoders")


def _require(module: str, code: str, need: str, extra: str) -> None:
    if find_spec(module) is None:
        text = f"{need}, which this server does not have. Install it with: pip install 'stms[{extra}]'"
        raise InvalidRequest(text, code=code)
