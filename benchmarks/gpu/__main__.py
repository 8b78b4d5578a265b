"""Measurements that need a GPU: each takes a few minutes, and is kept when it finishes.

    python -m benchmarks.gpu                      # lists the measurements, and which are done
    python -m benchmarks.gpu update generation    # runs those that are not done yet; or `all`
    python -m benchmarks.gpu all --small          # the same with tiny models, on a CPU, too

Each measurement is a process of its own and ends after ten minutes. Results go to benchmarks/results/gpu.json. With
`--small` they are not written, unless `--output` names a file. `make gpu-kit` packs all of this for a machine without a
network.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results" / "gpu.json"
LIMIT = 600.0
"""Seconds of one measurement."""

MEASUREMENTS: dict[str, list[str]] = {
    "update/0.1B/plain": ["update", "--size", "0.1B", "--how", "plain"],
    "update/0.1B/here": ["update", "--size", "0.1B", "--how", "here"],
    "update/0.6B/plain": ["update", "--size", "0.6B", "--how", "plain"],
    "update/0.6B/here": ["update", "--size", "0.6B", "--how", "here"],
    "generation/0.1B": ["generation", "--size", "0.1B"],
    "generation/0.6B": ["generation", "--size", "0.6B"],
    "learning/grpo": ["learning", "--algorithm", "grpo"],
    "learning/rloo": ["learning", "--algorithm", "rloo"],
    "vllm/0.6B": ["generation", "--size", "0.6B", "--generator", "vllm"],
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


def measure(name: str, *, small: bool) -> dict[str, Any]:
    """The values of a measurement, or `{"error": ...}`."""
    program, *arguments = MEASUREMENTS[name]
    if name.startswith("vllm/") and find_spec("vllm") is None:
        return {"error": "vLLM is not installed here"}
    command = [sys.executable, "-m", f"benchmarks.gpu.{program}", *arguments, *(["--small"] if small else [])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return {"error": f"it took longer than {LIMIT:.0f} s"}
    if done.returncode:
        return {"error": done.stderr[-2000:]}
    return json.loads(done.stdout.splitlines()[-1])


def shown(values: dict[str, Any]) -> str:
    if "error" in values:
        return f"not measured: {values['error']}"
    numbers = {key: value for key, value in values.items() if isinstance(value, int | float)}
    return ", ".join(f"{key} {value:,.4g}" for key, value in numbers.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="measurements; none: list them")
    parser.add_argument("--small", action="store_true", help="tiny models, to see that the programs work")
    parser.add_argument("--again", action="store_true", help="repeat those that are done, too")
    parser.add_argument("--output", type=Path, help="the results' file")
    arguments = parser.parse_args()
    output: Path | None = arguments.output or (None if arguments.small else RESULTS)
    results: dict[str, Any] = json.loads(output.read_text()) if output and output.is_file() else {}
    if not arguments.names:
        for name in MEASUREMENTS:
            print(f"{name:<20} {shown(results[name]) if name in results else '-'}")
        return
    failed = False
    for name in chosen(arguments.names):
        if name in results and not arguments.again:
            print(f"{name:<20} done before: {shown(results[name])}")
            continue
        values = measure(name, small=arguments.small)
        print(f"{name:<20} {shown(values)}", flush=True)
        if "error" in values:  # so that the next call tries again
            failed = True
            continue
        results[name] = values
        if output is not None:
            output.parent.mkdir(parents=True, exist_ok=True)
            output.write_text(json.dumps(results, indent=2) + "\n")
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
