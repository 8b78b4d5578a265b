"""HostSandbox: the part that boxes share whose guest is a process of this machine."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import socket
import tempfile
import threading
import weakref
from abc import abstractmethod
from typing import IO, Generic, Protocol, TypeVar

from ..host.connection import Connection
from ..host.supervised import SupervisedSandbox
from ..limits import Limits


class HostProcess(Protocol):
    """A guest that runs, or the program around it."""

    def end(self, is_silent: bool) -> None:
        """Wait until it has ended, and remove what it left. This blocks. A silent one gets no time to end by itself."""


Process = TypeVar("Process", bound=HostProcess)


class HostSandbox(SupervisedSandbox, Generic[Process]):
    """A box behind a guest that this process has started."""

    def _renew(self) -> None:
        super()._renew()
        self._process: Process | None = None

    @abstractmethod
    def _start_process(self, connection: socket.socket, stderr: IO[bytes]) -> Process:
        """Start a guest with the connection as standard input and output; nothing is left if this fails."""

    async def _launch(self) -> Connection:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        with tempfile.TemporaryFile() as stderr, theirs, contextlib.ExitStack() as undo:
            undo.callback(ours.close)
            _, connection = await loop.create_connection(
                lambda: _LocalConnection(self.limits, os.dup(stderr.fileno())), sock=ours
            )
            undo.callback(connection.abort, "it could not be started")
            self._process = self._start_process(theirs, stderr)
            undo.pop_all()
        return connection

    def _remove(self, *, is_silent: bool) -> concurrent.futures.Future[None] | None:
        process, self._process = self._process, None
        if process is None:
            return None
        ending: concurrent.futures.Future[None] = concurrent.futures.Future()
        ending.set_running_or_notify_cancel()  # from here on it cannot be cancelled
        # Not a daemon: if this program ends meanwhile, it must wait until the box is gone.
        threading.Thread(target=_end, args=(process, is_silent, ending), name="gymnast-local", daemon=False).start()
        return ending


class _LocalConnection(Connection):
    """A connection to a guest whose stderr is a file.

    A pipe would have to be read beside the socket, and its end awaited as well as the socket's.
    """

    def __init__(self, limits: Limits, stderr: int) -> None:
        super().__init__(limits)
        self._stderr_file = stderr
        self._close_stderr = weakref.finalize(self, os.close, stderr)  # a loop that ended calls no connection_lost()
        self._close_stderr.atexit = False  # a pool that is closed at exit may still need it

    def connection_lost(self, exc: Exception | None) -> None:
        size = os.fstat(self._stderr_file).st_size
        self.keep_stderr(os.pread(self._stderr_file, 4096, max(0, size - 4096)))
        self._close_stderr()
        super().connection_lost(exc)


def _end(process: HostProcess, is_silent: bool, ending: concurrent.futures.Future[None]) -> None:
    try:
        process.end(is_silent)
    except BaseException as error:
        ending.set_exception(error)
    else:
        ending.set_result(None)
