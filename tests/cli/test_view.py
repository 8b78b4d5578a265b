"""`gymnast view` in a real browser."""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from gymnast.cli.main import main
from gymnast.cli.microscope.follow import serve_page
from gymnast.cli.microscope.page import write_page
from gymnast.cli.microscope.runs import Runs
from gymnast.envs import StopReason, ToolCallRecord
from gymnast.envs.runtime.threads import run_in_loop
from gymnast.records.evaluations.summary import summary_of
from gymnast.records.files.run import Run
from gymnast.records.files.run_files import line_files

from ..training.buttons import ROWS, make_trainer
from .chromium import chromium, opened
from .made_runs import episode, write_run

HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'><!-- {{ 7 * 7 }}"
PHONE = {"width": 390, "height": 800}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


def page_of(folder: Path) -> str:
    """Write the page of a run folder; returns its address."""
    run = Run(folder)
    write_page(run, folder / "view.html")
    return (folder / "view.html").as_uri()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of a real training, in which the tasks of step 1 come again in step 3, and an evaluation in each."""
    folder = tmp_path_factory.mktemp("run")
    evaluating: dict[str, Any] = {"eval_rows": ROWS[:1], "eval_strategy": "steps", "eval_steps": 1}
    make_trainer(folder, max_steps=3, shuffle_dataset=False, record_run=True, **evaluating).train()
    assert main(["view", str(folder)]) == 0
    return (folder / "view.html").as_uri()


@contextmanager
def reading(browser: Browser, url: str, view: str, episode: int = 0) -> Iterator[Page]:
    with opened(browser, f"{url}#episode={episode}&view={view}") as page:
        expect(page.locator("#view")).to_have_attribute("data-view", view)
        yield page


def test_the_overview_leads_to_an_episode(browser: Browser, trained: str) -> None:
    with opened(browser, f"{trained}#step=3") as page:
        expect(page.locator("#summary")).to_contain_text("3 steps · 36 recorded episodes")
        titles = page.locator(".curves figcaption span:first-child").all_inner_texts()
        assert titles[:2] == ["reward", "success"]
        success = page.locator(".curves .chart").nth(1)
        expect(success.locator(".levels span")).to_have_text(["0", "0.5", "1"])
        expect(success.locator(".stepnumbers span")).to_have_text(["step 1", "2", "3"])
        expect(page.locator("footer")).to_contain_text("Made by gymnast")
        page.locator("table.steps tbody tr").first.click()
        expect(page.locator(".stepswitch span")).to_have_text("step 1")
        page.locator(".cell").first.click()
        expect(page.locator(".episodehead h2")).to_have_text("Press a button.")
        expect(page.locator(".call .name").last).to_have_text("left")
        page.go_back()
        expect(page.locator("table.steps")).to_be_visible()


def test_the_page_opens_on_the_episode_that_shows_why(browser: Browser, tmp_path: Path) -> None:
    rows = {"up": 1.0, "left": 0.0}  # each is answered with "up"
    made = [(0, episode(member=place, reward=rows[row], row={"answer": row})) for place, row in enumerate(rows)]
    with opened(browser, page_of(write_run(tmp_path, made))) as page:
        expect(page.locator(".reason")).to_contain_text("compare two episodes of one group")
        expect(page.locator(".where")).to_contain_text("member 1")
        expect(page.locator(".answer pre")).to_have_text(["left", "up"])
        expect(page.locator(".task dl")).to_have_text("answerleft")
        expect(page.locator(".call .badge")).to_have_text("final answer, reward 0")
        colour = "each => getComputedStyle(each).borderLeftColor"
        places = (page.locator(".answer.judged"), page.locator(".call.judged"))
        wrong = {place.evaluate(colour) for place in places}
        page.keyboard.press("k")
        expect(page.locator(".where")).to_contain_text("member 0")
        right = {place.evaluate(colour) for place in places}
        assert (len(wrong), len(right), wrong & right) == (1, 1, set())
        page.locator(".pager").get_by_role("button", name="overview").click()
        page.get_by_role("button", name="See the episode").click()
        expect(page.locator(".where")).to_contain_text("member 1")


def test_an_answer_that_code_gave_is_shown(browser: Browser, tmp_path: Path) -> None:
    solved = episode(row={"answer": 42})
    final = ToolCallRecord(name="final_answer", call_id=None, outcome="ok", ends_episode=True, arguments={"answer": 41})
    solved.turns[0].tool_calls[0].inside = [final]
    assert solved.given == "41"
    with opened(browser, page_of(write_run(tmp_path, [(0, solved)]))) as page:
        expect(page.locator(".answer pre")).to_have_text(["42", "41"])


def test_tokens_are_coloured_and_tell_their_figures(browser: Browser, trained: str) -> None:
    with opened(browser, trained) as page:
        place = page.evaluate("run.episodes.findIndex((row) => row.pull > 0)")
    with reading(browser, trained, "tokens", place) as page:
        token = page.locator(".tok[data-token][tabindex]").first
        assert token.evaluate("each => getComputedStyle(each).backgroundColor") != "rgba(0, 0, 0, 0)"
        token.hover()
        for fact in ("sampled by the model", "generator", "trainer", "gap", "advantage", "∂loss/∂log p"):
            expect(page.locator("#tip")).to_contain_text(fact)
        page.keyboard.press("c")  # the next colour
        expect(page.locator("#main .chip[aria-pressed=true]")).to_have_text("share of the gradient")


def test_why_this_advantage(browser: Browser, trained: str) -> None:
    with opened(browser, trained) as page:
        place = page.evaluate("run.episodes.findIndex((row) => row.pull > 0)")
    with reading(browser, trained, "why", place) as page:
        text = page.locator("#view").inner_text()
    assert "4 of 4 members vote in the baseline" in text
    by_hand, recorded = text.partition("0.0001) = ")[2].split()[0], text.partition("advantage\n")[2].split()[0]
    assert by_hand == recorded
    assert float(text.partition("gradient is ")[2].split()[0]) > 0


def test_the_same_task_across_steps_shows_the_first_divergent_token(browser: Browser, trained: str) -> None:
    with reading(browser, trained, "steps") as page:
        expect(page.locator(".history .step")).to_have_text(["step 1", "step 3"])
        rows = page.locator("table.others tbody tr")
        expect(rows).to_have_count(1)
        expect(page.locator(".column")).to_have_count(2)
    with reading(browser, trained, "group") as page:
        rows = page.locator("table.others tbody tr")
        expect(rows).to_have_count(3)
        expect(page.locator(".column")).to_have_count(4)
        different = rows.filter(has_not_text="the same tokens")
        assert page.locator(".tok.divergent").count() == different.count() + 1
        different.last.click()
        expect(page.locator(".column .tok.divergent")).not_to_have_count(0)
        expect(page.locator(".column strong").nth(1)).to_have_text(page.locator("tr[aria-current] th").inner_text())


def test_the_same_task_of_an_evaluation_across_steps(browser: Browser, trained: str) -> None:
    with opened(browser, f"{trained}#step=2") as page:
        page.get_by_role("button", name="evaluation", exact=True).click()
        expect(page.locator(".stepswitch span")).to_have_text("evaluation at step 3")
        expect(page.locator(".cell")).to_have_count(4)
        page.locator(".cell").first.click()
        tabs = ["Transcript", "Tokens", "Timeline", "Group", "Across steps"]  # nothing was learned from it
        expect(page.locator(".tabs button")).to_have_text(tabs)
        page.keyboard.press("5")
        expect(page.locator(".history .step")).to_have_text(["step 1", "step 2", "step 3"])
        assert "⟨" not in page.locator(".columns").inner_text()  # each token has its text


def test_an_evaluation_shows_its_worst_tasks(browser: Browser, tmp_path: Path) -> None:
    tasks = {"good@0": (1.0, 1.0), "bad@0": (0.0, 1.0)}  # in the order in which they ended, unlike that of the page
    made = [
        (0, episode(group=group, question=group, member=member, reward=reward, text=str(reward), row={"answer": "x"}))
        for group, rewards in tasks.items()
        for member, reward in reversed([*enumerate(rewards)])
    ]
    for _, one in made:
        one.traces.clear()  # as a server's model
    figures = {"step": 0, "eval_pass@1": 0.75, "eval_pass@1/low": 0.5, "eval_pass@1/high": 1.0, "eval_runtime": 1.0}
    url = page_of(write_run(tmp_path, metrics=[figures], evaluations=made))
    with opened(browser, f"{url}#sort=") as page:
        expect(page.locator("#summary")).to_have_text("4 episodes · 2 tasks · pass@1 0.75")
        assert page.locator(".figure").inner_text().split("\n") == ["pass@1", "75 %", "50 % to 100 %"]
        expect(page.locator("table.tasks tbody th")).to_have_text(["bad@0", "good@0"])
        expect(page.locator(".groups .cell")).to_have_text(["0", "1", "1", "1"])
        page.locator("table.tasks tbody tr").first.click()
        expect(page.locator(".answer pre")).to_have_text(["x", "up"])
        page.get_by_role("tab", name="Group").click()
        expect(page.locator("table.others td").last).to_have_text("0: 0.0⏎ here, 1.0⏎ there")


def test_an_evaluation_that_is_not_over_has_the_figures_of_one_that_is(browser: Browser, tmp_path: Path) -> None:
    made = [episode(member=member, reward=float(member % 2)) for member in range(4)]
    for one in made[1::2]:  # the others have no metric `success`: they have not succeeded
        one.metrics["success"] = 1.0
    made += [episode(group="b@0", reward=1.0), episode(group="c@0", stop=StopReason.FAILED, reward=None)]
    overlong = episode(group="d@0", stop=StopReason.CONTEXT_OVERFLOW, reward=None)
    overlong.turns.clear()
    made.append(overlong)
    known = summary_of(made)
    with opened(browser, f"{page_of(write_run(tmp_path, evaluations=[(0, one) for one in made]))}#sort=") as page:
        expect(page.locator(".figure")).to_have_count(4)
        values = dict(figure.split("\n")[:2] for figure in page.locator(".figure").all_inner_texts())
    shown = {
        name: round(float(value.split()[0]) / (1 if name == "reward" else 100), 3) for name, value in values.items()
    }
    assert shown == {name: round(known[name], 3) for name in ("reward", "pass@1", "pass@2", "pass@4")}


@pytest.mark.parametrize("served", [False, True])
def test_the_index_of_several_runs(served: bool, browser: Browser, tmp_path: Path) -> None:
    metrics = [{"step": step, "reward": step / 4, "environment/success": 0.5} for step in (1, 2)]
    write_run(tmp_path / "runs" / "a#1", [(0, episode(error="no lamp", member=member)) for member in range(3)], metrics)
    evaluated = {"step": 0, "eval_reward": 0.25, "eval_pass@1": 0.25, "eval_runtime": 1.0}
    write_run(tmp_path / "evals" / "b", metrics=[evaluated], evaluations=[(0, episode(question="asked"))])
    (tmp_path / "checkpoint-1").mkdir()
    assert main(["view", str(tmp_path)]) == 0
    site = serving(tmp_path) if served else nullcontext((tmp_path / "view.html").as_uri())
    with site as url, opened(browser, url, viewport=PHONE) as page:
        expect(page.locator("#summary")).to_have_text("1 evaluation · 1 training")
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        evaluation, training = page.locator(".run").all()
        expect(training).to_contain_text("runs/a#1")
        expect(training).to_contain_text("0.25 → 0.5")
        expect(training).to_contain_text("success\n0.5", use_inner_text=True)
        expect(training.locator(".alarmcount")).to_have_text("2 alarms")
        expect(training.get_by_role("img", name="reward: from 0.25 to 0.5")).to_be_visible()
        expect(evaluation).to_contain_text("Pass@1 is 25%, the reward 0.25: ")
        if served:
            write_run(tmp_path / "new", metrics=metrics)
            expect(page.locator("#summary")).to_have_text("2 trainings · 1 evaluation")
        page.get_by_text("evals/b").click()
        expect(page.locator(".episodehead h2")).to_have_text("asked")  # of the run's own page


def test_the_timeline_has_a_lane_for_each_member(browser: Browser, trained: str) -> None:
    with reading(browser, trained, "timeline") as page:
        expect(page.locator(".timeline .lane")).to_have_count(4)
        assert page.locator(".timeline .track .bar.generation").count() >= 4
        expect(page.locator("#view")).to_contain_text("Slowest calls")


def test_filters_and_keys(browser: Browser, tmp_path: Path) -> None:
    made = [(0, episode(member=0)), (0, episode(member=1, reward=1.0, stop=StopReason.MAX_TURNS))]
    made += [(0, episode(group="b@0", error="no lamp", question="another one")), (1, episode(reward=0.5))]
    made += [(1, episode(group="b@1", stop=StopReason.FAILED, reward=None))]
    with opened(browser, page_of(write_run(tmp_path, made)) + "#step=2") as page:
        for chip, count in {"failed": 1, "truncated": 1, "tool error": 1}.items():
            page.get_by_role("button", name=chip, exact=True).click()
            expect(page.locator("ol.flat li")).to_have_count(count)
            page.get_by_role("button", name="clear").click()
        page.get_by_role("button", name="best", exact=True).click()
        expect(page.locator("ol.flat .cell")).to_have_text(["1", "0.5", "0", "0", "×"])
        page.get_by_role("button", name="worst", exact=True).click()
        assert page.locator("ol.flat .cell").all_inner_texts()[:3] == ["0", "0", "0.5"]
        page.select_option("[name=stop]", "max_turns")
        expect(page.locator("ol.flat li")).to_have_count(1)
        page.get_by_role("button", name="clear").click()
        page.keyboard.press("/")
        page.keyboard.type("another")
        expect(page.locator("ol.flat li")).to_have_count(1)
        page.keyboard.press("Tab")
        page.get_by_role("button", name="clear").click()
        page.keyboard.press("j")
        expect(page.locator(".where")).to_contain_text("step 2 / a@0 / member 0")
        page.keyboard.press("[")
        expect(page.locator(".stepswitch span")).to_have_text("step 1")
        page.keyboard.press("?")
        expect(page.locator("dialog")).to_be_visible()


def test_nothing_of_a_transcript_is_interpreted(browser: Browser, tmp_path: Path) -> None:
    html = "<b>a board</b><script>parent.hacked = 3</script><img src='http://127.0.0.1:9/'>"
    hostile = episode(text=HOSTILE, question=HOSTILE, error=HOSTILE, html=html, group=f"{HOSTILE}@0")
    tokens = {"step": 0, "tokens": {str(token): HOSTILE for token in range(1, 6)}}
    folder = write_run(tmp_path / "run<b>", [(0, hostile)] * 3, learning=[tokens])
    run = Run(folder)
    write_page(run, folder / "view.html")
    page = browser.new_page()
    page.goto((folder / "view.html").as_uri())
    for view in ("transcript", "tokens", "why", "timeline", "group", "steps"):
        page.evaluate("view => go({episode: 0, view})", view)
        expect(page.locator("#view")).to_have_attribute("data-view", view)
        assert page.evaluate("window.hacked") is None, view
    page.evaluate("go({episode: 0, view: null})")
    expect(page.locator(".message.assistant .text")).to_have_text(HOSTILE)
    frame = page.locator("iframe.rendering")
    assert frame.get_attribute("sandbox") == ""
    expect(frame.content_frame.locator("b")).to_have_text("a board")
    assert page.evaluate("window.hacked") is None
    page.close()


def test_work_at_a_computer_is_shown_as_terminal_diff_and_log(browser: Browser, tmp_path: Path) -> None:
    edited = episode()
    edited.turns[0].observation[0]["content"] = "--- /a\n+++ /a\n@@ -1 +1 @@\n-old\n+\x1b[31mnew\n[9 s left]"
    edited.report = {
        "verifier": [{"step": "first", "rewards": {"reward": 1.0}, "log": "\x1b[1m2 passed\x1b[0m"}],
        "by": 3,
    }
    write_run(tmp_path, [(0, edited)])
    with reading(browser, page_of(tmp_path), "transcript") as page:
        expect(page.locator(".result ins")).to_have_text(["+++ /a", "+new"])
        expect(page.locator(".result del")).to_have_text(["--- /a", "-old"])
        expect(page.locator(".verifier summary")).to_have_text("tests of first: reward 1")
        expect(page.locator(".verifier pre")).to_have_text("2 passed")
        expect(page.locator("details.report pre")).not_to_contain_text("verifier")


def test_a_phone_and_the_dark(browser: Browser, trained: str) -> None:
    with opened(browser, f"{trained}#episode=0", viewport=PHONE, color_scheme="dark") as page:
        expect(page.locator(".side")).to_be_hidden()
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        dark = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        page.get_by_role("button", name="light or dark").click()
        assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") != dark
        for name, place in {"next episode": "member 1", "previous episode": "member 0"}.items():
            page.get_by_role("button", name=name).click()
            expect(page.locator(".where")).to_contain_text(place)
        expect(page.get_by_role("button", name="previous episode")).to_be_disabled()


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serve the page of a run folder, or of several runs; yields its URL."""
    run = Run(folder) if line_files(folder) else Runs(folder)
    url: Future[str] = Future()

    async def begin() -> asyncio.Task[None]:
        return asyncio.create_task(serve_page(run, 0, url.set_result))

    async def end() -> None:
        task.cancel()
        await asyncio.wait([task])

    task = run_in_loop(begin())
    try:
        yield url.result(20)
    finally:
        run_in_loop(end())


def test_a_page_that_follows_shows_new_episodes(browser: Browser, tmp_path: Path) -> None:
    write_run(tmp_path, [(0, episode(question="the first"))])
    with serving(tmp_path) as url, opened(browser, url) as page:
        expect(page.locator("#summary")).to_contain_text("1 recorded episode")
        write_run(tmp_path, [(1, episode(question="the second"))])
        expect(page.locator("#summary")).to_contain_text("2 recorded episodes")
        page.evaluate("go({episode: 1})")
        expect(page.locator(".episodehead h2")).to_have_text("the second")


def test_evaluations_have_curves(browser: Browser, tmp_path: Path) -> None:
    metrics = [{"step": step, "reward": 0.5} for step in range(4)]
    metrics += [{"step": step, "eval_reward": step / 4, "eval_pass@1": 0.5, "eval_runtime": 1.0} for step in (1, 3)]
    with opened(browser, page_of(write_run(tmp_path, [(0, episode())], metrics)) + "#step=1") as page:
        for curve in ("reward: from 0.5 to 0.5 in 4", "reward, evaluation: from 0.25 to 0.75 in 2"):
            expect(page.get_by_role("img", name=f"{curve} steps").first).to_be_visible()
        expect(page.get_by_role("img", name="pass@1, evaluation: from 0.5 to 0.5 in 2 steps")).to_be_visible()


def test_the_worst_episodes_begin_with_the_latest(browser: Browser, tmp_path: Path) -> None:
    made = [(step, episode(reward=reward)) for step, reward in enumerate((0.0, 1.0, 0.0, 1.0))]
    with opened(browser, page_of(write_run(tmp_path, made)) + "#sort=worst") as page:
        steps = [text.split(" · ")[0] for text in page.locator("ol.flat .meta").all_inner_texts()]
        assert steps == ["step 3", "step 1", "step 4", "step 2"]


def test_a_curve_of_many_steps_is_drawn(browser: Browser, tmp_path: Path) -> None:
    write_run(tmp_path, [(0, episode())], metrics=[{"step": step, "reward": 0.5} for step in range(200_000)])
    with opened(browser, page_of(tmp_path)) as page:
        expect(page.get_by_role("img", name="reward: from 0.5 to 0.5 in 200000 steps").first).to_be_visible()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "evil.example"}, 403),  # a name that points to this machine
        ({"Origin": "https://evil.example"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
    ],
)
def test_other_sites_cannot_read_a_run(headers: dict[str, str], status: int, tmp_path: Path) -> None:
    with serving(write_run(tmp_path, [(0, episode())])) as url:
        connection = http.client.HTTPConnection(urlsplit(url).netloc)
        connection.request("GET", "/chunk/0", headers=headers)
        answer = connection.getresponse()
        assert (answer.status, b"a question" in answer.read()) == (status, status == 200)
        connection.close()
