"""Measurements that need a GPU, the most valuable first. Each is kept as soon as it ends.

    python -m benchmarks.gpu                                  # lists the measurements, and which are done
    python -m benchmarks.gpu all                              # takes those that are not done yet, for up to 9.5 minutes
    python -m benchmarks.gpu update/0.6B generation/0.6B      # takes some
    python -m benchmarks.gpu all --known earlier/gpu.json     # goes on where an earlier call ended, on a fresh machine
    python -m benchmarks.gpu all --small                      # the same with tiny models, on a CPU, too

Each measurement is a process of its own and ends after 280 seconds. A call begins a measurement only if it can end
within the call's `--seconds`: call again until all are done. Results go to gpu.json in the folder that the environment
variable OUT names, or else to benchmarks/results/gpu.json; with `--small` only to OUT. The file also has what is known,
and the errors of measurements that failed, which the next call tries again. `make gpu-kit` packs all of this for a
machine without a network.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results" / "gpu.json"
LIMIT = 280.0
"""Seconds of one measurement."""
CALL = 570.0
"""Seconds of one call, in which at least two measurements end; machines are often lent for ten minutes at a time."""
KEPT = 20_000
"""Characters that are kept of the errors of a measurement that failed."""

MEASUREMENTS: dict[str, list[str]] = {
    "generation/0.6B": ["generation", "--size", "0.6B"],
    "update/0.6B/here": ["update", "--size", "0.6B", "--how", "here"],
    "update/0.6B/plain": ["update", "--size", "0.6B", "--how", "plain"],
    "training/0.6B": ["training", "--size", "0.6B"],
    "vllm/0.6B": ["generation", "--size", "0.6B", "--generator", "vllm"],
    "vllm/0.6B/training": ["training", "--size", "0.6B", "--generator", "vllm"],
    "training/0.6B/overlapped": ["training", "--size", "0.6B", "--max-staleness", "1"],
    "prompts/0.6B": ["contexts", "--size", "0.6B", "--what", "prompts"],
    "turns/0.6B": ["contexts", "--size", "0.6B", "--what", "turns"],
    "vllm/0.6B/turns": ["contexts", "--size", "0.6B", "--what", "turns", "--generator", "vllm"],
    "packing/0.6B/4k": ["packing", "--size", "0.6B", "--longest", "4096"],
    "packing/0.6B/16k": ["packing", "--size", "0.6B", "--longest", "16384"],
    "update/0.6B/checkpointing": ["update", "--size", "0.6B", "--how", "here", "--checkpointing"],
    "update/0.6B/compiled": ["update", "--size", "0.6B", "--how", "here", "--compile"],
    "generation/0.1B": ["generation", "--size", "0.1B"],
    "update/0.1B/here": ["update", "--size", "0.1B", "--how", "here"],
    "update/0.1B/plain": ["update", "--size", "0.1B", "--how", "plain"],
    "learning/grpo": ["learning", "--algorithm", "grpo"],
    "learning/rloo": ["learning", "--algorithm", "rloo"],
}
"""The measurements in their order: the program in this folder, and its arguments."""


def chosen(names: list[str]) -> list[str]:
    """The measurements of a name; the name may be `all`, or the part of a name before a slash."""
    unknown = [name for name in names if name != "all" and not any(_matches(key, name) for key in MEASUREMENTS)]
    if unknown:
        sys.exit(f"there is no measurement {', '.join(unknown)}; there are: all, {', '.join(MEASUREMENTS)}")
    return [key for key in MEASUREMENTS if any(name == "all" or _matches(key, name) for name in names)]


def _matches(key: str, name: str) -> bool:
    return key == name or key.startswith(f"{name}/")


def measure(arguments: list[str], *, small: bool) -> dict[str, Any]:
    """The values of a measurement, `{"skipped": ...}`, or `{"error": ..., "stderr": ...}`.

    Args:
        arguments: The program in this folder, and its arguments.
        small: Whether the model is tiny. One thread is best for it.
    """
    if "vllm" in arguments and find_spec("vllm") is None:
        return {"skipped": "vLLM is not installed here"}
    program, *options = arguments
    command = [sys.executable, "-m", f"benchmarks.gpu.{program}", *options, *(["--small"] if small else [])]
    environment = os.environ | ({"OMP_NUM_THREADS": "1"} if small else {})
    try:
        done = subprocess.run(command, env=environment, capture_output=True, timeout=LIMIT)
    except subprocess.TimeoutExpired as error:
        return {"error": f"it took longer than {LIMIT:.0f} s", "stderr": _end(error.stderr)}
    if done.returncode:
        return {"error": f"it ended with {done.returncode}", "stderr": _end(done.stderr)}
    return json.loads(done.stdout.splitlines()[-1]) | {"small": small}


def _end(output: bytes | None) -> str:
    return (output or b"").decode(errors="replace")[-KEPT:]


def is_done(values: dict[str, Any] | None, *, small: bool) -> bool:
    """Whether these are values of a measurement in this size."""
    return values is not None and values.get("small") == small


def shown(values: dict[str, Any] | None) -> str:
    if values is None:
        return "-"
    if "skipped" in values:
        return f"skipped: {values['skipped']}"
    if "error" in values:
        return f"failed: {values['error']}\n{values['stderr'][-2000:]}"
    numbers = {key: value for key, value in values.items() if isinstance(value, int | float) and key != "small"}
    return ", ".join(f"{key} {value:,.4g}" for key, value in numbers.items())


def known_results(paths: list[Path], *, small: bool) -> dict[str, Any]:
    """The results of earlier calls; those of later files replace those of earlier ones, but not by an error."""
    results: dict[str, Any] = {}
    for path in paths:
        found: dict[str, Any] = json.loads(path.read_text())
        for name, values in found.items():
            if is_done(values, small=small) or not is_done(results.get(name), small=small):
                results[name] = values
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="measurements; none: list them")
    parser.add_argument("--small", action="store_true", help="tiny models, to see that the programs work")
    parser.add_argument("--again", action="store_true", help="repeat those that are done, too")
    parser.add_argument("--known", type=Path, help="results of earlier calls, which are not repeated")
    parser.add_argument("--output", type=Path, help="the results' file (default: see above)")
    parser.add_argument("--seconds", type=float, default=CALL, help="of this call (default: %(default)g)")
    arguments = parser.parse_args()
    end = time.monotonic() + arguments.seconds
    folder = os.environ.get("OUT")
    usual = Path(folder) / "gpu.json" if folder else None if arguments.small else RESULTS
    output: Path | None = arguments.output or usual
    known: Path | None = arguments.known
    if known is not None and not known.is_file():
        parser.error(f"--known {known}: there is no such file; a first call needs none")
    files = [path for path in (known, output) if path is not None and path.is_file()]
    small: bool = arguments.small
    results = known_results(files, small=small)
    if not arguments.names:
        for name in MEASUREMENTS:
            print(f"{name:<25} {shown(results.get(name))}")
        return
    failed, left = False, list[str]()
    for name in chosen(arguments.names):
        if is_done(results.get(name), small=small) and not arguments.again:
            print(f"{name:<25} done before: {shown(results[name])}")
        elif time.monotonic() + LIMIT > end:
            left.append(name)
        else:
            values = measure(MEASUREMENTS[name], small=small)
            print(f"{name:<25} {shown(values)}", flush=True)
            failed = failed or "error" in values
            if is_done(values, small=small) or not is_done(results.get(name), small=small):
                results[name] = values
            write(output, results)
    write(output, results)  # what is known travels, too
    if left:
        print(f"not begun in the {arguments.seconds:g} s of this call: {', '.join(left)}; call again to go on")
    sys.exit(int(failed))


def write(output: Path | None, results: dict[str, Any]) -> None:
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
