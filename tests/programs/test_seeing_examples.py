"""The examples of agents that see: they learn, and leave nothing behind."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import psutil
import pytest

from gymnast.envs import RolloutEngine, ScriptedPolicy, episode_specs, tool_call
from gymnast.records import read_episodes

from .example_runs import names_of, pictures, run

LONG = """<title>at 0</title><body style="height: 9000px">
<p>top<script>onscroll = () => document.title = "at " + scrollY; fetch("http://example.org")</script>"""
ROW = {"prompt": "Scroll down.", "page": "long.html", "goal": "document.title == 'at 300'"}


def test_a_click_is_trained_with_pictures(tmp_path: Path) -> None:
    assert "% after" in run("click.py", "--warm-up", "2", "--steps", "1", cwd=tmp_path)
    _, episode = next(iter(read_episodes(tmp_path / "runs" / "click" / "episodes.jsonl")))
    assert [str(span.image) for span in episode.traces[0].images] == ["[image 48x48]"]


@pytest.mark.parametrize("engine", ["docker", "none"])
@pytest.mark.usefixtures("image", "bubblewrap")
def test_an_agent_looks_at_its_plot(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if engine == "none":
        monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere")
    printed = run("plots.py", cwd=tmp_path)
    assert "[image 64x64]" in printed
    assert "No such file or directory: 'no-plot.png'" in printed
    assert "reward  +1" in printed


@pytest.fixture
def environment(tmp_path: Path) -> Any:
    """A `BrowserEnv` with one long page; beside its folder is a file that nobody must see."""
    if shutil.which("chromium") is None:
        pytest.skip("the browser of the agent is Chromium: apt-get install chromium")
    browser = names_of("browser.py")
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "long.html").write_text(LONG)
    (tmp_path / "secret.html").write_text("secret")
    return browser["BrowserEnv"](tmp_path / "pages", browser["Chromium"]())


def browsers() -> list[str]:
    """The processes of Chromium and of Playwright's driver that this one has started, and that live."""
    children = psutil.Process().children(recursive=True)
    return [child.name() for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]


async def test_episodes_share_a_browser_see_their_folder_only_and_leave_nothing(environment: Any) -> None:
    refused = ["../secret.html", "missing.html"]
    calls = [tool_call("goto", page="long.html"), tool_call("scroll", pixels=300), tool_call("type", text="x")]
    script = [*(tool_call("goto", page=page) for page in refused), *calls, "done"]
    games = await RolloutEngine(environment, ScriptedPolicy(script)).run(episode_specs([ROW] * 3, group_size=1, seed=0))
    for game in games:
        assert game.reward == 1.0
        secret, missing, opened, scrolled, typed = pictures(game)
        assert secret == missing != opened
        assert opened != scrolled == typed
    assert browsers() == []


async def test_cancelled_episodes_leave_no_browser(environment: Any) -> None:
    started = asyncio.Semaphore(0)

    class Waiting(type(environment)):
        async def reset_task(self, task: Any) -> Any:
            await super().reset_task(task)
            started.release()
            await asyncio.Event().wait()

    waiting = Waiting(environment.folder, environment.browser)
    playing = asyncio.create_task(
        RolloutEngine(waiting, ScriptedPolicy([])).run(episode_specs([ROW] * 2, group_size=1, seed=0))
    )
    for _ in range(2):
        await asyncio.wait_for(started.acquire(), 60)
    assert sum(name.startswith("node") for name in browsers()) == 1  # one driver, so one browser
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert browsers() == []


def test_a_form_is_sent_by_looking(environment: Any, tmp_path: Path) -> None:
    assert "reward  +1" in run("browser.py", cwd=tmp_path)
    assert len(list((tmp_path / "runs" / "browser" / "images").iterdir())) == 4
