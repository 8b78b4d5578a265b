"""A sound environment, and others that are broken in one way each."""

from __future__ import annotations

import itertools
import random
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

from gymnast.envs import BrokenEnvironmentError, ToolEnv, final_answer, tool, tool_call
from gymnast.sandbox import DockerExecutor

ROWS = [{"number": number} for number in range(1, 4)]
COUNTER = itertools.count()


class Sound(ToolEnv):
    def reset_task(self, task: Any) -> Any:
        self.number = task["number"]
        return [{"role": "user", "content": f"Double {self.number}."}]

    @tool
    def note(self, text: str) -> str:
        """Write a note down.

        Args:
            text: The note.
        """
        return self.noted(text)

    def noted(self, text: str) -> str:
        return f"{len(text)} characters"

    @tool(final=True)
    def answer(self, number: int) -> str:
        """Give the answer to the question.

        Args:
            number: The answer.
        """
        self.reward = float(number == 2 * self.number)
        return "thank you"


def oracle(messages: Any) -> Any:
    return tool_call("answer", number=2 * int(messages[0]["content"].split()[1][:-1]))


def wrong_oracle(messages: Any) -> Any:
    return tool_call("answer", number=-1)


def oracle_without_end(messages: Any) -> Any:
    return tool_call("note", text="")


class RewardsTaking(Sound):
    """Rewards a thing whenever it is taken, also after it was dropped."""

    once = False

    def reset_task(self, task: Any) -> Any:
        self.has_lamp = self.has_had_lamp = False
        return super().reset_task(task)

    @tool
    def take(self, thing: str) -> str:
        """Take a thing from the floor.

        Args:
            thing: Its name.
        """
        if thing != "lamp" or self.has_lamp:
            raise ValueError(f"there is no {thing} on the floor")
        if not (self.once and self.has_had_lamp):
            self.reward = 0.25
        self.has_lamp = self.has_had_lamp = True
        return "taken"

    @tool
    def drop(self, it: str) -> str:
        """Drop a thing on the floor.

        Args:
            it: Its name.
        """
        self.has_lamp = False
        return "dropped"


class RewardsTakingOnce(RewardsTaking):
    once = True


def oracle_that_takes(messages: Any) -> Any:
    return oracle(messages) if len(messages) > 1 else tool_call("take", thing="lamp")


class RewardsNotes(Sound):
    """Rewards each note, and no oracle says how much an honest agent earns."""

    def noted(self, text: str) -> str:
        self.reward = 0.5
        return "noted"


class UpsideDown(Sound):
    """Punishes the right answer."""

    def grade(self, stop: Any) -> float:
        return -2 * self.reward


class ChangesItsRow(Sound):
    """Sound: the lists of a row are its episode's own."""

    def reset_task(self, task: Any) -> Any:
        self.number = task["deck"].pop()
        return super().reset_task({"number": self.number})


class CrashInInit(Sound):
    def __init__(self) -> None:
        raise RuntimeError("no disk")


class CrashInReset(Sound):
    def reset_task(self, task: Any) -> Any:
        raise RuntimeError("no disk")


class CrashInReply(Sound):
    def reply(self, message: Any) -> Any:
        raise RuntimeError("no disk")


class CrashInGrade(Sound):
    def grade(self, stop: Any) -> float:
        raise RuntimeError("no disk")


class CrashInClose(Sound):
    def close(self) -> None:
        raise RuntimeError("no disk")


class ResetWithoutInfo(Sound):
    async def areset(self, *, seed: Any = None, options: Any = None) -> Any:
        return (await super().areset(seed=seed, options=options))[0]


class IgnoresSeed(Sound):
    """Never passes the seed on, so Gymnasium's checker finds `np_random` unseeded."""

    async def areset(self, *, seed: Any = None, options: Any = None) -> Any:
        return await super().areset(seed=None, options=options)


class NotDeterministic(Sound):
    def noted(self, text: str) -> str:
        return f"note {random.random()}"


class PromptsOfAGroupDiffer(Sound):
    def reset_task(self, task: Any) -> Any:
        super().reset_task(task)
        return [{"role": "user", "content": f"Task {next(COUNTER)}."}]


class FirstWordsOfAGroupDiffer(Sound):
    def reset_task(self, task: Any) -> Any:
        return [*super().reset_task(task), {"role": "assistant", "content": f"Try {next(COUNTER)}:"}]


class TasksDifferInTheirFirstWords(Sound):
    """Sound: the question is always the same, and the answer has begun."""

    def reset_task(self, task: Any) -> Any:
        super().reset_task(task)
        words = f"The double of {self.number} is"
        return [{"role": "user", "content": "Double."}, {"role": "assistant", "content": words}]


class IgnoresTheRow(Sound):
    def reset_task(self, task: Any) -> Any:
        super().reset_task(task)
        return [{"role": "user", "content": "Double the number."}]


class SharesState(Sound):
    notes: list[str] = []  # noqa: RUF012  (the fault)

    def reset_task(self, task: Any) -> Any:
        self.notes.clear()
        return super().reset_task(task)

    @tool
    async def note(self, text: str) -> str:  # type: ignore[override]
        """Write a note down.

        Args:
            text: The note.
        """
        import asyncio

        self.notes.append(text)
        await asyncio.sleep(0.01)
        return f"{len(self.notes)} notes"


class NoEnd(ToolEnv):
    def reset_task(self, task: Any) -> Any:
        return [{"role": "user", "content": f"Talk about {task['number']}."}]

    def reply(self, message: Any) -> Any:
        return [{"role": "user", "content": "Go on."}]


class ChoosesItsFinalTool(ToolEnv):
    """Has no fault, but no agent answers well enough to end it."""

    def reset_task(self, task: Any) -> Any:
        self.tools = [tool(final=True)(refuse)]
        return [{"role": "user", "content": f"Double {task['number']}."}]


def refuse(number: int) -> str:
    """Refuse every answer.

    Args:
        number: The answer.
    """
    raise ValueError("that is not good enough")


class UntypedArgument(Sound):
    @tool
    def note(self, text: Any) -> str:
        """Write a note down.

        Args:
            text: The note.
        """
        return "noted"


class TerseTool(Sound):
    @tool
    def note(self, text: str) -> str:
        """Note.

        Args:
            text: The note.
        """
        return "noted"


class ForgetsTheMark(ToolEnv):
    def reset_task(self, task: Any) -> Any:
        return [{"role": "user", "content": f"Double {task['number']}."}]

    def note(self, text: str) -> str:
        """Write a note down.

        Args:
            text: The note.
        """
        return "noted"


class RaisesForValid(Sound):
    def noted(self, text: str) -> str:
        raise KeyError("disk")


class TellsTheModel(Sound):
    def noted(self, text: str) -> str:
        raise ValueError("the notebook is full")


class MisspellsAColumn(Sound):
    def reset_task(self, task: Any) -> Any:
        return [{"role": "user", "content": f"Double {task['nubmer']}."}]


class ForgetsAnArgument(Sound):
    @tool
    def note(self, text: str) -> str:
        """Write a note down."""
        return text


class Hangs(Sound):
    tool_timeout = 0.05

    def noted(self, text: str) -> str:
        time.sleep(0.2)
        return "noted"


class RefusesFitting(Sound):
    def noted(self, text: str) -> str:
        raise BrokenEnvironmentError("the database is down")


class CrashOnWrongCall(Sound):
    async def astep(self, action: Any) -> Any:
        for call in action.get("tool_calls") or ():
            if call["function"]["name"] == "no_such_tool":
                raise KeyError("no_such_tool")
        return await super().astep(action)


class CrashOnHostile(Sound):
    def noted(self, text: str) -> str:
        if len(text) > 1000:
            raise BrokenEnvironmentError("the database is down")
        return "noted"


class NoTimeout(Sound):
    tool_timeout = None


class RewardsSilence(Sound):
    def grade(self, stop: Any) -> float:
        return 0.0 if self.is_answered else 0.5

    is_answered = False


class SameReward(Sound):
    def grade(self, stop: Any) -> float:
        return -1.0 - self.reward


class RewardIsNeverSet(Sound):
    @tool(final=True)
    def answer(self, number: int) -> str:
        """Give the answer to the question.

        Args:
            number: The answer.
        """
        return "thank you"


class HugeReward(Sound):
    def grade(self, stop: Any) -> float:
        return 1000 * self.reward


class NoReward(ToolEnv):
    def __init__(self) -> None:
        super().__init__([final_answer])
        self.gives_rewards = False

    def reset_task(self, task: Any) -> Any:
        return [{"role": "user", "content": f"Double {task['number']}."}]


class ReadsFiles(Sound):
    def noted(self, text: str) -> str:
        path = Path(text)
        return path.read_text() if len(text) < 200 and path.is_file() else "there is no such file"


class LeaksDescriptors(Sound):
    files: list[Any] = []  # noqa: RUF012  (the fault)

    def reset_task(self, task: Any) -> Any:
        self.files.append(open("/dev/null"))  # noqa: SIM115
        return super().reset_task(task)


class LeaksThreads(Sound):
    stop = threading.Event()

    def reset_task(self, task: Any) -> Any:
        threading.Thread(target=self.stop.wait, daemon=True).start()
        return super().reset_task(task)


class LeaksThreadsWhileOthersEnd(LeaksThreads):
    """As many threads of another part of the program end in the second round as episodes leave theirs."""

    others: ClassVar[list[threading.Thread]] = []
    rest = threading.Event()

    def reset_task(self, task: Any) -> Any:
        if len(self.others) < 6:
            self.others.append(threading.Thread(target=self.rest.wait, daemon=True))
            self.others[-1].start()
        else:
            self.rest.set()
            for other in self.others:
                other.join()
        return super().reset_task(task)


class NeighbourHasContainers(Sound):
    """Has no fault; another program starts a container during each episode."""

    neighbour: subprocess.Popen[str]

    def __init__(self) -> None:
        super().__init__()
        self.box = DockerExecutor()

    def reset_task(self, task: Any) -> Any:
        assert self.neighbour.stdin is not None
        assert self.neighbour.stdout is not None
        print("start", file=self.neighbour.stdin, flush=True)
        assert self.neighbour.stdout.readline() == "started\n"
        return super().reset_task(task)


class Blocks(Sound):
    @tool
    async def note(self, text: str) -> str:  # type: ignore[override]
        """Write a note down.

        Args:
            text: The note.
        """
        if len(text) > 1000:
            time.sleep(0.35)  # noqa: ASYNC251  (the fault)
        return "noted"


class LeaksContainers(Sound):
    boxes: list[DockerExecutor] = []  # noqa: RUF012  (for the test, which closes them)

    def __init__(self) -> None:
        super().__init__()
        self.box = DockerExecutor()

    async def areset(self, *, seed: Any = None, options: Any = None) -> Any:
        await self.box.start()
        self.boxes.append(self.box)
        return await super().areset(seed=seed, options=options)
