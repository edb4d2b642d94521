"""`stms bundle` on a real server: a version written to a file, brought in again, and a student as ONNX."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from safetensors.numpy import save_file

WEIGHTS = np.random.default_rng(8).standard_normal((5, 3))


@pytest.fixture
def ask(run, live) -> Any:
    return lambda *arguments: run(*arguments, STMS_URL=live.address)


@pytest.fixture
def exported(ask: Any, tmp_path: Path) -> Path:
    head, tar = tmp_path / "head.safetensors", tmp_path / "axes.tar"
    save_file({"weights": WEIGHTS}, head, {"labels": json.dumps(list("abcde"))})
    assert ask("models", "import", str(head), "--model", "axes").exit_code == 0
    result = ask("bundle", "export", "axes@latest", str(tar))
    assert result.exit_code == 0, result.output
    assert str(tar.stat().st_size) in result.stdout
    assert not tar.with_name("axes.tar.part").exists()
    return tar


def test_a_bundle_is_written_and_imported_as_a_file_and_as_a_folder(exported: Path, ask: Any, tmp_path: Path):
    result = ask("bundle", "import", str(exported), "--model", "copy", "--alias", "live")
    assert result.exit_code == 0, result.output
    assert "copy version 1: 5 classes on 3 columns, ready for queries." in result.stdout
    folder = tmp_path / "folder"
    with tarfile.open(exported) as tar:
        tar.extractall(folder, filter="data")
    again = ask("bundle", "import", str(folder), "--model", "copy", "--json")
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["version"] == 1, "the same bytes are the same version"
    said = ask("bundle", "import", str(exported), "--model", "copy")
    assert "The alias latest stays where it is" in said.stdout


def test_what_is_no_bundle_is_refused_in_a_sentence(exported: Path, ask: Any, tmp_path: Path):
    damaged = tmp_path / "damaged.tar"
    good = exported.read_bytes()
    damaged.write_bytes(good.replace(WEIGHTS.tobytes(), (WEIGHTS + 1.0).tobytes()))
    assert damaged.read_bytes() != good
    result = ask("bundle", "import", str(damaged))
    assert result.exit_code == 1
    assert "does not have the digest" in result.stderr
    empty = tmp_path / "nothing"
    empty.mkdir()
    result = ask("bundle", "import", str(empty))
    assert result.exit_code == 1
    assert "is not the folder of a bundle" in result.stderr
    result = ask("bundle", "export", "axes@9", str(tmp_path / "missing.tar"))
    assert result.exit_code == 1
    assert not list(tmp_path.glob("missing.tar*"))
    result = ask("bundle", "export", "axes", str(tmp_path / "part.tar"), "--class", "a", "--no-teacher")
    assert result.exit_code == 1
    assert "its bundle has all of it" in result.stderr
    result = ask("bundle", "export", "axes", str(tmp_path / "no" / "folder.tar"))
    assert result.exit_code == 1
    assert "cannot be written" in result.stderr


def test_a_signature_is_put_into_the_file(exported: Path, ask: Any, tmp_path: Path):
    signature, size = tmp_path / "axes.sig", exported.stat().st_size
    signature.write_bytes(b"signature")
    for _ in range(2):
        result = ask("bundle", "sign", str(exported), str(signature))
        assert result.exit_code == 0, result.output
        assert exported.stat().st_size == size + 1024
    with tarfile.open(exported) as tar:
        member = tar.extractfile("model.sig")
        assert member is not None
        assert member.read() == b"signature"
    assert ask("bundle", "import", str(exported), "--model", "signed").exit_code == 0
    result = ask("bundle", "sign", str(signature), str(signature))
    assert result.exit_code == 1
    assert "cannot be signed" in result.stderr


@pytest.mark.usefixtures("exported")
def test_a_student_is_written_as_an_onnx_model(ask: Any, tmp_path: Path):
    file = tmp_path / "axes-b.onnx"
    result = ask("bundle", "onnx", "axes", "b", str(file))
    assert result.exit_code == 0, result.output
    run = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    X = np.random.default_rng(9).standard_normal((20, 3))
    np.testing.assert_allclose(run.run(["score"], {"x": X})[0], X @ WEIGHTS[1], atol=1e-11)
    assert ask("bundle", "onnx", "axes", "z", str(file)).exit_code == 1
