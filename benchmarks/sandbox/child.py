"""Two measurements of the sandbox benchmark that need a process of their own: its memory, and what it leaves behind.

python -m benchmarks.sandbox.child flood    500 MB of output; prints what this process needed, as JSON
python -m benchmarks.sandbox.child owner    prints a line when its boxes are up, and waits to be killed
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys

from gymnast.sandbox import DockerExecutor, Engine

from .peers.memory import growth_in_mb

FLOOD_MB = 500
FLOOD = f'import sys\nfor _ in range({FLOOD_MB}):\n    sys.stdout.write(("x" * 99 + "\\n") * 10_000)\n'
BOXES = 4


def main() -> None:
    if sys.argv[1:] == ["flood"]:
        with asyncio.Runner() as runner:
            flood(runner)
    elif sys.argv[1:] == ["owner"]:
        asyncio.run(own())
    else:
        sys.exit(f"usage: {sys.argv[0]} flood|owner")


def flood(runner: asyncio.Runner) -> None:
    box = DockerExecutor()
    runner.run(box.start())
    try:
        runner.run(box.python("print(1)"))
        result, growth = growth_in_mb(lambda: runner.run(box.python(FLOOD, timeout=60)))
    finally:
        runner.run(box.close())
    kept = len(result.stdout) / 1e6
    assert result.ok, result
    assert kept < 2, f"{kept:.1f} MB were kept"
    assert result.dropped_bytes > (FLOOD_MB - 2) * 1e6, f"only {result.dropped_bytes} bytes were dropped"
    values = {"output": growth, "output_mb": FLOOD_MB, "output_returned_mb": kept, "output_seconds": result.duration}
    print(json.dumps(values))


async def own() -> None:
    engine = Engine()
    async with contextlib.AsyncExitStack() as boxes:
        for _ in range(BOXES):
            box = await boxes.enter_async_context(DockerExecutor(engine=engine))
            await box.python("1")
        print("up", flush=True)
        await asyncio.sleep(60)  # killed long before


if __name__ == "__main__":
    main()
