"""Runs a command that ends when its parent process does: `python -m gymnast.cluster.on_ray.tethered COMMAND...`.

Its standard input is a pipe from the parent. The pipe ends with the parent, even if that is killed, and then the
command and all its processes are killed. A vLLM server would otherwise stay on its GPU when its Ray actor dies.
Start it in a session of its own, so that signals to the parent's process group do not reach it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress


def main(command: Sequence[str]) -> None:
    """Run the command, and exit as it does."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    threading.Thread(target=_kill_at_the_end_of_input, args=[child.pid], daemon=True).start()
    sys.exit(child.wait())


def _kill_at_the_end_of_input(group: int) -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])
