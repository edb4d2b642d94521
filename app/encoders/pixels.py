"""The bytes of a picture as pixels, by rules with a name: ``pixels.1``. Only child processes import this.

1. The decoder is that of the format which the first bytes tell; no other one is ever started.
2. A JPEG is decoded at the smallest scale of its transform that leaves four times the wanted size.
3. Of 16 bits the high byte counts; CMYK becomes RGB by the plain formula; colour profiles are ignored.
4. Transparent parts are laid over white.
5. The orientation of EXIF is applied, before the picture is scaled.
6. It is stretched to the square, or the square is cut from its centre; by bilinear interpolation for the
   built-in encoders and bicubic for others, after a reduction by whole numbers (reducing_gap 2).
"""

from __future__ import annotations

import io
import warnings
from typing import Final

import numpy as np
import PIL
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageFile, JpegImagePlugin, PngImagePlugin, TiffImagePlugin, WebPImagePlugin

from app.encoders.checks import check_picture
from app.encoders.faults import PictureFault

_CLASSES: Final[dict[str, type[ImageFile.ImageFile]]] = {
    "jpeg": JpegImagePlugin.JpegImageFile,
    "png": PngImagePlugin.PngImageFile,
    "webp": WebPImagePlugin.WebPImageFile,
}
_READERS_OF_EXIF: Final = (TiffImagePlugin, ExifTags)
"""Modules that Pillow loads when the first picture has EXIF, which would be too late in a child."""
_ORIENTATION: Final = 0x0112
_TURNS: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_CENTRE: Final = 0.875
"""Part of the shorter side that a square from the centre keeps."""
_DRAFT: Final = 4


def decode(data: bytes, side: int, *, crop: bool = False, bicubic: bool = False) -> NDArray[np.uint8]:
    """The pixels of a picture as a square of ``side`` × ``side`` × 3.

    Raises PictureFault, of which the code is image_too_costly if the memory of this process is not enough.
    """
    kind = check_picture(data).format
    stream = io.BytesIO(data)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _square(_upright(_CLASSES[kind](stream), side), side, crop=crop, bicubic=bicubic)
    except MemoryError:
        text = "Decoding the picture takes too much memory. Send a smaller one: it is scaled down anyway."
        raise PictureFault("image_too_costly", text) from None
    except ImportError:
        # The process had to load all modules before it gave up the right to open files.
        raise
    except PictureFault:
        raise
    except Exception as error:  # noqa: BLE001 - a decoder of hostile bytes raises anything
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        text = f"The {kind} cannot be decoded, near byte {stream.tell()}: {reason}."
        raise PictureFault("broken_image", text) from None


def _upright(picture: ImageFile.ImageFile, side: int) -> Image.Image:
    if getattr(picture, "n_frames", 1) != 1:
        raise PictureFault("animated_image", "The picture is animated; send one of its pictures.")
    picture.draft("RGB", (_DRAFT * side, _DRAFT * side))
    orientation = picture.getexif().get(_ORIENTATION, 1)
    image = _rgb(picture)
    turn = _TURNS.get(orientation) if isinstance(orientation, int) else None
    return image if turn is None else image.transpose(turn)


def _rgb(picture: Image.Image) -> Image.Image:
    picture.load()
    if picture.mode.startswith("I"):
        values = np.asarray(picture)
        grey = (values >> 8 if values.dtype.itemsize > 1 else values).astype(np.uint8)
        clear = picture.info.get("transparency")
        if isinstance(clear, int):
            grey = np.where(values == clear, np.uint8(255), grey)
        return Image.fromarray(grey).convert("RGB")
    if picture.mode in {"RGBA", "LA", "PA", "La", "RGBa"} or "transparency" in picture.info:
        picture = picture.convert("RGBA")
        white = Image.new("RGB", picture.size, (255, 255, 255))
        white.paste(picture, mask=picture.getchannel("A"))
        return white
    return picture.convert("RGB")


def _square(image: Image.Image, side: int, *, crop: bool, bicubic: bool) -> NDArray[np.uint8]:
    box = None
    if crop:
        width, height = image.size
        kept = _CENTRE * min(width, height)
        left, top = (width - kept) / 2, (height - kept) / 2
        box = (left, top, left + kept, top + kept)
    method = Image.Resampling.BICUBIC if bicubic else Image.Resampling.BILINEAR
    return np.asarray(image.resize((side, side), method, box=box, reducing_gap=2.0))


def library_version() -> str:
    """Name and version of the library that decodes."""
    return f"Pillow {PIL.__version__}"
