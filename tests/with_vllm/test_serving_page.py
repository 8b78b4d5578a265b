"""The commands and the code of docs/how_to/serve.md run, and served models succeed as often as the page says."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gymnast.cli.main import main
from gymnast.envs import Episode
from gymnast.envs.adapters import SmolagentsEpisode, smolagents_model
from gymnast.records import read_episodes

from . import boxes
from .serving import ServerProcess, start_servers

smolagents: Any = importlib.import_module("smolagents")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "how_to" / "serve.md"
BLOCKS = re.findall(r"^```(python|bash)\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
SERVE = next(shlex.split(text) for _, text in BLOCKS if text.startswith("gymnast serve"))
SMALL = ["--served-model-name", "my-agent", "--max-model-len", "2048", "--kv-cache-memory-bytes", str(64 << 20)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    assert SERVE[:6] == ["gymnast", "serve", "vllm", "my-agent", "--port", "8000"]
    folder = tmp_path_factory.mktemp("serving") / "my-agent"
    boxes.save_tiny_model(folder)
    [started] = start_servers(folder, 1, [*SERVE[6:], *SMALL])
    yield started
    started.stop()


@pytest.fixture(autouse=True)
def _folder(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(server.model.parent)


def test_every_command_and_block_runs(server: ServerProcess, capfd: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {"__name__": "serve"}
    for language, text in BLOCKS:
        text = text.replace("http://gpu1:8000", server.url)
        if language == "python":
            exec(compile(text, str(PAGE), "exec"), names)
            continue
        for line in text.splitlines():
            command, *arguments = shlex.split(line)
            if command == "gymnast" and arguments[0] != "serve":
                assert main(arguments) == 0
            elif command == "curl":
                said = subprocess.run([command, "-s", *arguments], check=True, capture_output=True).stdout
                assert json.loads(said)["choices"][0]["message"]["role"] == "assistant"
    assert "hermes\n" in capfd.readouterr().out
    served, loaded = (_by_task(f"evals/{name}") for name in ("served", "loaded"))
    assert len(served) == 4
    assert {task: _first_calls(served[task]) for task in served} == {
        task: _first_calls(loaded[task]) for task in loaded
    }


def _first_calls(episode: Episode) -> list[Any]:
    """Return the calls of the first answer without their ids, which are the server's."""
    return [call["function"] for call in episode.turns[0].message.get("tool_calls", [])]


def _by_task(path: str) -> dict[str, Episode]:
    episodes = [episode for _, episode in read_episodes(Path(path) / "evaluations.jsonl")]
    return {json.dumps(episode.spec.task.row, sort_keys=True): episode for episode in episodes}


def _evaluated(url: str) -> list[float]:
    Path("held_out.jsonl").write_text("\n".join(map(json.dumps, boxes.HELD_OUT)))
    options = ["--max-turns", "4", "--max-tokens", "64", "--temperature", "0", "--tasks", "held_out.jsonl"]
    environment = f"{boxes.__file__}:Boxes"
    assert main(["eval", environment, "--model", "my-agent", "--url", url, *options, "-o", "boxes"]) == 0
    episodes = _by_task("boxes")
    return [episodes[json.dumps(row, sort_keys=True)].reward or 0.0 for row in boxes.HELD_OUT]


def _played(make_agent: Callable[[SmolagentsEpisode], Any], count: int = 32) -> list[float]:
    rewards = []
    for row in boxes.HELD_OUT[:count]:
        with SmolagentsEpisode(boxes.Boxes(), row) as episode:
            make_agent(episode).run(episode.prompt)
        rewards.append(episode.reward)
    return rewards


def test_success_is_what_the_page_says(server: ServerProcess) -> None:
    url = f"{server.url}/v1"
    shared: dict[str, Any] = {"max_steps": 4, "verbosity_level": 0}
    greedy: dict[str, Any] = {"temperature": 0.0, "max_tokens": 64}

    def trained(episode: SmolagentsEpisode) -> Any:
        model = smolagents_model("my-agent", url, **greedy)
        return smolagents.ToolCallingAgent(tools=episode.tools, model=model, **shared)

    def own(kind: Any, **options: Any) -> Callable[[SmolagentsEpisode], Any]:
        model = smolagents.OpenAIModel("my-agent", url, api_key="none", **greedy | options)
        return lambda episode: kind(tools=episode.tools, model=model, prompt_templates=boxes.SHORT, **shared)

    ours, theirs = _evaluated(url), _played(trained)
    calling = _played(own(smolagents.ToolCallingAgent, max_tokens=16), count=8)
    coding = _played(own(smolagents.CodeAgent))
    rates = [sum(rewards) / len(rewards) for rewards in (ours, theirs, calling, coding)]
    table = PAGE.read_text().partition("<!-- measured -->")[2]
    rows = [line.split(" | ") for line in table.splitlines() if "| `" in line]
    assert len(rows) == 4
    for rate, row in zip(rates, rows, strict=True):
        *low, high = map(float, re.findall(r"[\d.]+", row[-1]))
        assert (low[0] <= rate <= high) if low else (abs(rate - rates[0]) <= high), (rates, row)
