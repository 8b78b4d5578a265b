"""The two forms of an `Environment`, synchronous and asynchronous, its copies, its tasks and its transcript."""

from __future__ import annotations

import asyncio
import copy
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from gymnast.envs import Calculator, Environment, Message, StepResult, ToolEnv, tool_call

from .guessing import AsyncGuess, Guess, say
from .toolkit import WAIT, run_python

# --- two forms --------------------------------------------------------------------------------------------------


def play(environment: Environment, seed: int) -> list[Any]:
    messages, _ = environment.reset(seed=seed)
    return [messages, *(environment.step(say(str(digit)))[:4] for digit in range(10))]


async def aplay(environment: Environment, seed: int) -> list[Any]:
    messages, _ = await environment.areset(seed=seed)
    return [messages, *[(await environment.astep(say(str(digit))))[:4] for digit in range(10)]]


async def test_each_form_is_derived_from_the_other() -> None:
    records = []
    for cls in (Guess, AsyncGuess):
        environment = cls()
        records += [play(environment, 5), await aplay(environment, 5)]
        environment.close()
        await environment.aclose()
        assert environment.closed == 2
    assert records[1:] == records[:1] * 3
    assert any(reward == 1.0 for _, reward, *_ in records[0][1:])


def test_the_synchronous_form_runs_inside_a_running_loop() -> None:
    async def notebook_cell() -> list[Any]:
        return play(AsyncGuess(), 5)

    assert asyncio.run(notebook_cell()) == play(Guess(), 5)


def test_an_asynchronous_environment_stays_on_one_loop() -> None:
    environment = AsyncGuess()
    play(environment, 0)
    play(environment, 1)
    environment.close()
    assert len(environment.loops) == 1


async def test_a_synchronous_call_on_its_own_loop_is_an_error_not_a_deadlock() -> None:
    class Nested(AsyncGuess):
        async def astep(self, action: Message) -> StepResult:
            return AsyncGuess().step(action)

    environment = Nested()
    environment.reset(seed=0)
    with pytest.raises(RuntimeError, match="await its asynchronous form"):
        environment.step(say("1"))


async def test_blocking_environments_do_not_block_each_other() -> None:
    both = threading.Barrier(2)

    class Blocking(Guess):
        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[list[Message], dict]:
            both.wait(WAIT)
            return super().reset(seed=seed)

        def step(self, action: Message) -> StepResult:
            both.wait(WAIT)
            return super().step(action)

        def close(self) -> None:
            both.wait(WAIT)
            super().close()

    pair = [Blocking(), Blocking()]
    await asyncio.gather(*(environment.areset(seed=0) for environment in pair))
    await asyncio.gather(*(environment.astep(say("1")) for environment in pair))
    await asyncio.gather(*(environment.aclose() for environment in pair))
    assert [environment.closed for environment in pair] == [1, 1]


async def test_overriding_one_form_is_seen_by_both() -> None:
    """A subclass may override the other form than its base, and `super()` still works."""

    class Polite(Calculator):
        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[list[Message], dict]:
            messages, info = super().reset(seed=seed, options=options)
            return [{"role": "system", "content": "Please."}, *messages], info

        def step(self, action: Message) -> StepResult:
            return super().step(action)._replace(reward=2.0)

    class Shy(Guess):
        async def astep(self, action: Message) -> StepResult:
            return (await super().astep(action))._replace(reward=3.0)

    polite, shy = Polite(), Shy()
    for messages, _ in (polite.reset(seed=0), await polite.areset(seed=0)):
        assert [message["role"] for message in messages] == ["system", "user"]
    assert (await polite.astep(tool_call("add", a=1, b=1))).reward == 2.0
    assert polite.step(tool_call("add", a=1, b=1)).reward == 2.0
    shy.reset(seed=0)
    assert (shy.step(say("x")).reward, (await shy.astep(say("x"))).reward) == (3.0, 3.0)


async def test_a_mixin_may_bring_a_form() -> None:
    class Counted:
        steps = 0

        def step(self, action: Message) -> StepResult:
            self.steps += 1
            return StepResult([], 0.0, True, False, {})

    class Both(Counted, AsyncGuess):
        pass

    environment = Both()
    await environment.areset(seed=0)
    await environment.astep(say("x"))
    environment.step(say("x"))
    assert environment.steps == 2


async def test_neither_form_is_an_error_that_names_the_class() -> None:
    class Empty(Environment):
        pass

    assert Empty().reset() == ([], {})
    with pytest.raises(NotImplementedError, match=r"Empty must implement step\(\) or astep\(\)"):
        Empty().step(say("x"))
    with pytest.raises(NotImplementedError, match="Empty must implement"):
        await Empty().astep(say("x"))


def test_an_open_environment_does_not_keep_the_interpreter_alive() -> None:
    program = """
import asyncio
from gymnast.envs import Environment, StepResult
class Busy(Environment):
    async def astep(self, action):
        self.task = asyncio.create_task(asyncio.Event().wait())
        return StepResult([], 0.0, False, False, {})
environment = Busy()
environment.reset(seed=0)
environment.step({"role": "assistant", "content": "x"})
print("end")
"""
    result = run_python(program)
    assert (result.returncode, result.stdout) == (0, "end\n")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_steps_as_well() -> None:
    """Gymnasium's AsyncVectorEnv forks, and threads do not survive a fork."""
    environment = Calculator()
    environment.reset(seed=0)
    environment.step(tool_call("add", a=1, b=2))  # now there are worker threads, and a loop
    child = os.fork()
    if child == 0:
        watchdog = threading.Timer(WAIT, os._exit, [1])
        watchdog.daemon = True
        watchdog.start()
        result = environment.step(tool_call("add", a=1, b=2))
        os._exit(0 if result.messages[0].get("content") == "3" else 2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# --- copies -----------------------------------------------------------------------------------------------------


def test_a_clone_has_the_same_arguments_and_shares_them() -> None:
    class Forgetful(Environment):
        def __init__(self, pool: object, *, size: int = 1) -> None:
            self.pool = pool  # no super().__init__()
            self.size = size

    pool = object()
    original = Forgetful(pool, size=3)
    copied = original.clone()
    assert type(copied) is Forgetful
    assert copied is not original
    assert copied.pool is pool
    assert copied.size == 3
    assert copied.action_space == original.action_space
    assert copied.action_space is not original.action_space
    assert copied.clone().pool is pool


def test_a_clone_shares_nothing_that_an_episode_changes() -> None:
    original = Calculator()
    original.reset(seed=0, options={"task": {"question": "What is 1 plus 1?", "answer": 2}})
    copied = original.clone()
    copied.reset(seed=0, options={"task": {"question": "What is 2 plus 2?", "answer": 4}})
    assert (original.expected, copied.expected) == (2, 4)
    assert original.metrics is not copied.metrics


# --- tasks ------------------------------------------------------------------------------------------------------


class Echo(ToolEnv):
    """Asks the row's question."""


def test_a_task_is_needed() -> None:
    with pytest.raises(ValueError, match=r"Echo has no task: call reset\(options=\{'task': row\}\)"):
        Echo().reset(seed=0)
    with pytest.raises(ValueError, match="Echo has no task"):
        Echo(tasks=[]).reset(seed=0, options={})
    with pytest.raises(TypeError, match="a task is a row of a data set, which is a mapping, got str"):
        Echo().reset(seed=0, options={"task": "What is 1 plus 1?"})


def test_the_task_of_the_options_goes_before_the_tasks() -> None:
    environment = Echo(tasks=[{"prompt": "drawn"}])
    assert environment.reset(seed=0)[0][0].get("content") == "drawn"
    assert environment.reset(seed=0, options={"task": {"prompt": "given"}})[0][0].get("content") == "given"


@pytest.mark.parametrize("environment", [Echo(tasks=[{"prompt": str(index)} for index in range(1000)]), Calculator()])
def test_the_seed_makes_the_draw_reproducible(environment: Environment) -> None:
    def draws(seed: int) -> list[Any]:
        return [environment.reset(seed=seed)[0], environment.reset()[0], environment.reset()[0]]

    first = draws(7)
    assert draws(7) == first
    assert draws(8) != first
    assert first[0] != first[1] != first[2]


def test_a_prompt_of_messages_is_copied() -> None:
    rows: Sequence[Mapping[str, Any]] = [{"prompt": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}]
    before = copy.deepcopy(rows)
    messages, _ = Echo(tasks=rows).reset(seed=0)
    messages[0]["content"][0]["text"] = "changed"  # type: ignore[index]
    assert rows == before


# --- render -----------------------------------------------------------------------------------------------------


def test_render_gives_the_transcript() -> None:
    environment = Calculator(render_mode="ansi")
    environment.reset(seed=0, options={"task": {"question": "What is 1 plus 2?", "answer": 3}})
    environment.step(tool_call("add", a=1, b=2))
    assert environment.render() == "[user] What is 1 plus 2?\n[assistant] \n  add({'a': 1, 'b': 2})\n[tool] 3"
    environment.reset(seed=0, options={"task": {"question": "Again", "answer": 3}})
    assert environment.render() == "[user] Again"
    assert Calculator().render() is None


def test_a_render_mode_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Calculator has the render modes \['ansi'\], got 'human'"):
        Calculator(render_mode="human")
    with pytest.raises(ValueError, match=r"Guess has the render modes \[\], got 'ansi'"):
        Guess(render_mode="ansi")
