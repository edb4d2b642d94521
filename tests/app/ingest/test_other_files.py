"""Files that people send by mistake get their name and the way out, whatever they are declared as."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import pickle
import sqlite3
import tarfile
import time
import wave
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import scipy.io
from pyarrow import orc
from safetensors.numpy import save

from app.domain.errors import InvalidRequest, ServiceError, UnsupportedFormat
from app.domain.file_formats import FileFormat
from app.ingest.bundle import read_bundle
from app.ingest.formats import detect
from app.ingest.linear_head import HeadLimits, head_file
from app.ingest.options import ReadingOptions
from app.ingest.orders import BundleOrder
from app.ingest.rows import read_rows

CSV = "a,b,label\n1,2,x\n3,4,y\n"
TABLE = pa.table({"a": [1.5, 2.5], "label": ["x", "y"]})
MAIL = "Return-Path: <a@b.example>\nReceived: from c.example\n by d.example\nSubject: data\n\nHello\n"


def zipped(*names: str, content: bytes = b"<Types/>") -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name in names:
            archive.writestr(name, content)
    return out.getvalue()


def written(write: Callable[[io.BytesIO], object]) -> bytes:
    out = io.BytesIO()
    write(out)
    return out.getvalue()


def tarred() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("train.csv"))
    return out.getvalue()


def sounded() -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as sound:
        sound.setparams((1, 2, 8000, 4, "NONE", ""))
        sound.writeframes(b"\0\1" * 4)
    return out.getvalue()


def database(folder: Path) -> bytes:
    with sqlite3.connect(folder / "db") as base:
        base.execute("CREATE TABLE t (a)")
    base.close()
    return (folder / "db").read_bytes()


OFFICE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(504)
NOTEBOOK = {"cells": [{"cell_type": "code", "source": []}], "metadata": {}, "nbformat": 4}
RECORDS = [{"a": 1, "label": "x"}, {"a": 2, "label": "y"}]
FORM = b'--b1\r\nContent-Disposition: form-data; name="file"; filename="a.csv"\r\n\r\na,b\r\n--b1--\r\n'

FILES: dict[str, tuple[bytes, str]] = {
    "xlsx": (zipped("[Content_Types].xml", "xl/workbook.xml"), "Excel.*save the table as CSV"),
    "xlsx cut off": (zipped("[Content_Types].xml", "xl/workbook.xml")[:60], "Excel.*cut off"),
    "xls": (OFFICE + "Workbook".encode("utf-16-le"), r"Excel workbook \(.xls\)"),
    "xlsx locked": (OFFICE + "EncryptedPackage".encode("utf-16-le"), "password"),
    "ods": (zipped("mimetype", "content.xml"), r"LibreOffice.*\.ods"),
    "docx": (zipped("[Content_Types].xml", "word/document.xml"), "Word"),
    "numbers": (zipped("Index/Document.iwa"), "Numbers"),
    "html": (b"<!DOCTYPE html>\n<html><title>Sign in</title></html>", "HTML page.*'Sign in'.*Fetch"),
    "html upper": (b"\n <HTML><BODY>502</BODY></HTML>", "HTML"),
    "html with comments": (b"<!-- a -->\n<!-- b\n -->\n<html>", "HTML"),
    "html in UTF-16": ("<!doctype html><p>x</p>".encode("utf-16"), "HTML"),
    "xhtml": (b'<?xml version="1.0"?>\n<!DOCTYPE html PUBLIC "-//W3C//DTD XHTML">\n<html/>', "HTML"),
    "xml": (b'<?xml version="1.0"?>\n<rows><row a="1"/></rows>', "XML"),
    "xml without a head": (b"<rows>\n  <row>1</row>\n</rows>\n", "XML"),
    "error of a bucket": (b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "error message"),
    "pickle": (pickle.dumps({"X": 1}), "pickle.*never read.*savez"),
    "pickle of protocol 0": (pickle.dumps(np.arange(3.0), protocol=0), "pickle"),
    "pickle of a dictionary": (pickle.dumps({"X": 1}, protocol=0), "pickle"),
    "joblib compressed": (zlib.compress(pickle.dumps(CSV)), "joblib"),
    "torch": (zipped("archive/data.pkl", "archive/data/0"), "PyTorch.*never read"),
    "hdf5": (b"\x89HDF\r\n\x1a\n" + bytes(40), "HDF5"),
    "keras": (zipped("metadata.json", "config.json", "model.weights.h5"), "Keras"),
    "mat": (written(lambda out: scipy.io.savemat(out, {"X": np.ones((2, 2))})), "MATLAB.*loadmat"),
    "mat 7.3": (b"MATLAB 7.3 MAT-file, Platform" + bytes(500), "MATLAB"),
    "feather 1": (b"FEA1" + bytes(60) + b"FEA1", "Feather file of version 1"),
    "orc": (written(lambda out: orc.write_table(TABLE, out)), "ORC.*read_orc"),
    "avro": (b"Obj\x01\x04\x16avro.schema", "Avro"),
    "rdata": (gzip.compress(b"RDX3\nX\n\0\0\0\3"), r"\.RData.*write\.csv"),
    "rds": (gzip.compress(b"X\n\0\0\0\3\0\4"), r"\.rds.*write\.csv"),
    "sas": (bytes(12) + b"\xc2\xea\x81\x60\xb3\x14" + bytes(90), "SAS"),
    "stata": (b"<stata_dta><header><release>118</release>", "Stata"),
    "stata 115": (b"\x73\x02\x01\0" + bytes(60), "Stata"),
    "spss": (b"$FL2@(#) SPSS DATA FILE", "SPSS"),
    "git lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n", "git lfs pull"),
    "git-annex": (b"/annex/objects/SHA256E-s9--1.csv\n", "git-annex.*git annex get"),
    "git-annex link": (b"../.git/annex/objects/aa/bb/SHA256E-s9--1.csv", "git-annex"),
    "dvc": (b"outs:\n- md5: a304\n  size: 9\n  path: train.csv\n", "DVC.*dvc pull"),
    "zip of a csv": (zipped("train.csv"), "ZIP archive with 'train.csv'.*Unpack it, and send 'train.csv'"),
    "zip of many": (zipped("a.csv", "b.csv", "c.txt"), "ZIP archive.*send the one file"),
    "zip of a Mac": (zipped("train.csv", "__MACOSX/._train.csv"), "Unpack it, and send 'train.csv'"),
    "zip cut off": (zipped("train.csv", content=bytes(999))[:200], "ZIP archive that is cut off"),
    "zip of nothing": (zipped(), "empty ZIP archive"),
    "tar": (tarred(), "tar archive"),
    "tar.gz": (gzip.compress(tarred()), "tar archive that is compressed by gzip"),
    "7z": (b"7z\xbc\xaf\x27\x1c" + bytes(20), "7z"),
    "rar": (b"Rar!\x1a\x07\x01\0", "RAR"),
    "gz": (gzip.compress(CSV.encode()), "gzip.*gunzip"),
    "gz cut off": (gzip.compress(bytes(999))[:20], "gzip.*cut off"),
    "bz2": (bz2.compress(CSV.encode()), "bzip2.*bunzip2"),
    "xz": (lzma.compress(CSV.encode()), "xz"),
    "zstd": (pa.compress(CSV.encode(), "zstd", asbytes=True), "zstd"),
    "json array": (json.dumps(RECORDS).encode(), "JSON array.*lines=True.*jq"),
    "json array, printed": (json.dumps(RECORDS, indent=1).encode(), "JSON array"),
    "json array with a mark": (b"\xef\xbb\xbf" + json.dumps(RECORDS).encode(), "JSON array"),
    "json of rows": (b"[[1, 2], [3, 4]]", "JSON array of arrays"),
    "json of columns": (b'{"a":{"0":1,"1":2},"label":{"0":"x","1":"y"}}', "JSON of columns.*lines=True"),
    "json of lists": (b'{"a": [1, 2], "label": ["x", "y"]}', "JSON of columns"),
    "json, split": (b'{"columns":["a","b"],"index":[0],"data":[[1,2]]}', "JSON of columns"),
    "json, printed": (json.dumps(RECORDS[0], indent=2).encode(), "JSON.*over several lines"),
    "json in an envelope": (json.dumps({"data": RECORDS}).encode(), "JSON.*list of objects"),
    "json error": (b'{"error": "not signed in"}', "error message of a server"),
    "json status": (b'{"message": "Not Found", "status": "404"}', "error message of a server"),
    "pdf": (b"%PDF-1.7\n1 0 obj", "PDF"),
    "png": (b"\x89PNG\r\n\x1a\n", "PNG"),
    "jpg": (b"\xff\xd8\xff\xe0\0\x10JFIF", "JPEG"),
    "wav": (sounded(), "WAV"),
    "mp3": (b"ID3\x04\0\0", "MP3"),
    "mp4": (b"\0\0\0\x20ftypisom", "MP4"),
    "elf": (b"\x7fELF\x02\x01\x01" + bytes(9), "ELF"),
    "exe": (b"MZ\x90\0\3\0", "program for Windows"),
    "mail": (MAIL.encode(), "e-mail"),
    "log of Python": (b"2024-05-01 10:00:00,123 INFO a: b\n2024-05-01 10:00:01,456 ERROR a: x\n", "a log"),
    "log with levels": (b"INFO:root:started\nWARNING:root:slow\n", "a log"),
    "log of a web server": (b'::1 - - [01/May/2024:10:00:00 +0000] "GET / HTTP/1.1" 200 5\n' * 3, "a log"),
    "syslog": (b"May  1 10:00:00 host sshd[1]: hello\n" * 3, "a log"),
    "notebook": (json.dumps(NOTEBOOK).encode(), "Jupyter"),
    "notebook, printed": (json.dumps(NOTEBOOK, indent=1).encode(), "Jupyter"),
    "python": (b"# reads\nimport pandas as pd\ndf = 1\n", "Python script"),
    "shebang": (b"#!/usr/bin/env python3\nprint(1)\n", "Python script"),
    "r": (b'# reads\nlibrary(dplyr)\nx <- read.csv("a.csv")\n', "R script"),
    "shell": (b"#!/bin/sh\necho\n", "script"),
    "sql": (b"-- dump\nCREATE TABLE t (\n  a int\n);\n", "SQL"),
    "markdown": (b"# Data\n\n| a | label |\n|---|:---:|\n| 1 | x |\n", "Markdown.*CSV"),
    "psql": (b" a | label \n---+-------\n 1 | x\n", "as a program shows it.*copy"),
    "mysql": (b"+---+---+\n| a | b |\n+---+---+\n", "as a program shows it"),
    "polars": ("shape: (1, 2)\n┌─────┬─────┐\n".encode(), "as a program shows it"),
    "yaml": (b"---\nname: data\nrows:\n  - 1\n", "YAML"),
    "yaml without a mark": (b"name: data\nrows:\n  - 1\n", "YAML"),
    "toml": (b'[data]\nname = "x"\n', "TOML"),
    "latex": (b"% a table\n\\begin{tabular}{ll}\na & b \\\\\n", "LaTeX"),
    "command not found": (b"bash: line 1: psql: command not found\n", "error message of a program"),
    "no such file": (b"cat: train.csv: No such file or directory\n", "error message of a program"),
    "curl failed": (b"curl: (6) Could not resolve host: a.example\n", "error message of a program"),
    "traceback": (b"Traceback (most recent call last):\n  File\n", "error message of a program"),
    "404": (b"404: Not Found", "error message of a server"),
    "curl of a name": (b"@train.csv", "'@train.csv'.*--data-binary"),
    "curl of a field": (b"file=@data/train.csv\n", "--data-binary"),
    "an address": (b"https://example.org/train.csv\n", "address.*stms datasets fetch"),
    "a form": (FORM, "multipart/form-data.*--data-binary"),
    "headers": (b"HTTP/1.1 200 OK\r\ncontent-type: text/csv\r\n\r\na,b\r\n", "headers"),
    "pem": (b"-----BEGIN PRIVATE KEY-----\nMIIE\n", "key or certificate"),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "said", [(None, None), ("csv", None), (None, "train.csv"), ("parquet", None), ("npz", "a")]
)
def test_a_file_that_is_no_table_gets_its_name(
    tmp_path: Path, name: str, said: tuple[str | None, str | None]
) -> None:
    content, words = FILES[name]
    path = tmp_path / "upload"
    path.write_bytes(content)
    with pytest.raises(UnsupportedFormat, match=words) as raised:
        detect(path, declared=said[0], filename=said[1])
    assert raised.value.reason == "wrong_format"


def test_a_database_gets_its_name(tmp_path: Path) -> None:
    path = tmp_path / "upload"
    path.write_bytes(database(tmp_path))
    with pytest.raises(UnsupportedFormat, match=r"SQLite.*Export the table"):
        detect(path, declared=None, filename=None)


@pytest.mark.parametrize("name", ["xlsx", "html", "git lfs", "json array", "gz", "curl of a name", "pickle"])
def test_rows_heads_and_bundles_say_it_in_the_same_words(tmp_path: Path, name: str) -> None:
    content, words = FILES[name]
    path = tmp_path / "train.csv"
    path.write_bytes(content * 20 if name == "html" else content + b" " * 600 if name != "xlsx" else content)
    with pytest.raises(UnsupportedFormat, match=words) as of_rows:
        read_rows(path, ReadingOptions())
    with pytest.raises(UnsupportedFormat) as of_head, head_file(path, HeadLimits(9, 9, 999)):
        raise AssertionError("the file was opened")
    with pytest.raises(ServiceError) as of_bundle:
        read_bundle(BundleOrder(source=str(path), listed=9, max_classes=9, max_columns=9))
    assert of_rows.value.message == of_head.value.message == of_bundle.value.message


TABLES = {
    "names in angle brackets": (b"<DATE>\t<TIME>\t<OPEN>\n2024.01.02\t10:00\t1.5\n", FileFormat.CSV),
    "names that begin with a magic number": (b"ORC,ID3,BZh,MZ\n1,2,3,x\n", FileFormat.CSV),
    "a quoted text with quotes": (b'"""Hello"" she said",x\n"b",y\n', FileFormat.CSV),
    "a log between commas": (b"2024-05-01 10:00:00,INFO,started\n" * 3, FileFormat.CSV),
    "a log between tabs": (b"2024-05-01 10:00:00\tINFO\tstarted\n" * 3, FileFormat.CSV),
    "dates first": (b"2024-05-01 10:00:00;1;x\n" * 3, FileFormat.CSV),
    "texts of commands": (b"create table for two,book\ncopy number two,print\n", FileFormat.CSV),
    "texts of addresses": (b"https://a.example/b,spam\nhttps://c.example,ham\n", FileFormat.CSV),
    "names of a city": (b"city\nLondon\nParis\n", FileFormat.CSV),
    "pipes": (b"a|b|label\n1|2|x\n-|---|y\n", FileFormat.CSV),
    "nulls of MySQL": (b"\\N\t1\tx\n2\t\\N\ty\n", FileFormat.CSV),
    "texts with colons": (b"From: a,spam\nSubject: b,ham\n", FileFormat.CSV),
    "one record": (b'{"message": "buy now", "label": "spam"}\n', FileFormat.JSONL),
    "vectors": (b'{"v": [1, 2], "w": [3.5]}\n', FileFormat.JSONL),
    "codes": (b'{"code": 404, "label": "x"}\n{"code": 200, "label": "y"}\n', FileFormat.JSONL),
    "arff": (b"% comment\n@relation r\n", FileFormat.ARFF),
    "a comment of svmlight": (b"# made by a program\n1 1:2 3:4\n", FileFormat.SVMLIGHT),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_that_look_a_little_like_other_files_are_tables(tmp_path: Path, name: str) -> None:
    content, kind = TABLES[name]
    path = tmp_path / "upload"
    path.write_bytes(content)
    assert detect(path, declared=None, filename=None) is kind


def seconds_to_detect(path: Path) -> float:
    since = time.process_time()
    with suppress(ServiceError):
        detect(path, declared=None, filename=None)
    return time.process_time() - since


@pytest.mark.parametrize(
    "unit",
    [
        b"<!-- -->",
        b"\n",
        b"{\n",
        b"a: ",
        b"| ",
        b"-+",
        b"/* */",
        b"#\n",
        b"[a]\n",
        b"<a>\n",
        b" ",
        b"|---",
        b"From: \n",
    ],
)
def test_no_beginning_takes_long(tmp_path: Path, unit: bytes) -> None:
    path = tmp_path / "upload"
    path.write_bytes((unit * 65536)[:65536])
    assert seconds_to_detect(path) < 1


def test_the_bytes_that_are_missing_of_a_table_are_told(ingest: Callable[..., object]) -> None:
    content = written(lambda out: np.save(out, np.ones((30, 3))))
    with pytest.raises(InvalidRequest, match="cut off: 100 of the 720 bytes of its numbers are missing"):
        ingest(content[:-100])
    content = save({"X": np.ones((30, 3)), "y": np.arange(30.0) % 2})
    with pytest.raises(InvalidRequest, match=r"cut off within array '[Xy]': 50 bytes of it are missing"):
        ingest(content[:-50])
