"""What is cut out of the image's packages, on folders of our own."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.container import trim


def package_tree(folder: Path, *files: str) -> Path:
    for name in files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return folder


def test_a_pattern_that_finds_nothing_ends_the_build(tmp_path, monkeypatch):
    monkeypatch.setattr(trim, "UNUSED", ("pyarrow/*flight*", "pyarrow/gone"))
    package_tree(tmp_path, "pyarrow/flight.py")
    with pytest.raises(SystemExit, match="pyarrow/gone"):
        list(trim.unused(tmp_path))


def test_packages_that_are_not_installed_are_passed_over(tmp_path, monkeypatch):
    monkeypatch.setattr(trim, "UNUSED", ("pyarrow/*flight*", "numpy/distutils"))
    package_tree(tmp_path, "numpy/distutils/a.py")
    assert list(trim.unused(tmp_path)) == [tmp_path / "numpy/distutils"]


def test_tests_go_whole_and_only_those_of_named_packages(tmp_path, monkeypatch):
    monkeypatch.setattr(trim, "UNUSED", ())
    package_tree(tmp_path, "numpy/lib/tests/tests/a.py", "numpy/testing/a.py", "app/tests/a.py")
    assert list(trim.unused(tmp_path)) == [tmp_path / "numpy/lib/tests"]


def test_the_loader_is_believed():
    output = (
        "/a/fine.so:\n\tlibc.so.6 => /lib/libc.so.6 (0x1)\n"
        "/a/pool.so:\n\tlibtbb.so.12 => not found\n"
        "/a/broken.so:\n\tlibarrow_flight.so => not found\n"
        "/a/damaged.so: error while loading shared libraries: /a/x.so: ELF load command not page-aligned\n"
    )
    first, second = trim.faults_of(output)
    assert first == "/a/broken.so: libarrow_flight.so => not found"
    assert second.startswith("/a/damaged.so: error while loading")


def test_a_tree_is_cut_down_to_what_is_used(tmp_path, monkeypatch):
    monkeypatch.setattr(trim, "UNUSED", ("scipy/odr", "scipy/odr/models*"))
    monkeypatch.setattr(trim.subprocess, "run", lambda *_, **__: None)
    monkeypatch.setattr(trim, "unloadable", lambda _: [])
    package_tree(
        tmp_path,
        "scipy/odr/models.py",
        "scipy/odr/tests/a.py",
        "scipy/a.pyx",
        "scipy/a.py",
        "scipy/a.so",
        "core/tests.py",
    )
    trim.trim(tmp_path)
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {"scipy/a.py", "scipy/a.so", "core/tests.py"}


def test_what_cannot_be_loaded_any_more_ends_the_build(tmp_path, monkeypatch):
    monkeypatch.setattr(trim, "UNUSED", ())
    monkeypatch.setattr(trim.subprocess, "run", lambda *_, **__: None)
    monkeypatch.setattr(trim, "_loader_says", lambda _: "/a/b.so:\n\tlibmissing.so => not found\n")
    package_tree(tmp_path, "numpy/b.so")
    with pytest.raises(SystemExit, match=r"libmissing\.so => not found"):
        trim.trim(tmp_path)
