"""Starts child processes that end with their parent, even if it is killed."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from app.processes.os_process import terminate_with_parent


class Starter:
    """A thread that starts processes. They are killed when the thread that started them ends, so it stays."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="starter")

    def start(self, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """Start a process in a new session. options: arguments of subprocess.Popen. Raises OSError."""

        def begin() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                command,
                start_new_session=True,
                preexec_fn=terminate_with_parent(),  # noqa: PLW1509 - it calls nothing but the kernel
                **options,
            )

        return self._thread.submit(begin).result()
