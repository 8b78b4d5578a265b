"""An agent that looks at the plots it makes: code runs in a sandbox, and `view` shows a picture from there.

    python examples/plots.py

`PlotEnv` is a `CodeEnv` with one more tool. This program plays one episode with a fixed list of calls, and leaves it in
`runs/plots/` for `gymnast view`. It needs Docker or bubblewrap. The default image has no Matplotlib, so the code in the
box writes its PNG itself; `DockerExecutor(image=Path("sandbox/images/dockerfiles/python"))` has Matplotlib.

    gymnast play examples/plots.py:PlotEnv --tasks examples/plots.py:ROWS --model Qwen/Qwen2.5-VL-3B-Instruct

lets a pretrained model look. The model of `make pretrained` reads only text.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from gymnast.envs import CodeEnv, Image, RolloutEngine, ScriptedPolicy, tool, tool_call
from gymnast.records.files.episode_log import append_episodes
from gymnast.sandbox import ExecutorPool, Limits, SandboxError, default_executor


class PlotEnv(CodeEnv):
    """Answer questions about data with programs, plots and a look at them."""

    tools_in = "calls"  # code in the box could not show the model a picture

    @tool
    async def view(self, path: str) -> Image:
        """Look at a picture.

        Args:
            path: A PNG, JPEG, GIF or WebP file in the workspace.
        """
        return await asyncio.to_thread(Image.of, await self.box.read_file(path))


PLOT = r"""
import struct, zlib

def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

heights = [int(line) for line in open("heights.txt")]
rows = [[0, *(255 * (height <= y) for height in heights for _ in range(8))] for y in reversed(range(64))]
size = struct.pack(">IIBBBBB", 8 * len(heights), 64, 8, 0, 0, 0, 0)  # eight bits of grey
parts = {b"IHDR": size, b"IDAT": zlib.compress(b"".join(map(bytes, rows))), b"IEND": b""}
with open("plot.png", "wb") as file:
    file.write(b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts.items()))
"""
HEIGHTS = [20, 24, 22, 61, 23, 19, 25, 21]
ROWS = [
    {
        "prompt": "Plot heights.txt and look: which line, counted from 1, is the outlier?",
        "files": {"heights.txt": "\n".join(map(str, HEIGHTS))},
        "answer": 1 + HEIGHTS.index(61),
    }
]
CALLS = [
    tool_call("python", code=PLOT),
    tool_call("view", path="no-plot.png"),  # the error is told to the model
    tool_call("view", path="plot.png"),
    tool_call("final_answer", answer="4"),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output-dir", type=Path, default=Path("runs/plots"))
    folder = parser.parse_args().output_dir
    try:
        pool = ExecutorPool(default_executor(limits=Limits(memory="128m")), max_boxes=1)
        try:
            [episode] = RolloutEngine(PlotEnv(pool), ScriptedPolicy(CALLS)).play(ROWS)
        finally:
            asyncio.run(pool.close())
    except SandboxError as error:  # for example no engine; the message says how to install one
        raise SystemExit(f"error: {error}") from None
    folder.mkdir(parents=True, exist_ok=True)
    append_episodes(folder / "episodes.jsonl", [{"step": 0}], [episode])
    print(episode)
    print(f"gymnast view {folder} --open shows what the agent saw")


if __name__ == "__main__":
    main()
