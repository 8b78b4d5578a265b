"""Trains an agent that sees, and its blind control, for three seeds; measures what pictures cost.

    python -m benchmarks.seeing

runs examples/walk.py in runs/seeing/, where trainings that are over are not repeated: three to five minutes for each
seed on two cores. It writes benchmarks/results/seeing.json, the table of docs/evidence.md, and that of the costs in
docs/tutorials/seeing.md. `--quick` measures the costs only, and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import PIL.Image
import PIL.ImageDraw
import torch
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from gymnast.envs import Image
from gymnast.trainer.models.images import ImageEncoder
from gymnast.trainer.testing.tiny_vision import make_tiny_processor

from ..evidence import write_table

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "seeing.json"
SIZES = ((224, 224), (640, 480), (1280, 720), (1920, 1080))
COST = ["Picture", "PNG", "Features", "Tokens", "Decode", "Process"]


def train(seed: int, folder: Path) -> dict[str, Any]:
    """Train once, unless that is done, and return the run's summary."""
    summary = folder / f"walk-grpo-seed{seed}" / "summary.json"
    if not summary.exists():
        program = [sys.executable, str(ROOT / "examples" / "walk.py"), "--seed", str(seed), "--output-dir", str(folder)]
        subprocess.run(program, check=True, stdout=subprocess.DEVNULL)
    return json.loads(summary.read_text())


def rows_of(runs: list[dict[str, Any]]) -> list[list[str]]:
    """The table of the evidence: a row for each seed and each of its two models."""
    head = ["Seed", "Pictures", "Before", "Before, greedy", "After", "After, greedy", "Processor seconds"]
    columns = [f"success_{when}{how}" for when in ("before", "after") for how in ("", "_greedy")]
    rows = [head]
    for run in runs:
        for name, found in (("shown", run), ("grey", run["control"])):
            shares = (f"{found[column]:.0%}".replace("%", " %") for column in columns)
            rows.append([str(run["seed"]), name, *shares, f"{found['processor_seconds']:.0f}"])
    return rows


def screenshot(width: int, height: int) -> Image:
    """A picture with sharp edges and few colours, as those of windows and pages."""
    rng, picture = random.Random(0), PIL.Image.new("RGB", (width, height), "white")
    draw = PIL.ImageDraw.Draw(picture)
    for _ in range(width * height // 4000):
        x, y = rng.randrange(width), rng.randrange(height)
        colour = tuple(rng.randrange(256) for _ in range(3))
        draw.rectangle((x, y, x + rng.randrange(2, 80), y + rng.randrange(2, 20)), fill=colour)
        draw.text((x, y), f"{rng.random():.6f}", fill="black")
    return Image.of(picture)


def milliseconds(work: Callable[[], Any]) -> float:
    """The shortest of five times."""
    times = []
    for _ in range(5):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return 1000 * min(times)


def costs() -> list[dict[str, Any]]:
    """What pictures of some sizes cost with the processor of Qwen3-VL, on one core."""
    torch.set_num_threads(1)
    processor = make_tiny_processor([])
    size = {"shortest_edge": 256**2, "longest_edge": 4096**2}
    processor.image_processor = Qwen2VLImageProcessorPil(patch_size=16, merge_size=2, temporal_patch_size=2, size=size)
    encoder, ids_BL = ImageEncoder(processor), torch.zeros(1, 1, dtype=torch.long)
    found = []
    for width, height in SIZES:
        image = screenshot(width, height)

        def features(image: Image = image) -> dict[str, torch.Tensor]:
            return encoder.inputs(ids_BL, torch.ones_like(ids_BL), [[image]])

        decode = milliseconds(image.open)
        cost = {"width": width, "height": height, "png_bytes": len(image.data)}
        cost |= {"feature_bytes": sum(value.nbytes for value in features().values())}
        cost |= {"tokens": encoder.text(image).count(encoder.placeholder), "decode_ms": round(decode, 1)}
        found.append(cost | {"process_ms": round(milliseconds(features) - decode, 1)})
    return found


def rows_of_costs(found: list[dict[str, Any]]) -> list[list[str]]:
    rows = [COST]
    for cost in found:
        sizes = [f"{cost['png_bytes'] / 1e3:.0f} kB", f"{cost['feature_bytes'] / 1e6:.1f} MB", f"{cost['tokens']:,}"]
        times = [f"{cost[name]:.0f} ms" for name in ("decode_ms", "process_ms")]
        rows.append([f"{cost['width']}x{cost['height']}", *sizes, *times])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--folder", type=Path, default=Path("runs/seeing"))
    arguments = parser.parse_args()
    found = costs()
    for row in rows_of_costs(found):
        print("".join(f"{cell:>12}" for cell in row))
    if arguments.quick:
        return
    runs = [train(seed, arguments.folder) for seed in arguments.seeds]
    for row in rows_of(runs):
        print("".join(f"{cell:>18}" for cell in row))
    RESULTS.write_text(json.dumps({"runs": runs, "costs": found}, indent=2) + "\n")
    write_table(ROOT / "docs" / "evidence.md", "seeing", rows_of(runs))
    write_table(ROOT / "docs" / "tutorials" / "seeing.md", "costs", rows_of_costs(found))


if __name__ == "__main__":
    main()
