"""Measures rollouts against their targets and beside TRL's GRPOTrainer with the same model, tasks, tools and budgets.

    python -m benchmarks.rollout
    python -m benchmarks.rollout --quick               small samples, to see that everything works; writes no results

prints a table, writes benchmarks/results/rollout.json and draws docs/timeline.png. It takes about four minutes on two
cores. Only TRL's generation is timed, from the prompts to the last token, tools included.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import gc
import json
import os
import platform
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import transformers

from gymnast.envs import Episode, Message, RolloutEngine, ScriptedPolicy, ToolEnv, tool, tool_call
from gymnast.trainer import GRPOConfig, GRPOTrainer

from ..figures import Figure, Values, entry, print_table, rounded
from .engine import token_bookkeeping
from .timeline import Timeline, WatchedGenerator, draw
from .work import LookUp, blocking_look_up, latencies, rows, warmed_up_model

RESULTS = Path(__file__).parents[1] / "results" / "rollout.json"
ROOT = Path(__file__).resolve().parents[2]
VLLM = ROOT / ".venv-vllm" / "bin" / "python"
PICTURE = ROOT / "docs" / "timeline.png"
EPISODES, GROUP, MAX_TOKENS = 64, 8, 128
TURN_SECONDS = 0.02  # of the scripted policy
HUNG_SECONDS = 3.0  # after which the hung tool is given up

FIGURES = (
    Figure(key="episodes", name="64 episodes, slow tools: episodes a second", unit="1/s", target=None, at_least=True),
    Figure(key="speedup", name="  the same as a multiple of TRL's", unit="x", target=8, at_least=True, peers=False),
    Figure(key="vllm_episodes", name="  the same with vLLM", unit="1/s", target=None, at_least=True, peers=False),
    Figure(
        key="vllm_speedup", name="  the same as a multiple of TRL's", unit="x", target=8, at_least=True, peers=False
    ),
    Figure(key="critical", name="time / critical path of the slowest episode", unit="", target=1.1, peers=False),
    Figure(key="overhead", name="engine overhead a turn, 1,024 episodes", unit="us", target=250, peers=False),
    Figure(key="growth", name="  growth from 64 to 4,096 episodes", unit="x", target=1.2, peers=False),
    Figure(key="bookkeeping", name="tokens of a turn: turn 30 / turn 3", unit="x", target=1.2, peers=False),
    Figure(
        key="prefix",
        name="vLLM: tokens of earlier turns that it knows",
        unit="%",
        target=90,
        at_least=True,
        peers=False,
    ),
    Figure(key="twice", name="  prefilled twice, in full blocks of its cache", unit="tokens", target=0, peers=False),
    Figure(key="hung", name="a hung tool: time of the others, with / without", unit="x", target=1.1, peers=False),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="small samples, to see that everything works; writes no results"
    )
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--timeline", type=Path, help="the picture; docs/timeline.png by default, none if --quick")
    parser.add_argument("--vllm", default=VLLM, help="a Python that has vLLM (default: %(default)s), or none")
    arguments = parser.parse_args()
    facts: dict[str, Any] = {
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    print(", ".join(f"{name} {value}" for name, value in facts.items()), flush=True)
    ours: Values = {}
    theirs: Values = {}
    with tempfile.TemporaryDirectory() as folder:
        model, tokenizer = save_model(folder, steps=30 if arguments.quick else 300)
        print("  with_vllm ...", flush=True)
        with_vllm(ours, folder, str(arguments.vllm), quick=arguments.quick)
        print("  beside_trl ...", flush=True)
        timelines = beside_trl(ours, theirs, model, tokenizer, quick=arguments.quick)
    if isinstance(ours["vllm_episodes"], float):
        ours["vllm_speedup"] = ours["vllm_episodes"] / float(theirs["episodes"])
    picture = arguments.timeline or (None if arguments.quick else PICTURE)
    if picture is not None:
        draw(timelines, picture)
    for part in (critical_path, overhead, bookkeeping, hung_tool):
        print(f"  {part.__name__} ...", flush=True)
        part(ours, theirs, quick=arguments.quick)
    entries = [entry(figure, ours, {"TRL": theirs}) for figure in FIGURES]
    print_table(entries, ["TRL"])
    if not arguments.quick:
        results = {"machine": facts, "figures": entries, "details": {"gymnast": rounded(ours), "TRL": rounded(theirs)}}
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(json.dumps(results, indent=2) + "\n")


# --- a model with slow tools, beside TRL --------------------------------------------------------------------------


def save_model(folder: str, *, steps: int) -> tuple[Any, Any]:
    """The model that all play with, and its tokenizer."""
    probe = ToolEnv([blocking_look_up(time.sleep, latencies(0))])
    model, tokenizer = warmed_up_model(list(probe.tool_schemas()), seed=1, steps=steps)
    probe.close()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer


def with_vllm(ours: Values, folder: str, python: str, *, quick: bool) -> None:
    """Play the same episodes with vLLM, and long ones to measure its prefix cache."""
    keys = ("vllm_episodes", "vllm_speedup", "prefix", "twice")
    if not Path(python).exists():
        ours |= dict.fromkeys(keys, f"not measured: there is no Python at {python!r}")
        return
    episodes = 16 if quick else EPISODES
    command = [python, "-m", "benchmarks.rollout.with_vllm", folder, str(episodes)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    if done.returncode:
        ours |= dict.fromkeys(keys, f"failed: {done.stderr.strip().splitlines()[-1:]}")
        return
    seen = json.loads(done.stdout.splitlines()[-1])
    ours |= {
        "vllm_episodes": episodes / seen["seconds"],
        "vllm_calls": float(seen["calls"]),
        "prefix": 100 * seen["cached"] / seen["known"],
        "twice": float(seen["lost_tokens"]),
        "twice_in_last_blocks": float(seen["known"] - seen["cached"] - seen["lost_tokens"]),
        "prefix_turns": float(seen["turns"]),
        "prefix_context": seen["context"],
    }


def beside_trl(ours: Values, theirs: Values, model: Any, tokenizer: Any, *, quick: bool) -> dict[str, Timeline]:
    """The same episodes here and there; what each of them was doing when."""
    from . import with_trl

    episodes = 16 if quick else EPISODES
    timeline = Timeline()
    with tempfile.TemporaryDirectory() as folder:
        copied = copy.deepcopy(model)
        generator = WatchedGenerator(timeline, copied, pad_id=tokenizer.pad_token_id)
        trainer = GRPOTrainer(
            model=copied,
            environment=ToolEnv([blocking_look_up(timeline.sleep, latencies(1))]),
            reward_funcs=lambda completions: [0.0] * len(completions),
            args=GRPOConfig(
                output_dir=folder,
                record_run=False,
                max_completion_length=MAX_TOKENS,
                max_turns=with_trl.TURNS,
                seed=1,
                use_cpu=True,
                report_to="none",
            ),
            train_dataset=rows(8, seed=1),
            processing_class=copy.deepcopy(tokenizer),
            generator=generator,
        )
        timeline.start()
        played = trainer.rollout(rows(episodes // GROUP, seed=1), num_generations=GROUP)
        timeline.stop()
        generator.close()
    assert not any(episode.failure for episode in played), next(e.failure for e in played if e.failure)
    assert timeline.count("generation") == sum(len(episode.turns) for episode in played)
    other = with_trl.play(model, tokenizer, episodes=episodes, group=GROUP, max_tokens=MAX_TOKENS, seed=1)
    assert other.count("tool") > 0, "TRL called no tool: there is nothing to compare"
    ours |= {
        "episodes": episodes / timeline.seconds,
        "speedup": other.seconds / timeline.seconds,
        "episodes_calls": float(timeline.count("tool")),
        "episodes_seconds": timeline.seconds,
    }
    theirs |= {
        "episodes": episodes / other.seconds,
        "episodes_calls": float(other.count("tool")),
        "episodes_seconds": other.seconds,
    }
    return {"gymnast": timeline, "TRL's GRPOTrainer": other}


# --- the engine alone ---------------------------------------------------------------------------------------------


def critical_path(ours: Values, theirs: Values, *, quick: bool) -> None:
    """The same tools and a policy that takes 20 ms a turn: how much longer than the slowest episode must take."""

    def seconds(episode: Episode) -> float:
        return TURN_SECONDS * len(episode.turns) + episode.metrics["waited"]

    script = [*[tool_call("look_up", name="river")] * 3, "Done."]
    engine = RolloutEngine(LookUp, ScriptedPolicy(script, delay=TURN_SECONDS), max_concurrency=EPISODES)
    started = time.perf_counter()
    episodes = engine.play(rows(8 if quick else EPISODES, seed=2))
    elapsed = time.perf_counter() - started
    assert all(len(episode.turns) == 4 for episode in episodes)
    ours["critical"] = elapsed / max(map(seconds, episodes))


class Instant(ToolEnv):
    """One tool that takes no time."""

    @tool
    async def look(self) -> str:
        """Look."""
        return "seen"


def overhead(ours: Values, theirs: Values, *, quick: bool, turns: int = 8) -> None:
    """What a turn costs with a scripted policy and an instant tool, that is the engine's own work."""
    script: list[Message | str] = [*[tool_call("look")] * (turns - 1), "Done."]

    def microseconds(count: int) -> float:
        engine = RolloutEngine(Instant, ScriptedPolicy(script), max_concurrency=count)
        gc.collect()
        started = time.perf_counter()
        episodes = engine.play([{"prompt": "go"}], group_size=count)
        elapsed = time.perf_counter() - started
        assert all(len(episode.turns) == turns and episode.failure is None for episode in episodes)
        return elapsed / (count * turns) * 1e6

    microseconds(64)
    counts = (64, 128, 256) if quick else (64, 1024, 4096)

    def sample(count: int) -> float:
        """Use equally many turns in each sample: a short one could catch a quiet moment of the machine."""
        return statistics.mean(microseconds(count) for _ in range(counts[-1] // count))

    few, many, most = (min(sample(count) for _ in range(1 if quick else 3)) for count in counts)
    ours |= {"overhead_64": few, "overhead": many, "overhead_4096": most, "growth": most / few}


def bookkeeping(ours: Values, theirs: Values, *, quick: bool) -> None:
    """Check that later turns are not slower: earlier turns are neither rendered nor tokenised again."""
    (_, early, _), (_, late, _) = token_bookkeeping()
    ours |= {"bookkeeping": late / early, "bookkeeping_turn_3_us": early, "bookkeeping_turn_30_us": late}


def hung_tool(ours: Values, theirs: Values, *, quick: bool) -> None:
    """When the last of the other 63 episodes ends, if one episode's tool hangs, and if none does."""
    count = 8 if quick else EPISODES

    class Hangs(ToolEnv):
        hangs = False

        async def reset_task(self, task: Any) -> list[Message]:  # type: ignore[override]
            self.hangs = task["hangs"]
            return [{"role": "user", "content": "go"}]

        @tool(timeout=HUNG_SECONDS)
        async def look(self) -> str:
            """Look."""
            await asyncio.sleep(1000 if self.hangs else 0.1)
            return "seen"

    def seconds(hung: int) -> float:
        others: list[float] = []
        started = time.perf_counter()

        async def script(messages: list[Message]) -> Message | str:
            if messages[-1]["role"] == "tool":
                others.append(time.perf_counter() - started)
                return "Done."
            return tool_call("look")

        engine = RolloutEngine(Hangs, ScriptedPolicy(script), max_concurrency=count)
        engine.play([{"prompt": "go", "hangs": number < hung} for number in range(count)])
        return sorted(others)[count - 1 - hung]

    without, with_one = (statistics.median(seconds(hung) for _ in range(1 if quick else 3)) for hung in (0, 1))
    ours |= {"hung": with_one / without, "hung_without_seconds": without, "hung_with_seconds": with_one}


if __name__ == "__main__":
    main()
