from __future__ import annotations

import subprocess
import sys

from app.domain.errors import Conflict
from app.jobs import identity as module
from app.jobs.identity import claim_identity
from app.settings import Settings
from tests.refusals import refused_as


def test_workers_of_one_folder_never_share_a_name(tmp_path):
    settings = Settings(data_dir=tmp_path / "new")
    first, second = claim_identity(settings), claim_identity(settings)
    assert [identity.worker.executor_id for identity in (first, second)] == ["local-0", "local-1"]
    first.release()
    third = claim_identity(settings)
    assert third.worker.executor_id == "local-0"
    second.release()
    third.release()


def test_a_name_is_free_again_when_its_process_was_killed(tmp_path):
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from app.jobs.identity import claim_identity\n"
        "from app.settings import Settings\n"
        "identity = claim_identity(Settings(data_dir=Path(sys.argv[1])))\n"
        "print(identity.worker.executor_id, flush=True)\n"
        "sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "local-0"
        mine = claim_identity(Settings(data_dir=tmp_path))
        assert mine.worker.executor_id == "local-1"
        process.kill()
        process.wait()
    again = claim_identity(Settings(data_dir=tmp_path))
    assert again.worker.executor_id == "local-0"
    mine.release()
    again.release()


def test_too_many_workers_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_MAX_EMBEDDED_WORKERS", 1)
    first = claim_identity(Settings(data_dir=tmp_path))
    with refused_as(Conflict, "too_many_workers"):
        claim_identity(Settings(data_dir=tmp_path))
    first.release()


def test_distributed_workers_have_names_never_used_before(tmp_path):
    settings = Settings(data_dir=tmp_path, database_url="postgresql://u@h/d")
    names = {claim_identity(settings).worker.executor_id for _ in range(3)}
    assert len(names) == 3
    assert not list(tmp_path.iterdir())
    claim_identity(settings).release()
