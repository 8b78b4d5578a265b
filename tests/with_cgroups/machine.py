"""A machine with the files of this one, and a kernel of its own, whose control groups are of version 2.

The kernel is User-Mode Linux, which is a program: it needs neither root nor a processor's virtual machines.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KERNEL = ROOT / ".kernel" / "usr"  # the package user-mode-linux, unpacked by make
MEMORY, DISK = "2G", 8 << 30  # the file takes up what is written to it


def why_not() -> str:
    """Return why no machine can be started here, or ""."""
    missing = [name for name in ("busybox", "bwrap", "mke2fs", "setpriv") if shutil.which(name) is None]
    if missing:
        return f"there is no {', '.join(missing)}"
    return "" if (KERNEL / "bin/linux.uml").is_file() else f"there is no kernel in {KERNEL}"


def run(command: list[str], *, user: str) -> tuple[int, str]:
    """Run a command in the folder of this checkout in a new machine; return its exit code and its output.

    Args:
        user: "root"; or an ordinary user, to whom systemd delegates control groups ("delegated") or not ("login").
    """
    init = Path(__file__).with_name("init.sh")
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder, "settings")
        python = Path(sys.executable).resolve()
        values = {"user": user, "modules": KERNEL / "lib/uml/modules", "folder": ROOT, "python": python}
        lines = [f"{name}={shlex.quote(str(value))}" for name, value in values.items()]
        settings.write_text("\n".join([*lines, f"set -- {shlex.join(command)}\n"]))
        disk = Path(folder, "disk")
        disk.touch()
        os.truncate(disk, DISK)
        subprocess.run(["mke2fs", "-q", "-t", "ext4", disk], check=True)
        root = ["rootfstype=hostfs", "rootflags=/", "ro", f"ubda={disk}", f"init={init}", f"settings={settings}"]
        other = [f"mem={MEMORY}", f"uml_dir={folder}", "con=null", "con0=null,fd:1", "quiet"]
        machine = [str(KERNEL / "bin/linux.uml"), *root, *other]
        text = ""
        with subprocess.Popen(
            machine, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
        ) as process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    text += line.decode(errors="replace").replace("\r", "")
                    sys.stdout.write(line.decode(errors="replace"))  # `pytest -s` shows what goes on
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
    code = re.search(r"^exit code: (\d+)$", text, re.MULTILINE)
    return (int(code[1]) if code else -1), text
