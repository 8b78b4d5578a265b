"""Landlock: the code may write to no file below one folder of the root, whatever the files' own modes say.

It keeps `/proc/PID/oom_score_adj` as the supervisor set it: the kernel lets whoever owns a process lower that number
again, and chooses by it whom to kill when the box is out of memory. The supervisor must come last.
Where the kernel (before 5.19, or without Landlock) or Python (without ctypes) cannot do it, it is left out.
Runs inside the box: standard library only, Python >= 3.8.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import struct
from typing import Any

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # system calls; the numbers are those of every architecture
_GET_VERSION = 1  # a flag of the first
_PATH_BENEATH = 1  # the kind of rule
_WRITE_FILE, _REFER = 1 << 1, 1 << 13  # rights; the second: to rename and link between folders
_VERSION_WITH_REFER = 2  # the one before forbids such renaming to whoever is restricted in anything


class Landlock:
    """A set of rules, made once by the supervisor; processes restrict themselves to it for ever.

    Args:
        closed: the entry of the root folder in which nothing can be written to.
    """

    def __init__(self, *, closed: str) -> None:
        self._rules = -1  # its descriptor
        with contextlib.suppress(ImportError, OSError):
            self._call = _system_call()
            if self._call(_CREATE_RULESET, None, 0, _GET_VERSION) >= _VERSION_WITH_REFER:
                rights = struct.pack("Q", _WRITE_FILE | _REFER)  # to be denied where no rule grants them
                rules = self._call(_CREATE_RULESET, rights, len(rights), 0)
                self._grant(rules, "/", _REFER)
                for name in os.listdir("/"):
                    if name != closed:
                        self._grant(rules, "/" + name, _WRITE_FILE)
                self._rules = rules

    def enter(self) -> None:
        """Restrict this process and all that will descend from it; it must not be able to gain privileges."""
        if self._rules >= 0:
            with contextlib.suppress(OSError):
                self._call(_RESTRICT_SELF, self._rules, 0)

    def _grant(self, rules: int, path: str, rights: int) -> None:
        try:
            folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:  # a link that leads nowhere
            return
        try:
            self._call(_ADD_RULE, rules, _PATH_BENEATH, struct.pack("=Qi", rights, folder), 0)
        finally:
            os.close(folder)


def _system_call() -> Any:
    ctypes = importlib.import_module("ctypes")  # an image may lack it
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long

    def call(number: int, *arguments: Any) -> int:
        result = syscall(ctypes.c_long(number), *(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments))
        if result < 0:
            raise OSError(ctypes.get_errno(), f"system call {number} was refused")
        return result

    return call
