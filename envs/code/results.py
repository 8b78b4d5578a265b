"""The result of code as text for the model."""

from __future__ import annotations

import signal

from ...sandbox.base import ExecutionResult, Status
from .actions import Language


def describe(result: ExecutionResult, language: Language = "python") -> str:
    """Return a result as one text: the output, the last expression's value, the errors, and a line on the end.

    That last line is left out after an ordinary end, and after a Python exception, which has its traceback.
    """
    parts = [result.stdout, result.value, result.stderr, _ending(result, language)]
    lines = [part if part.endswith("\n") else f"{part}\n" for part in parts if part]
    return "".join(lines).removesuffix("\n") or "[no output]"


def _ending(result: ExecutionResult, language: Language) -> str:
    what = _how(result, language)
    session = "variables" if language == "python" else "the shell's variables"
    lost = f"{session} are lost" if result.state_lost else ""
    if result.status not in (Status.OK, Status.ERROR):
        lost = lost or f"{session} are kept"
    clauses = "; ".join(filter(None, [what, lost]))
    return f"[{clauses}]" if clauses else ""


def _how(result: ExecutionResult, language: Language) -> str:
    match result.status:
        case Status.OK:
            return ""
        case Status.ERROR:
            return "" if language == "python" else f"exit code {result.exit_code}"
        case Status.TIMEOUT:
            return f"stopped after {round(result.duration, 1):g} s"
        case Status.OOM:
            return "killed: out of memory"
        case Status.EXITED:
            return f"the session ended with exit code {result.exit_code}"
        case Status.SIGNAL:
            return f"killed by {_signal_name(result.exit_code)}"
        case Status.PROTOCOL:
            return "killed: the code wrote into the channel of the results"


def _signal_name(exit_code: int | None) -> str:
    try:
        return signal.Signals(-(exit_code or 0)).name
    except ValueError:  # a real-time signal has no name
        return f"signal {-(exit_code or 0)}"
