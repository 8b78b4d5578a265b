"""The page of `gymnast view` with 10,000 episodes, in Chromium.

    python -m benchmarks.view [--episodes 10000] [--tokens 400]

writes a run folder with made-up episodes of six turns, makes its page, and opens it from disk several times. It prints
a table and writes benchmarks/results/view.json. It fails if the median of the first paints comes a second or more after
the page was asked for. It needs Chromium.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright

from gymnast.cli.microscope.page import write_page
from gymnast.envs import Episode, EpisodeSpec, StopReason, Task, TokenTrace, ToolCallRecord, Turn, tool_call
from gymnast.envs.tokens import Tokens
from gymnast.records.files.run import Run

RESULTS = Path(__file__).parents[1] / "results" / "view.json"
TARGET = 1.0  # seconds to the first paint
GROUP, GROUPS, TURNS = 8, 8, 6  # episodes of a group, groups of a step, turns of an episode
WORDS = [first + last for first in "bdklmnrst" for last in ("al", "en", "or", "um")]


def make_episode(rng: random.Random, place: int, tokens: int) -> Episode:
    group, member = divmod(place, GROUP)
    trace, turns = TokenTrace(prompt_ids=[rng.randrange(1000) for _ in range(60)]), []
    for turn in range(TURNS):
        sampled = tokens // TURNS // 2
        trace.append_sampled([rng.randrange(1000) for _ in range(sampled)], [-rng.random() for _ in range(sampled)])
        trace.append_observation(Tokens([rng.randrange(1000) for _ in range(tokens // TURNS - sampled)]))
        message = tool_call("search", query=" ".join(rng.choices(WORDS, k=8)))
        results: list[Any] = [{"role": "tool", "name": "search", "content": " ".join(rng.choices(WORDS, k=40))}]
        record = ToolCallRecord(name="search", call_id=None, outcome="ok", seconds=rng.random())
        times: dict[str, Any] = {"began": 2.0 * turn, "generation_seconds": rng.random()}
        times["environment_seconds"] = rng.random()
        turns.append(Turn(message=message, observation=results, num_tokens=sampled, tool_calls=[record], **times))
    task = Task(id=f"train-{group % 200}")
    asked = random.Random(task.id)
    return Episode(
        spec=EpisodeSpec(task=task, group=f"{task.id}@{group // GROUPS}", member=member),
        prompt=[{"role": "user", "content": " ".join(asked.choices(WORDS, k=30))}],
        turns=turns,
        stop=rng.choice([StopReason.FINAL_ANSWER, StopReason.MAX_TURNS]),
        reward=float(rng.random() < 0.5),
        traces=[trace],
        seconds=14.0,
    )


def write_run(folder: Path, episodes: int, tokens: int) -> None:
    rng = random.Random(1)
    with (folder / "episodes.jsonl").open("w") as records, (folder / "learning.jsonl").open("w") as learning:
        texts = {str(token): f" {rng.choice(WORDS)}" for token in range(1000)}
        learning.write(json.dumps({"step": 0, "tokens": texts}) + "\n")
        for place in range(episodes):
            episode, step = make_episode(rng, place, tokens), place // (GROUP * GROUPS)
            records.write(f'{{"step": {step}, "episode": {episode.to_json()}}}\n')
            name = {"step": step, "group": episode.spec.group, "member": episode.spec.member}
            [trace] = episode.traces
            vote = {"vote": "counts", "reward": episode.reward, "advantages": [0.5]}
            logprobs = [round(value + 0.01, 6) for value in trace.logprobs]
            update = {"trace": 0, "update": step + 1, "logprobs": logprobs, "gradient": [1e-5 * m for m in trace.mask]}
            learning.writelines(json.dumps(name | line) + "\n" for line in (vote, update))
    with (folder / "metrics.jsonl").open("w") as metrics:
        for step in range(1, episodes // (GROUP * GROUPS) + 1):
            metrics.write(json.dumps({"step": step, "reward": rng.random(), "grad_norm": rng.random()}) + "\n")


def open_once(browser: Browser, url: str) -> dict[str, float]:
    """Milliseconds to the first paint and to the whole file; and to open the last episode then."""
    page = browser.new_page()
    page.goto(url, wait_until="load")
    paint = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
    loaded = "performance.getEntriesByType('navigation')[0].loadEventEnd"
    figures = {"first_paint": page.evaluate(paint), "loaded": page.evaluate(loaded)}
    started = time.perf_counter()
    page.evaluate("go({episode: run.episodes.length - 1, view: 'tokens'})")
    page.wait_for_selector("[data-view=tokens] .tok[tabindex]")
    figures["open_an_episode"] = 1000 * (time.perf_counter() - started)
    page.close()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--tokens", type=int, default=400, help="tokens of a completion (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    chromium = shutil.which("chromium")
    if chromium is None:
        parser.error("Chromium is missing: apt-get install chromium")
    with tempfile.TemporaryDirectory() as name, sync_playwright() as driver:
        folder = Path(name)
        write_run(folder, arguments.episodes, arguments.tokens)
        started = time.perf_counter()
        run = Run(folder)
        read = time.perf_counter()
        path = folder / "view.html"
        write_page(run, path)
        figures = {"read": read - started, "write": time.perf_counter() - read, "megabytes": path.stat().st_size / 1e6}
        figures["records_megabytes"] = sum(path.stat().st_size for path in folder.glob("*.jsonl")) / 1e6
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        times = [open_once(browser, path.as_uri()) for _ in range(5)]
        browser.close()
    figures |= {name: statistics.median(opening[name] for opening in times) / 1000 for name in times[0]}
    for name, value in figures.items():
        print(f"{name:>18}  {value:8.2f} {'MB' if name.endswith('megabytes') else 's'}")
    machine = {"python": platform.python_version(), "cores": os.cpu_count(), "load": os.getloadavg()[0]}
    arguments.output.write_text(
        json.dumps({"episodes": arguments.episodes, "tokens": arguments.tokens, **figures, **machine}, indent=2) + "\n"
    )
    if figures["first_paint"] >= TARGET:
        sys.exit(f"the first paint came after {figures['first_paint']:.2f} s, not within {TARGET:g} s")


if __name__ == "__main__":
    main()
