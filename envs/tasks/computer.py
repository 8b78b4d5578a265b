"""The tools of an agent that works at a computer: a shell that lasts, background programs, an editor, a viewer."""

from __future__ import annotations

import difflib
import math
import posixpath
import time

from ...sandbox.box import Box
from ...sandbox.limits import check_timeout
from ..core import Message, StepResult
from ..tool_env.leased_box import LeasedBoxEnv
from ..tools.execution import SLOW_CALLS
from ..tools.mark import tool
from .shell import Outcome, Shell


class ComputerEnv(LeasedBoxEnv[Box]):
    """The part of `TaskEnv` that has the tools."""

    command_timeout: float = 60.0

    _shell: Shell | None = None
    _user: str | int | None = None
    _time_ends: float = math.inf
    _turn_ends: float = math.inf

    @property
    def shell(self) -> Shell:
        """The shell in it; SandboxClosedError as for `box`."""
        assert self.box is not None
        assert self._shell is not None
        return self._shell

    async def astep(self, action: Message) -> StepResult:
        self._turn_ends = time.monotonic() + SLOW_CALLS * self.command_timeout
        return await super().astep(action)

    # The tools keep their time themselves.

    @tool(timeout=math.inf)
    async def bash(self, command: str, timeout: float | None = None, background: bool = False) -> str:
        """Run a command in a shell that lasts: the working directory, variables and functions stay.

        Args:
            command: The command, or several lines of them. It cannot ask for input.
            timeout: Seconds after which it is stopped.
            background: Start it and return its number at once, for bash_output and bash_kill.
        """
        if background:
            return self._told(Outcome("", f"started in the background as number {await self.shell.begin(command)}"))
        wanted = self.command_timeout if timeout is None else check_timeout(timeout)
        return self._told(await self.shell.run(command, timeout=min(wanted, self._seconds())))

    @tool(timeout=math.inf)
    async def bash_output(self, number: int) -> str:
        """Return the new output of a background command, and whether it still runs.

        Args:
            number: The number that bash gave it.
        """
        return self._told(await self.shell.output_of(number))

    @tool(timeout=math.inf)
    async def bash_kill(self, number: int) -> str:
        """End a background command, and return its last output.

        Args:
            number: The number that bash gave it.
        """
        return self._told(await self.shell.kill(number))

    @tool(timeout=math.inf)
    async def edit(self, path: str, old: str, new: str) -> str:
        """Replace a text in a file, where it must occur exactly once; the result is the difference.

        Args:
            path: The file.
            old: The text to replace; empty to write a new file.
            new: The text that takes its place.
        """
        self._seconds()
        path = self._absolute(path)
        text = await self._read(path) if old else ""
        if old and (count := text.count(old)) != 1:
            advice = "give more of the lines around it" if count else "view the file, white space counts"
            raise ValueError(f"the text occurs {count} times in {path}, and must occur once: {advice}")
        changed = text.replace(old, new) if old else new
        await self.box.write_file(path, changed, user=self._user)
        lines = difflib.unified_diff(text.splitlines(), changed.splitlines(), path, path, lineterm="")
        return self._told(Outcome("\n".join(lines)))

    @tool(timeout=math.inf)
    async def view(self, path: str, first: int = 1, last: int | None = None) -> str:
        """Show lines of a text file with their numbers.

        Args:
            path: The file.
            first: The first line.
            last: The last line; by default that of the file.
        """
        self._seconds()
        lines = (await self._read(self._absolute(path))).splitlines()
        numbers = range(max(first, 1), min(last or len(lines), len(lines)) + 1)
        shown = "\n".join(f"{number:6}  {lines[number - 1]}" for number in numbers)
        return self._told(Outcome(shown, "" if shown else f"the file has {len(lines)} lines"))

    async def _read(self, path: str) -> str:
        return (await self.box.read_file(path, user=self._user)).decode(errors="replace")

    def _absolute(self, path: str) -> str:
        return posixpath.join(self.shell.cwd, path)

    def _seconds(self) -> float:
        """Return how long a command may run; many slow ones in one turn would run into the `step_timeout`."""
        now = time.monotonic()
        if now >= self._time_ends:
            raise ValueError("not run, the time is over")
        if now >= self._turn_ends:
            raise ValueError(f"not run, the calls of this turn took {SLOW_CALLS * self.command_timeout:g} s; try again")
        return min(self.command_timeout, self._time_ends - now, self._turn_ends - now)

    def _told(self, outcome: Outcome) -> str:
        """Return what the model reads: the output, how it ended, and the time that is left."""
        left = self._time_ends - time.monotonic()
        time_left = "" if math.isinf(left) else f"{max(0, round(left))} s left"
        if not outcome.output and not outcome.ending:
            outcome = Outcome("", "no output")
        notes = "; ".join(filter(None, [outcome.ending, time_left]))
        return "\n".join(filter(None, [outcome.output.rstrip("\n"), notes and f"[{notes}]"]))
