"""Files that people send by mistake: their kinds, and what to send instead. None is unpacked or run.

A kind of file is one line of a table here. All readers, of data sets, of rows without labels, of heads and of
bundles, call `refuse_other` first, so that such a file gives the same message everywhere.
"""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec

from app.domain.errors import UnsupportedFormat
from app.domain.file_formats import ENDINGS

ARRAYS: Final = ".npy"
"""Ending of the members of a ZIP archive of NumPy arrays."""
PICTURES: Final = (
    ".jpg",
    ".jpeg",
    ".png",
    ".webp",
    ".gif",
    ".bmp",
    ".tif",
    ".tiff",
    ".heic",
    ".heif",
    ".avif",
)
"""Endings of pictures in ZIP archives, also of those that are refused by what they hold."""

_SAVE: Final = "Open it in that program and save the table as CSV."
_PICKLE: Final = (
    "a Python pickle, as of pickle, joblib or torch, which is never read",
    "Write its arrays with NumPy's savez, or its frame with to_parquet or to_csv.",
)
_COMPRESSED: Final = "Send it uncompressed: unpack it first"
_ARCHIVE: Final = "Unpack it, and send the one file with the table."
_PANDAS: Final = "Read it and write it as Parquet or CSV; in pandas: {}(FILE).to_parquet('data.parquet')."
_NUMPY: Final = "Write its arrays as .npz: np.savez(FILE, X=X, y=y)."
_MEDIA: Final = "Send a table of numbers or texts, one row for each example."
_JSON_LINES: Final = (
    "Send JSON Lines, one object a line: in pandas df.to_json(FILE, orient='records', lines=True),"
    " with jq: jq -c '.[]' FILE."
)
_COLUMNS_OF_JSON: Final = (
    "JSON of columns, and not one object a line",
    "Send JSON Lines, in pandas: df.to_json(FILE, orient='records', lines=True).",
)
_AGAIN: Final = "Look at it with a text editor, and send the file itself."
_OFFICE_97: Final = ("an Excel workbook (.xls) or other document of older Office programs", _SAVE)

_MAGIC: Final[Mapping[bytes, tuple[str, str]]] = {
    b"BZh91AY&SY": ("compressed by bzip2", f"{_COMPRESSED} (bunzip2 FILE)."),
    b"\xfd7zXZ": ("compressed by xz", f"{_COMPRESSED} (unxz FILE)."),
    b"\x28\xb5\x2f\xfd": ("compressed by zstd", f"{_COMPRESSED} (unzstd FILE)."),
    b"\x04\x22\x4d\x18": ("compressed by lz4", f"{_COMPRESSED} (unlz4 FILE)."),
    b"\x1f\x9d": ("compressed by compress (.Z)", f"{_COMPRESSED} (uncompress FILE)."),
    b"x\x01": ("compressed by zlib, as joblib writes pickles", "Write its arrays with NumPy's savez."),
    b"x\x9c": ("compressed by zlib, as joblib writes pickles", "Write its arrays with NumPy's savez."),
    b"x\xda": ("compressed by zlib, as joblib writes pickles", "Write its arrays with NumPy's savez."),
    b"7z\xbc\xaf\x27\x1c": ("a 7z archive", _ARCHIVE),
    b"Rar!\x1a\x07": ("a RAR archive", _ARCHIVE),
    b"\x80\x02": _PICKLE,
    b"\x80\x03": _PICKLE,
    b"\x80\x04": _PICKLE,
    b"\x80\x05": _PICKLE,
    b"\x89HDF\r\n\x1a\n": ("an HDF5 file (.h5, also of Keras and pandas)", _NUMPY),
    b"MATLAB 7.3 MAT-file": ("a MATLAB file (.mat, version 7.3)", _NUMPY),
    b"MATLAB 5.0 MAT-file": ("a MATLAB file (.mat)", f"{_NUMPY} scipy.io.loadmat reads it."),
    b"SQLite format 3\0": (
        "an SQLite database",
        "Export the table as CSV (sqlite3 -header -csv FILE QUERY).",
    ),
    b"Obj\x01": ("an Avro file", "Write its table as Parquet or CSV."),
    b"RDX2\n": ("an R workspace (.RData)", "In R: write.csv(TABLE, 'data.csv', row.names=FALSE)."),
    b"RDX3\n": ("an R workspace (.RData)", "In R: write.csv(TABLE, 'data.csv', row.names=FALSE)."),
    b"X\n\0\0\0": ("an R object (.rds)", "In R: write.csv(readRDS(FILE), 'data.csv', row.names=FALSE)."),
    b"\0" * 12 + b"\xc2\xea\x81\x60": ("a SAS table (.sas7bdat)", _PANDAS.format("pandas.read_sas")),
    b"HEADER RECORD*******": ("a SAS transport file (.xpt)", _PANDAS.format("pandas.read_sas")),
    b"<stata_dta>": ("a Stata table (.dta)", _PANDAS.format("pandas.read_stata")),
    b"$FL2": ("an SPSS table (.sav)", _PANDAS.format("pandas.read_spss")),
    b"$FL3": ("an SPSS table (.zsav)", _PANDAS.format("pandas.read_spss")),
    b"PGDMP": ("a dump of PostgreSQL", "Export the table: \\copy TABLE TO 'data.csv' CSV HEADER."),
    b"\0\x01\0\0Standard ": ("an Access database", _SAVE),
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": _OFFICE_97,
    b"{\\rtf": ("a document in RTF", _SAVE),
    b"%PDF": ("a PDF document", "Tables of PDF are not read: get the table as CSV, and send that."),
    b"%!PS": ("a PostScript document", "Get the table as CSV, and send that."),
    b"\x89PNG": ("a PNG image", _MEDIA),
    b"\xff\xd8\xff": ("a JPEG image", _MEDIA),
    b"GIF87a": ("a GIF image", _MEDIA),
    b"GIF89a": ("a GIF image", _MEDIA),
    b"II*\0": ("a TIFF image", _MEDIA),
    b"MM\0*": ("a TIFF image", _MEDIA),
    b"\xff\xfb": ("an MP3 recording", _MEDIA),
    b"\x7fELF": ("a program (ELF)", _AGAIN),
    b"\xcf\xfa\xed\xfe": ("a program (Mach-O)", _AGAIN),
    b"\xca\xfe\xba\xbe": ("a program (Java or Mach-O)", _AGAIN),
}
"""First bytes of binary files."""
_WITH_NULS: Final = (
    (re.compile(rb"RIFF....WAVE", re.DOTALL), "a WAV recording", _MEDIA),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), "a WebP image", _MEDIA),
    (re.compile(rb"RIFF....AVI ", re.DOTALL), "a video (AVI)", _MEDIA),
    (re.compile(rb"....ftyp(?:heic|avif|mif1)", re.DOTALL), "an image (HEIF)", _MEDIA),
    (re.compile(rb"....ftyp", re.DOTALL), "a video or recording (MP4)", _MEDIA),
    (re.compile(rb"BM.{4}\0{4}", re.DOTALL), "a BMP image", _MEDIA),
    (re.compile(rb".{128}DICM", re.DOTALL), "a DICOM image", _MEDIA),
    (re.compile(rb".{8}DUCK", re.DOTALL), "a DuckDB database", "Export it: COPY TABLE TO 'data.parquet'."),
    (re.compile(rb".{257}ustar", re.DOTALL), "a tar archive", _ARCHIVE),
    (
        re.compile(rb"[\x68-\x73][\x01\x02]\x01\0"),
        "a Stata table (.dta)",
        _PANDAS.format("pandas.read_stata"),
    ),
    (re.compile(rb"MZ"), "a program for Windows", _AGAIN),
    (re.compile(rb"FEA1"), "a Feather file of version 1", _PANDAS.format("pandas.read_feather")),
    (re.compile(rb"ORC"), "an ORC file", _PANDAS.format("pandas.read_orc")),
    (re.compile(rb"ID3"), "an MP3 recording", _MEDIA),
    (re.compile(rb"OggS"), "an Ogg recording", _MEDIA),
    (re.compile(rb"fLaC"), "a FLAC recording", _MEDIA),
    (re.compile(rb"GGUF"), "a language model (GGUF)", _AGAIN),
    (re.compile(rb"bplist"), "a property list of macOS", _AGAIN),
)
"""Beginnings of binary files that have a zero byte."""

_LEVEL: Final = rb"(?:TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|CRITICAL|FATAL)"
_LOG_LINE: Final = re.compile(
    rb"\[?\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d[^ \t;|\"]{0,12}(?: - [\w.]+ -)? [ \[\]:-]*"
    + _LEVEL
    + rb"\b"
    rb"|" + _LEVEL + rb":[\w.]+:"
    rb"|\[?" + _LEVEL + rb"\]? +\[?\d{4}-\d\d-\d\d"
    rb"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S+ \S+: "
    rb"|\S+ \S+ \S+ \[\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4}\] \""
)
_RULE: Final = re.compile(rb"\s*\|?(?:\s*:?-{3,}:?\s*\|)+(?:\s*:?-{3,}:?\s*)?\|?\s*")
_RULE_OF_PROGRAM: Final = re.compile(rb"\s*-+(?:\+-+)+\s*")
_MAIL: Final = (
    rb"(?:Return-Path|Received|Delivered-To|From|To|Subject|Date|MIME-Version|Message-ID|X-[\w-]+):"
)
_POINTER: Final = "Get the file itself first: {}. Then send it."
_RIGHTS: Final = "Fetch the file again, with the rights that it needs."
_SQL: Final = rb"(?>--[^\n]*\n|/\*(?s:.*?)\*/;?|\s)*+"
_SHOWN_TABLE: Final = (
    "a table as a program shows it, with lines between its cells",
    "Write it as CSV (psql: \\copy TABLE TO 'data.csv' CSV HEADER).",
)
_CODE: Final = "Send the table that it makes or reads."

_COMMENTS: Final = rb"(?:#[^\n]*\n|\s)*+"
_TEXTS: Final[tuple[tuple[str, str, tuple[bytes, ...]], ...]] = (
    (
        "a pointer of Git LFS, not the file itself",
        _POINTER.format("git lfs pull"),
        (rb"version https://git-lfs\.github\.com/spec/",),
    ),
    (
        "a pointer of git-annex, not the file itself",
        _POINTER.format("git annex get FILE"),
        (rb"(?:\.\./)*(?:\.git)?/?annex/objects/\S+\s*\Z",),
    ),
    (
        "a pointer of DVC, not the file itself",
        _POINTER.format("dvc pull"),
        (rb"(?:wdir: .*\n|md5: .*\n|frozen: .*\n|deps:\n(?:[ -].*\n)*+)*+outs:[ \t\r]*\n\s*-\s+\w+: ",),
    ),
    (
        "an HTML page{title}, such as a sign-in or error page, not the file itself",
        "Fetch the file again, signed in if need be; save a table of a page as CSV.",
        (
            rb"(?i:(?:<\?xml[^>]*>\s*)?(?><!--(?s:.*?)-->\s*)*+<!doctype\s+html)",
            rb"(?i:(?:<\?xml[^>]*>\s*)?(?><!--(?s:.*?)-->\s*)*+<(?:html|head|body|script|meta|title|table)\b)",
        ),
    ),
    (
        "the error message of a server in XML",
        _RIGHTS,
        (rb"<\?xml[^>]*>\s*<Error>\s*<Code>",),
    ),
    ("an Excel workbook in XML", _SAVE, (rb"<\?xml[^>]*>\s*<\?mso-application[^>]*Excel",)),
    (
        "an XML document",
        "Send its table as CSV, JSON Lines or Parquet.",
        (
            rb"<\?xml\b",
            rb"<!DOCTYPE\b",
            rb"<[A-Za-z_][\w:.-]*(?:\s+[\w:.-]+=\"[^\"]*\")+\s*>\s*<",
            rb"<(?P<root>[A-Za-z_][\w:.-]*)>[ \t\r]*\n\s*<(?s:.*)</(?P=root)>",
        ),
    ),
    (
        "a response of a server with its headers",
        "Fetch it without them (curl without -i).",
        (rb"HTTP/[\d.]+ \d{3}",),
    ),
    (
        "a form (multipart/form-data) that was sent under another content type",
        "Let curl say it (-F file=@FILE, without -H), or send the bare file: --data-binary @FILE.",
        (rb"--[^\r\n]{1,200}\r?\nContent-Disposition: form-data",),
    ),
    (
        "the text {line!r}, and not the file of that name",
        "With curl: --data-binary @FILE, or -F file=@FILE.",
        (rb"(?:\w+=)?@(?!(?i:relation|attribute|data)(?:\s|\Z))[^\s,;]{1,1000}\s*\Z",),
    ),
    (
        "an address, and not the file that is there",
        "Send the file, or let the server fetch it: stms datasets fetch ADDRESS.",
        (rb"(?:https?|s3|gs|ftp|file)://[^\s,;]{1,2000}\s*\Z", rb"data:[\w/+.-]*(?:;[\w=-]+)*,"),
    ),
    (
        "an error message of a program",
        "The command whose output it is failed. Get the file again, look at it, and send it.",
        (
            rb"(?:[^\s:]{1,200}: ){1,3}(?:line \d+: )?[^\n]{0,200}(?:not found|denied)\s*\Z",
            rb"(?:[^\s:]{1,200}: ){1,3}[^\n]{0,200}No such file or directory\s*\Z",
            rb"curl: \(\d+\) ",
            rb"wget: ",
            rb"'?.{1,80}' is not recognized as ",
            rb"Traceback \(most recent call last\):",
        ),
    ),
    (
        "the error message of a server",
        _RIGHTS,
        (
            rb"(?i:(?:\d{3}[: -]+)?(?:page |file )?(?:not found|forbidden|unauthori[sz]ed)[.!]?\s*\Z)",
            rb"(?i:(?:\d{3}[: -]+)?(?:access denied|bad request|bad gateway|gateway time-?out)[.!]?\s*\Z)",
            rb"(?i:(?:\d{3}[: -]+)?(?:service unavailable|internal server error)[.!]?\s*\Z)",
            rb"(?i:(?:\d{3}[: -]+)?(?:too many requests|authentication required)[.!]?\s*\Z)",
            rb"upstream connect error",
        ),
    ),
    (
        "an e-mail",
        "Save the table that is attached to it, and send that.",
        (
            rb"(?:From \S+ .*\n)?(?:"
            + _MAIL
            + rb" .*\n(?:[ \t].*\n)*+){2}(?:[\w-]+: .*\n(?:[ \t].*\n)*+)*+\r?\n",
        ),
    ),
    (
        "a Jupyter notebook",
        _CODE,
        (rb"\{\s*\"(?:cells|metadata|nbformat)\"(?s:.*)\"cell_type\"",),
    ),
    (
        "the error message of a server in JSON",
        _RIGHTS,
        (
            rb"\{\s*\"(?:errors?|detail)\"\s*:[^\n]{0,4000}\}\s*\Z",
            rb"\{[^\n]{0,999}?\"status(?:_?[cC]ode)?\"\s*:\s*\"?[45]\d\d\"?\s*[,}][^\n]{0,999}\s*\Z",
        ),
    ),
    ("a JSON array of objects", _JSON_LINES, (rb"\[\s*\{",)),
    ("an empty JSON array", _JSON_LINES, (rb"\[\s*\]\s*\Z",)),
    (
        "a JSON array of arrays",
        "Send CSV, or an .npy or .npz file of NumPy.",
        (rb"\[\s*\[",),
    ),
    (
        *_COLUMNS_OF_JSON,
        (
            rb"\{\s*\"[^\"\n]*\"\s*:\s*\{\s*\"0\"\s*:",
            rb"\{\s*\"(?:columns|index)\"\s*:\s*\[\s*[\"\d]",
            rb"\{\s*\"schema\"\s*:\s*\{\s*\"fields\"",
        ),
    ),
    (
        "JSON, but one value over several lines, or a list of objects in one, and not one object a line",
        _JSON_LINES,
        (rb"\{[ \t\r]*\n\s+\"", rb"\{\s*\"[^\"\n]*\"\s*:\s*\[\s*\{"),
    ),
    (
        "LaTeX",
        "Send the table as CSV.",
        (
            rb"(?:%[^\n]*\n|\s)*+\\(?:begin|documentclass|usepackage|newcommand)\b",
            rb"(?:%[^\n]*\n|\s)*+\\(?:hline|toprule|section)\b",
        ),
    ),
    (
        *_SHOWN_TABLE,
        (rb"\+[-+=]+\+[ \t\r]*\n\s*\|", rb"(?:shape: \([\d_, ]+\)\s*\n)?\xe2[\x94\x95]"),
    ),
    (
        "a Python script",
        _CODE,
        (
            _COMMENTS + rb"import \w[\w.]*(?: as \w+)?\s*\n",
            _COMMENTS + rb"(?:from [\w.]+ import |def \w+\()",
            rb"#![^\n]*python",
        ),
    ),
    (
        "an R script",
        _CODE,
        (
            _COMMENTS + rb"(?:library|require|source|setwd)\([^\n]*\)\s*\n",
            _COMMENTS + rb"[\w.]+ *<- ",
            rb"#![^\n]*Rscript",
        ),
    ),
    ("a script", _CODE, (rb"#!",)),
    ("a program", _CODE, (rb"#include\b", rb"function \w+\(", rb"const \w+ =", rb"package [\w.]+;")),
    (
        "a file of SQL",
        "Export the table as CSV.",
        (
            _SQL + rb"(?i:create (?:table|database) [^\s(;]+\s*[(;]|begin;|drop table [^\n;]{1,200};)",
            _SQL + rb"(?i:insert into [^\s(]+\s*(?:\(|values)|select [^\n;]{1,2000};\s*\Z)",
        ),
    ),
    ("a key or certificate (PEM)", "Never send keys; send the table.", (rb"-----BEGIN [A-Z ]+-----",)),
    ("an address book or calendar", "Send its table as CSV.", (rb"BEGIN:V[A-Z]+\r?\n",)),
    (
        "a file of settings (TOML or INI)",
        _MEDIA,
        (
            _COMMENTS + rb"\[[A-Za-z][\w.\" -]*\][ \t\r]*\n" + _COMMENTS + rb"[\w.\"-]+\s*=",
            _COMMENTS + rb"[\w.-]+ = [^,;\t|\n]*\n" + _COMMENTS + rb"(?:[\w.-]+ = |\[)",
        ),
    ),
    (
        "YAML",
        "Send the table as CSV or JSON Lines.",
        (
            _COMMENTS + rb"(?:%YAML|---[ \t\r]*\n\s*(?:- |[\w-]+:))",
            _COMMENTS + rb"[A-Za-z_][\w-]*:(?: [^,;\t|\n]*)?\n(?:\s+\S|- |[A-Za-z_][\w-]*:(?: |\n))",
            _COMMENTS + rb"- [A-Za-z_][\w-]*: [^\n]*\n +[A-Za-z_][\w-]*: ",
        ),
    ),
    (
        *_PICKLE,
        (
            rb"c(?:numpy|pandas|sklearn|joblib|torch|copy_?reg|collections|builtins)[\w.]*\n\w+\n",
            rb"c__(?:builtin|main)__\n\w+\n",
            rb"\(?(?:lp|dp)\d\n",
        ),
    ),
)
"""Files of text, in the order in which they are tried: patterns of their beginning, after blanks."""
_TEXT_PATTERNS: Final = tuple((re.compile(b"|".join(patterns)), name, way) for name, way, patterns in _TEXTS)
_TITLE: Final = re.compile(rb"<title[^>]*>\s*([^<]{1,60})", re.IGNORECASE)
_SHOWN_LINES: Final = 20
_SHOWN_NAMES: Final = 5
_MAX_DIRECTORY: Final = 512 * 1024
"""Largest list of members of a ZIP archive that is read."""
_END_BYTES: Final = 66_000
"""A ZIP archive ends within this many bytes: its last record, and a comment."""
_UNKNOWN: Final = ""

_MEMBERS: Final = (
    ("xl/workbook", "an Excel workbook (.xlsx)", _SAVE),
    ("word/document", "a Word document (.docx)", _SAVE),
    ("ppt/presentation", "a PowerPoint presentation (.pptx)", _SAVE),
    ("[Content_Types].xml", "an Office document, such as an Excel workbook (.xlsx)", _SAVE),
    ("Index/Document.iwa", "a document of Apple Numbers, Pages or Keynote", _SAVE),
    ("Index.zip", "a document of Apple Numbers, Pages or Keynote", _SAVE),
    ("META-INF/MANIFEST.MF", "a Java archive (.jar)", _AGAIN),
    ("model.weights.h5", "a Keras model (.keras)", _NUMPY),
)
"""Beginnings of the names of members of ZIP archives that are documents of a program."""


def refuse_other(path: Path, beginning: bytes) -> None:
    """Raise UnsupportedFormat for a file of a kind that is not read: what it is, and what to do.

    beginning: its first bytes, text in UTF-8. Files that may be tables are not refused.
    """
    found = _binary(path, beginning) or _text(beginning)
    if found is not None:
        name, way = found
        raise UnsupportedFormat(f"The file is {name}. {way}", code="wrong_format")


def _binary(path: Path, beginning: bytes) -> tuple[str, str] | None:
    if beginning.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return _zip(path, beginning)
    if beginning.startswith(b"\x1f\x8b"):
        return _gzip(beginning)
    for magic, found in _MAGIC.items():
        if beginning.startswith(magic):
            return _office(beginning) if found is _OFFICE_97 else found
    if b"\0" in beginning:
        for pattern, name, way in _WITH_NULS:
            if pattern.match(beginning):
                return name, way
    return None


def _office(beginning: bytes) -> tuple[str, str]:
    """A document of an Office program that is no ZIP archive."""
    streams = {
        "EncryptedPackage": "a document of Office, such as an Excel workbook, that is locked by a password",
        "Workbook": "an Excel workbook (.xls)",
        "WordDocument": "a Word document (.doc)",
    }
    for stream, name in streams.items():
        if stream.encode("utf-16-le") in beginning:
            return name, _SAVE
    return _OFFICE_97


def _gzip(beginning: bytes) -> tuple[str, str]:
    unpacker = zlib.decompressobj(wbits=31)
    try:
        content = unpacker.decompress(beginning, 1024)
    except zlib.error:
        return "compressed by gzip, and damaged", "Fetch it again and unpack it (gunzip FILE)."
    inner = next((found for magic, found in _MAGIC.items() if content.startswith(magic)), None)
    if inner is not None and inner[0].startswith("an R "):
        return inner
    if content[257:262] == b"ustar":
        return "a tar archive that is compressed by gzip", f"{_ARCHIVE} tar -xzf FILE unpacks it."
    return (
        "compressed by gzip",
        f"{_COMPRESSED} (gunzip FILE); a file that gunzip calls unexpected is cut off.",
    )


def _zip(path: Path, beginning: bytes) -> tuple[str, str] | None:
    """The description of a ZIP archive with other members than NumPy arrays; None if it may have arrays."""
    names = _members(path)
    is_cut = names is None
    if names is None:
        length = int.from_bytes(beginning[26:28], "little")
        names = [beginning[30 : 30 + length].decode(errors="replace")]
    if names == [_UNKNOWN] or (names and all(name.endswith(ARRAYS) for name in names)):
        return None
    if not is_cut and _has_pictures(names):
        return None
    for start, name, way in _MEMBERS:
        if any(member.startswith(start) for member in names):
            return f"{name}{' that is cut off' if is_cut else ''}", way
    if any(member.endswith("/data.pkl") for member in names):
        return "a PyTorch file, whose pickle is never read", _NUMPY
    if names[:1] == ["mimetype"]:
        return "a document of LibreOffice, such as a spreadsheet (.ods)", _SAVE
    if is_cut:
        return "a ZIP archive that is cut off: the list of its members, at its end, is missing", (
            "Send or fetch it again; if it holds a table, unpack it and send that."
        )
    tables = [name for name in names if Path(name).suffix.lower() in ENDINGS and "__MACOSX" not in name]
    shown = ", ".join(f"{name!r:.80}" for name in (tables or names)[:_SHOWN_NAMES])
    what = f"a ZIP archive with {shown} in it" if names else "an empty ZIP archive"
    return what, f"Unpack it, and send {shown}." if len(tables) == 1 else _ARCHIVE


def is_picture_archive(path: Path, beginning: bytes) -> bool:
    """Whether a ZIP archive that `refuse_other` let pass holds pictures and not arrays."""
    names = _members(path)
    if names == [_UNKNOWN]:
        # The list is too long to be read here: the heads of the first members have their names, too.
        heads = beginning.split(b"PK\x03\x04")[1:]
        found = (head[26 : 26 + int.from_bytes(head[22:24], "little")] for head in heads)
        return _has_pictures([name.decode(errors="replace") for name in found])
    return names is not None and _has_pictures(names)


def _has_pictures(names: Sequence[str]) -> bool:
    """Whether a member may be a picture, by its name, which says nothing of its content yet."""
    return any(name.lower().endswith(PICTURES) for name in names)


def _members(path: Path) -> list[str] | None:
    """The names of the members of a ZIP archive; None if it is cut off. `_UNKNOWN` for a list too long."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _END_BYTES))
        end = file.read()
    place = end.rfind(b"PK\x05\x06")
    if place < 0:
        return None
    if int.from_bytes(end[place + 12 : place + 16], "little") > _MAX_DIRECTORY:
        return [_UNKNOWN]
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return None


def _text(beginning: bytes) -> tuple[str, str] | None:
    text = beginning.removeprefix(b"\xef\xbb\xbf").lstrip()
    for pattern, name, way in _TEXT_PATTERNS:
        if pattern.match(text):
            return name.format(title=_title(text), line=_first_line(text)), way
    if _is_object_of_lists(text):
        return _COLUMNS_OF_JSON
    lines = text.splitlines()[:_SHOWN_LINES]
    if len(lines) > 1 and sum(_LOG_LINE.match(line) is not None for line in lines) > len(lines) / 2:
        return "a log", "Make a table of it, one row for each example, and send that."
    for line, below in pairwise(lines):
        if b"|" in line and _RULE.fullmatch(below):
            return "a table in Markdown", "Write it as CSV."
        if b"|" in line and _RULE_OF_PROGRAM.fullmatch(below):
            return _SHOWN_TABLE
    return None


def _is_object_of_lists(text: bytes) -> bool:
    """Whether text is one JSON object whose values are all lists, at least one of them with texts."""
    if not text.startswith(b"{") or b"\n" in text.rstrip():
        return False
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    values = list(found.values())
    is_lists = len(values) > 1 and all(isinstance(value, list) for value in values)
    return is_lists and any(isinstance(value, str) for of_key in values for value in of_key)


def _title(text: bytes) -> str:
    found = _TITLE.search(text)
    return "" if found is None else f" ({found[1].decode(errors='replace').strip()!r})"


def _first_line(text: bytes) -> str:
    return text.split(b"\n", 1)[0].decode(errors="replace").strip()[:100]
