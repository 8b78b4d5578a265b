"""Programs that take minutes: they run beside the other tests, one after the other, and their own tests come last."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@dataclass(kw_only=True, slots=True, frozen=True)
class LongRun:
    """What came of a program."""

    folder: Path  # that it ran in
    process: int
    exit_code: int
    printed: str  # on both streams


class LongRuns:
    """The programs that the tests marked `long_run(example, *arguments)` wait for; they begin at once."""

    def __init__(self, items: list[pytest.Item]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="gymnast-long-runs-")
        self._stopped = False
        self._running: subprocess.Popen[str] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="long-runs")
        self._runs: dict[str, Future[LongRun]] = {}
        for number, item in enumerate(items):
            marker = item.get_closest_marker("long_run")
            assert marker is not None
            self._runs[item.nodeid] = self._thread.submit(self._run, f"run-{number}", *marker.args)

    def result(self, item: pytest.Item) -> LongRun:
        """Wait until the program of a test has ended."""
        return self._runs[item.nodeid].result()

    def stop(self) -> None:
        """Kill what still runs, and remove what the programs left."""
        self._stopped = True
        if self._running is not None:
            self._running.kill()
        self._thread.shutdown(cancel_futures=True)
        self._folder.cleanup()

    def _run(self, name: str, example: str, *arguments: str) -> LongRun:
        folder = Path(self._folder.name, name)
        folder.mkdir()
        command = ["nice", "-n", "5", sys.executable, str(ROOT / "examples" / example), *arguments]
        with subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            self._running = process
            if self._stopped:
                process.kill()
            printed, _ = process.communicate()
        return LongRun(folder=folder, process=process.pid, exit_code=process.returncode, printed=printed)
