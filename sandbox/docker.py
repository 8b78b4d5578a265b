"""DockerExecutor: code in a container without network, privileges or a writable root, as fast as a local process.

The engine creates and removes the container (`engine.py`, `container.py`); everything else goes over one socket to the
supervisor inside (`connection.py`, `supervisor.py`). When this process dies, the socket closes and the box ends.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, cast

from . import owner
from .base import DEFAULT_TIMEOUT, ExecutionResult, Executor, FileEntry, Limits, Status, check_timeout, size_of
from .boot import program
from .connection import Connection, Reply, finish
from .container import BoxOptions, box_settings, container_config
from .engine import CLOSE_SECONDS, Engine, Launched, Pull
from .errors import (
    EngineError,
    ImageError,
    SandboxClosedError,
    SandboxLostError,
    SandboxTimeoutError,
    file_error,
)
from .images import DEFAULT_IMAGE, default_image

logger = logging.getLogger("gymnast.sandbox")

START_TIMEOUT = 60.0  # seconds until a box is ready, the fetching of its image included
MARGIN = 5.0  # seconds beyond a call's own time after which a silent box is given up
OPERATION_SECONDS = 30.0  # for one file operation or reset


class DockerExecutor(Executor):
    """A box in a Docker container.

        async with DockerExecutor(files={"data.csv": "a,b\\n1,2\\n"}) as box:
            print((await box.bash("wc -l data.csv")).stdout)

    Args:
        image: any image with Python >= 3.8; the default is made by `python -m gymnast.sandbox build`.
        limits: what the box may use.
        network: "none"; or "bridge", or a network's name, which give untrusted code a network.
        runtime: a container runtime that protects more than the shared kernel does, such as "runsc" (gVisor).
        env: environment variables for the code; nothing of the host's environment is passed on.
        files: what `/workspace` holds after `start` and each `reset`, by relative path; text is encoded as UTF-8.
        pull: when to fetch the image from its registry; the default image is never fetched.
        preload: modules to import before the first session, which then begins with them in no time.
        read_only: whether the root file system is; a box that can write it is replaced at `reset`.
        seccomp: None for our filter of system calls; a profile as JSON, or "unconfined".
        engine: an open `Engine` to share; without one the box opens its own.
        start_timeout: seconds until the box must be ready.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        *,
        image: str = DEFAULT_IMAGE,
        limits: Limits | None = None,
        network: str = "none",
        runtime: str | None = None,
        env: Mapping[str, str] | None = None,
        files: Mapping[str, bytes | str] | None = None,
        pull: Pull = "missing",
        preload: Sequence[str] = (),
        read_only: bool = True,
        seccomp: str | None = None,
        engine: Engine | None = None,
        start_timeout: float = START_TIMEOUT,
    ) -> None:
        if network == "host" or network.startswith("container:"):
            raise ValueError(f"network={network!r} would put untrusted code into another network namespace")
        if pull not in ("never", "missing", "always"):
            raise ValueError(f"pull must be 'never', 'missing' or 'always', got {pull!r}")
        self.options = BoxOptions(
            image=image,
            limits=limits or Limits(),
            network=network,
            runtime=runtime,
            read_only=read_only,
            seccomp=seccomp,
            environment=tuple(sorted((env or {}).items())),
            preload=tuple(preload),
        )
        self.files = dict(files or {})
        self.pull: Pull = pull
        self.start_timeout = check_timeout(start_timeout)
        self._max_code = size_of(self.options.limits.max_code)
        self._engine = engine
        self._owns_engine = engine is None
        self._launched: Launched | None = None
        self._connection: Connection | None = None
        self._has_bash = False
        self._state = "new"  # then "open", then "closed"
        self._lost: str | None = None
        self._retire: str | None = None
        self._turn = asyncio.Lock()

    # Life.

    async def start(self) -> None:
        if self._state != "new":
            raise SandboxClosedError(f"a box is started once, and this one is {self._state}")
        self._state = "open"
        try:
            await self._open_box()
        except BaseException:
            await finish(self.close())
            raise

    async def close(self) -> None:
        self._state = "closed"
        await finish(self._close())

    async def _close(self) -> None:
        if self._connection is not None:
            self._connection.abort("it was closed")
            self._connection = None
        launched, self._launched = self._launched, None
        engine = self._engine
        if engine is None:
            return
        if launched is not None:
            try:
                async with asyncio.timeout(CLOSE_SECONDS):
                    await engine.remove(launched.container)
            except (EngineError, TimeoutError) as error:
                logger.warning("container %.12s was not removed; it ends by itself: %s", launched.container, error)
        if self._owns_engine:
            self._engine = None
            await engine.close()

    async def _open_box(self) -> None:
        """Make a container, its supervisor and its files; on failure nothing is left."""
        try:
            async with asyncio.timeout(self.start_timeout):
                await self._launch()
                await self._put_files()
        except TimeoutError as error:
            self._discard("it was not ready in time")
            raise SandboxTimeoutError(f"the box was not ready within start_timeout={self.start_timeout:g} s") from error
        except BaseException:
            self._discard("it could not be started")
            raise

    async def _launch(self) -> None:
        if self._engine is None:
            self._engine = await Engine().open()
        options = self.options
        if options.image == DEFAULT_IMAGE:  # never from a registry, where the name may be anybody's
            image = await default_image(self._engine)
        else:
            image = await self._engine.image(options.image, self.pull)
        labels = owner.labels(options.limits.lifetime)
        config = container_config(options, labels, image.volumes)
        self._launched = await self._engine.launch(f"gymnast-{uuid.uuid4().hex[:12]}", config)
        for warning in self._launched.warnings:
            logger.warning("the engine refused a limit: %s", warning)
        limits = options.limits
        max_payload = max(size_of(limits.max_file), 8 * size_of(limits.max_output)) + (1 << 20)
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: Connection(max_payload), sock=self._launched.socket)
        self._connection = connection
        connection.send_raw(program())
        await self._hello(connection)
        self._lost = self._retire = None

    async def _hello(self, connection: Connection) -> None:
        try:
            header, _ = await connection.hello(box_settings(self.options))
        except SandboxLostError as error:
            said = connection.stderr
            if "exec python3 failed" in said:
                raise ImageError(f"the image {self.options.image!r} has no python3 on its PATH") from error
            raise EngineError(f"the box ended while it was started: {said or error}") from error
        if "unfit" in header:
            raise ImageError(f"the image {self.options.image!r} lacks {header['unfit']}")
        self._has_bash = bool(header.get("bash"))

    def _discard(self, reason: str) -> None:
        """Give up the box; the engine removes it in the background."""
        self._lost = reason
        if self._connection is not None:
            self._connection.abort(reason)
            self._connection = None
        if self._launched is not None:
            self._launched.socket.close()
            if self._engine is not None:
                self._engine.remove_soon(self._launched.container)
            self._launched = None

    # The contract.

    async def python(self, code: str, *, timeout: float = DEFAULT_TIMEOUT) -> ExecutionResult:
        return await self._execute("python", code, timeout)

    async def bash(self, command: str, *, timeout: float = DEFAULT_TIMEOUT) -> ExecutionResult:
        if self._state == "open" and self._lost is None and not self._has_bash:
            raise ImageError(f"the image {self.options.image!r} has no bash")
        return await self._execute("bash", command, timeout)

    async def write_file(self, path: str, data: bytes | str) -> None:
        content = data.encode() if isinstance(data, str) else bytes(data)
        limit = size_of(self.options.limits.max_file)
        if len(content) > limit:
            raise file_error(27, path, f"the data has {len(content)} bytes, Limits.max_file is {limit}")
        async with self._turn:
            await self._file_operation("write", path, content)

    async def read_file(self, path: str) -> bytes:
        async with self._turn:
            return await self._file_operation("read", path)

    async def list_files(self, path: str = ".", *, recursive: bool = False) -> list[FileEntry]:
        async with self._turn:
            listing = await self._file_operation("list", path, recursive=recursive)
        return [FileEntry(path=name, kind=kind, size=size) for name, kind, size in json.loads(listing)]

    async def ping(self, *, timeout: float = 2.0) -> None:
        check_timeout(timeout)
        async with self._turn:
            await self._exchange({"op": "ping"}, b"", timeout)

    async def reset(self) -> None:
        async with self._turn:
            self._require_open()
            if self._lost is None and self._retire is None and self.options.read_only:
                try:
                    header, _ = await self._exchange({"op": "reset"}, b"", OPERATION_SECONDS)
                    self._retire = header["retire"] or None
                except SandboxLostError as error:
                    logger.info("a box was lost at its reset and is replaced: %s", error)
            if self._lost is None and self._retire is None and self.options.read_only:
                await self._put_files()
            else:
                self._discard(self._lost or "it is being replaced")
                await self._open_box()

    @property
    def retire_reason(self) -> str | None:
        return f"the box is lost: {self._lost}" if self._lost else self._retire

    # How.

    def _require_open(self) -> None:
        if self._state != "open":
            raise SandboxClosedError(f"the box is {self._state}: use it inside `async with`, or call start() first")

    async def _put_files(self) -> None:
        for path, data in self.files.items():
            await self._file_operation("write", path, data.encode() if isinstance(data, str) else bytes(data))

    async def _execute(self, operation: str, source: str, timeout: float) -> ExecutionResult:
        check_timeout(timeout)
        data = source.encode("utf-8", "surrogatepass")
        problem = self._refusal(operation, data)
        async with self._turn:
            self._require_open()
            if problem:
                return ExecutionResult(status=Status.ERROR, stderr=problem, exit_code=1)
            started = time.perf_counter()
            patience = timeout + self.options.limits.grace + MARGIN
            try:
                header, parts = await self._exchange({"op": operation, "timeout": timeout}, data, patience)
            except SandboxLostError as error:
                duration = time.perf_counter() - started
                error.result = ExecutionResult(status=Status.SANDBOX_LOST, duration=duration, state_lost=True)
                raise
        self._retire = self._retire or header["retire"] or None
        return _result(header, parts, time.perf_counter() - started)

    def _refusal(self, operation: str, data: bytes) -> str:
        """What is wrong with a piece of code that no session could even read."""
        if len(data) > self._max_code:
            return f"the code has {len(data)} bytes, Limits.max_code is {self._max_code}\n"
        if operation == "bash" and b"\0" in data:
            return "bash: a command cannot hold a NUL character\n"
        return ""

    async def _file_operation(self, operation: str, path: str, data: bytes = b"", *, recursive: bool = False) -> bytes:
        header = {"op": operation, "path": path, "recursive": recursive}
        answer, parts = await self._exchange(header, data, OPERATION_SECONDS)
        if "errno" in answer:
            raise file_error(int(answer["errno"]), path, str(answer.get("detail", "")))
        return parts[0]

    async def _exchange(self, header: dict[str, Any], payload: bytes, patience: float) -> Reply:
        """One request and its reply; a box that does not answer in time is given up."""
        self._require_open()
        if self._connection is None or self._lost is not None:
            raise SandboxLostError(f"the box is lost: {self._lost}; reset() makes a new one")
        number, reply = self._connection.request(header, payload)
        try:
            async with asyncio.timeout(patience):
                return await asyncio.shield(reply)
        except TimeoutError:
            reason = f"it did not answer within {patience:g} s"
            self._discard(reason)
            raise SandboxLostError(f"the box is lost: {reason}") from None
        except SandboxLostError as error:
            self._discard(str(error))
            raise
        except asyncio.CancelledError:
            await finish(self._interrupt(number, reply))
            raise

    async def _interrupt(self, number: int, reply: asyncio.Future[Reply]) -> None:
        """End a request whose caller has gone, so that the next finds the box at rest."""
        if self._connection is not None:
            self._connection.interrupt(number)
        try:
            async with asyncio.timeout(self.options.limits.grace + MARGIN):
                header, _ = await reply
            self._retire = self._retire or header.get("retire") or None
        except (TimeoutError, SandboxLostError) as error:
            self._discard(f"it did not end a cancelled call: {error}")


def _result(header: dict[str, Any], parts: list[bytes], duration: float) -> ExecutionResult:
    out_head, out_tail, err_head, err_tail, value_head, value_tail, error = parts
    dropped = cast(list[int], header["dropped"])
    return ExecutionResult(
        status=Status(header["status"]),
        stdout=_text(out_head, out_tail, dropped[0]),
        stderr=_text(err_head, err_tail, dropped[1]) + error.decode("utf-8", "replace"),
        value=_text(value_head, value_tail, dropped[2]) if header["value"] else None,
        exit_code=header["code"],
        duration=duration,
        dropped_bytes=sum(dropped),
        state_lost=header["lost"],
    )


def _text(head: bytes, tail: bytes, dropped: int) -> str:
    if not dropped:
        return (head + tail).decode("utf-8", "replace")
    marker = f"\n[... {dropped} bytes dropped ...]\n"
    return head.decode("utf-8", "replace") + marker + tail.decode("utf-8", "replace")
