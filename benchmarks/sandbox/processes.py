"""Starts programs for the sandbox benchmark, with a time limit, and leaves no process behind."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[2]
GRACE = 2.0  # seconds that boxes have to go after their owner was killed


class ChildError(Exception):
    """A program failed or hung; the message says how."""


def output_of(command: list[str], seconds: float) -> str:
    """Return the output of the program.

    Raises:
        ChildError: it failed, or was killed because it took longer.
    """
    with _started(command) as (process, errors):
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise ChildError(f"no end within {seconds:g} s") from None
        if process.returncode:
            raise ChildError(_reason(process, errors))
    return output


def left_after_kill(command: list[str], seconds: float, boxes: int, count: Callable[[int], int]) -> int:
    """Kill the program as soon as it has printed a line; 2 s later `count` what its process id has left.

    Raises:
        ChildError: it failed, or printed nothing in time; or `count` did not see its `boxes` while it lived.
    """
    with _started(command) as (process, errors):
        assert process.stdout is not None
        readable, _, _ = select.select([process.stdout], [], [], seconds)
        if not readable:
            raise ChildError(f"no box within {seconds:g} s")
        if not process.stdout.readline():
            process.wait()
            raise ChildError(_reason(process, errors))
        if (seen := count(process.pid)) != boxes:  # a count that sees nothing would find nothing left, too
            raise ChildError(f"{seen} containers were seen while its owner lived, not {boxes}")
        process.kill()
        process.wait()
        time.sleep(GRACE)
        return count(process.pid)


@contextlib.contextmanager
def _started(command: list[str]) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
            cwd=ROOT,  # `python -m benchmarks...` finds its module there
        )
        try:
            yield process, errors
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # and what it has started itself
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def _reason(process: subprocess.Popen[str], errors: IO[str]) -> str:
    errors.seek(0)
    lines = [line.strip() for line in errors if line.strip()]
    return lines[-1][:300] if lines else f"it ended with {process.returncode}"
