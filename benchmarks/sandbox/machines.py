"""Whole machines: a program, a stream, a start, folders and snapshots of a `DockerBox`, beside a `DockerExecutor`."""

from __future__ import annotations

import asyncio
import shutil
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from gymnast.sandbox import DockerBox, DockerExecutor, Engine

from ..figures import Values

_FILES, _BYTES = 10_000, 100 << 20  # of the folder that is copied
_FORKS = 8


async def machines(quick: bool) -> Values:
    """Every figure of a box. Those that are compared are measured by turns, on the same engine."""
    async with Engine() as engine:
        calls = await _calls(engine, 50 if quick else 500)
        starts = await _starts(engine, 2 if quick else 10)
        folders = await _folders(engine, _FILES // 20 if quick else _FILES)
        forks = await _forks(engine, 2 if quick else _FORKS)
    return {**calls, **starts, **folders, **forks}


async def _calls(engine: Engine, count: int) -> Values:
    async with (
        DockerBox(engine=engine) as box,
        DockerExecutor(engine=engine) as executor,
        box.open(["cat"]) as process,
    ):

        async def echo() -> None:
            await process.write(b"x")
            assert await process.read() == b"x"

        kinds: dict[str, Callable[[], Awaitable[object]]] = {
            "box_stream": echo,
            "box_program": lambda: box.exec(["/bin/true"]),
            "session_program": lambda: executor.bash("/bin/true"),
        }
        seconds: dict[str, list[float]] = {name: [] for name in kinds}
        for _ in range(count):
            for name, call in kinds.items():
                seconds[name].append(await _seconds(call()))
    return {name: statistics.median(times) * 1e3 for name, times in seconds.items()}


async def _starts(engine: Engine, count: int) -> Values:
    seconds: dict[type, list[float]] = {DockerBox: [], DockerExecutor: []}
    for _ in range(count + 1):  # the first fills the guest's volume
        for kind, times in seconds.items():
            times.append(await _seconds(_start(kind(engine=engine))))
    box, executor = (statistics.median(times[1:]) for times in seconds.values())
    return {"box_cold_start": box * 1e3, "box_cold_start_ratio": box / executor}


async def _folders(engine: Engine, files: int) -> Values:
    with tempfile.TemporaryDirectory() as scratch:
        source, target = Path(scratch, "source"), Path(scratch, "target")
        await asyncio.to_thread(_fill, source, files)
        times: dict[str, list[float]] = {"copy_in": [], "copy_out": []}
        async with DockerBox(engine=engine) as box:
            for number in range(3):
                times["copy_in"].append(await _seconds(box.copy_in(source, f"/copy{number}")))
                times["copy_out"].append(await _seconds(box.copy_out(f"/copy{number}", target)))
                await asyncio.to_thread(shutil.rmtree, target)
    return {name: min(seconds) for name, seconds in times.items()}


async def _forks(engine: Engine, count: int) -> Values:
    """A snapshot after 1 MB of changes, and boxes of it, beside the start of a box."""
    plain = [await _seconds(_start(DockerBox(engine=engine))) for _ in range(3)]
    async with DockerBox(engine=engine) as box:
        await box.exec("mkdir /m; for n in $(seq 100); do head -c 10000 /dev/urandom > /m/$n; done")
        started = time.perf_counter()
        async with box.snapshot() as image:
            snapshot = time.perf_counter() - started
            await asyncio.gather(*(_start(box.variant(image=image)) for _ in range(count)))
            forks = (time.perf_counter() - started) / count
    return {"snapshot": snapshot * 1e3, "fork_ratio": forks / statistics.median(plain)}


async def _start(box: DockerBox | DockerExecutor) -> None:
    async with box:
        await box.ping()


async def _seconds(call: Awaitable[object]) -> float:
    started = time.perf_counter()
    await call
    return time.perf_counter() - started


def _fill(folder: Path, files: int) -> None:
    for number in range(files):
        path = folder / f"{number % 100}/{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(_BYTES // _FILES))
