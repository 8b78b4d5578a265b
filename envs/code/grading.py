"""How a code task is graded: by hidden checks, which run in a box that the agent never touched, or by a known answer.

The expectation stays on this side and is compared here. So a submission can give answers, but no verdict: an early
exit, or a file with a reward in it, is a wrong answer.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from numbers import Real
from typing import Any

from ..core import ConfigurationError
from .files import Row, files_of, shorten, submit_of

NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")  # in ASCII digits

# Commands of Bash, where a command may begin. Python's exit() and exec() are none.
BEGIN = r"(?m:^|[;&|({!]|\b(?:if|then|else|do)\b)\s*"
ENDS_SHELL = re.compile(BEGIN + r"((exit|exec)\b(?!\s*[(=.])|set\s+-(\w*e|o\s+errexit))")
COMPARES = re.compile(BEGIN + r"(\[\[?|test|diff|cmp|grep)\s")

CODES_OF_NOTHING = (0, 1, 2, 126, 127)  # exit codes that a missing or empty file gives, too

FORMS = (
    "{'run': Python code, 'stdout' and/or 'value': text} or {'bash': command, 'stdout': text, 'exit_code': int}, "
    "each with 'files' if it needs some"
)


@dataclass(kw_only=True, slots=True, frozen=True)
class HiddenCheck:
    """Code that uses the files which were handed in, and its expected result."""

    python: str | None = None  # the code: either this
    bash: str | None = None  # or this
    stdout: str | None = None  # the expected output; white space at its end does not count
    value: str | None = None  # repr() of the last expression
    exit_code: int = 0  # of `bash`

    files: Mapping[str, str | bytes] = field(default_factory=dict)  # written beside the submission, for this check
    secret: str = field(default_factory=lambda: secrets.token_hex(8), repr=False, compare=False)

    @property
    def may_end_shell(self) -> bool:
        """Whether the check itself may end the shell. In any other shell only the submission can say `exit`."""
        files = (data if isinstance(data, str) else data.decode(errors="replace") for data in self.files.values())
        return any(map(ENDS_SHELL.search, (self.bash or "", *files)))

    @property
    def end_mark(self) -> str:
        """A last expression for Python code without a `value`: `sys.exit` in the submission does not reach it."""
        return "" if self.value is not None else f"\n{self.secret!r}"

    def has_value(self, value: str | None) -> bool:
        """Return whether the code's last expression is the expected one, and so whether the code ran to its end."""
        if self.python is None:
            return True
        return value == (self.value if self.value is not None else repr(self.secret))


def checks_of(row: Row, name: str, *, max_output: int) -> tuple[HiddenCheck, ...]:
    """Return the row's hidden `checks`, which are empty if it has an answer instead.

    Args:
        row: The row.
        name: That of the environment.
        max_output: Bytes that a box keeps of an output.

    Raises:
        ConfigurationError: the row has neither checks nor an answer, a check has the wrong form, `submit` is missing,
            no submission could pass a check, or an empty submission would.
    """
    checks = row.get("checks")
    if checks is None and row.get("answer") is None:
        raise ConfigurationError(
            f"{name}: the row has neither 'checks' nor 'answer' (its columns: {sorted(map(str, row))}), so nothing "
            f"says which answers are right; add one of these columns, or override agrade()"
        )
    if checks is None:
        return ()
    if isinstance(checks, str | bytes) or not isinstance(checks, Sequence) or not len(checks):
        raise ConfigurationError(f"the row's 'checks' must be a list of at least one check, got {shorten(checks)}")
    if not submit_of(row):
        raise ConfigurationError(
            "the row has 'checks' but no 'submit': the checks run in a fresh box, so 'submit' must list the files "
            "that the agent hands in"
        )
    places = [f"the row's checks[{index}]" for index in range(len(checks))]
    checked = tuple(_check(check, place, max_output) for check, place in zip(checks, places, strict=True))
    for check, place in zip(checked, places, strict=True):
        if both := sorted(set(check.files) & set(submit_of(row))):
            raise ConfigurationError(f"{place}['files'] and the row's 'submit' both name {both[0]!r}: rename one")
    return checked


def _check(check: Any, place: str, max_output: int) -> HiddenCheck:
    if not isinstance(check, Mapping):
        raise ConfigurationError(f"{place} must be {FORMS}, got {shorten(check)}")
    given = {name: value for name, value in check.items() if value is not None}
    kinds = [name for name in ("run", "bash") if name in given]
    allowed = {"run": ("stdout", "value", "files"), "bash": ("stdout", "exit_code", "files")}
    unknown = [name for name in given if len(kinds) == 1 and name not in (*kinds, *allowed[kinds[0]])]
    if len(kinds) != 1 or unknown:
        raise ConfigurationError(f"{place} must be {FORMS}, got the fields {sorted(map(str, given))}")
    for name in ("run", "bash", "stdout", "value"):
        if not isinstance(given.get(name, ""), str):
            raise ConfigurationError(f"{place}[{name!r}] must be text, got {shorten(given[name])}")
    code = given.get("exit_code", 0)
    if not isinstance(code, int) or isinstance(code, bool) or not 0 <= code <= 255:
        raise ConfigurationError(f"{place}['exit_code'] must be an integer from 0 to 255, got {shorten(code)}")
    _check_expectation(given, place, max_output)
    return HiddenCheck(
        python=given.get("run"),
        bash=given.get("bash"),
        stdout=given.get("stdout"),
        value=given.get("value"),
        exit_code=code,
        files=files_of(given, place),
    )


def _check_expectation(given: Mapping[str, Any], place: str, max_output: int) -> None:
    """Refuse an expectation that no submission can meet, or that an empty one meets."""
    stdout, value = given.get("stdout"), given.get("value")
    if stdout is None and value is None:
        raise ConfigurationError(f"{place} expects no output, so code that does nothing would pass: add 'stdout'")
    code = given.get("exit_code", 0)
    if value is None and not (stdout or "").strip() and (code in CODES_OF_NOTHING or code >= 128):
        raise ConfigurationError(
            f"{place} expects an empty output and the exit code {code}, which a submission that does nothing may give, "
            f"too: let the check print something, such as the number of lines"
        )
    if "bash" in given and _prints(given["bash"], (stdout or "").strip()):
        raise ConfigurationError(
            f"{place} prints the expected output {shorten(stdout)} itself, which is a verdict: a submission that ends "
            "its program early gets it too. Print a value that only a right submission computes, such as add(2, 3), or "
            "a test runner's line '3 passed', and expect that; or write the check with 'run', which must reach its end"
        )
    if value is not None and value.strip() == "None":
        raise ConfigurationError(
            f"{place}['value'] is 'None', but as in a notebook None is not shown: write the check as `... is None`, "
            f"and expect 'True'"
        )
    for name, text in (("stdout", stdout), ("value", value)):
        if text is not None and len(text.rstrip().encode()) >= max_output:
            raise ConfigurationError(
                f"{place}[{name!r}] is as long as the {max_output} bytes that a box keeps of an output, or longer, so "
                f"no submission could pass: raise Limits.max_output, or let the check print less, such as a hash"
            )


def _prints(command: str, text: str) -> bool:
    """Return whether a command ends with `&& echo TEXT`, or the like, and compares nothing itself before that."""
    echo = rf"(?:echo|printf)\s+(?:-[neE]+\s+)*([\"']?){re.escape(text)}(?:\\n)?\2"
    end = r"\s*(?:\|\|[^;&]*|[;\n]\s*(?:else\b.*)?fi\s*)?"
    found = re.fullmatch(rf"(.*)(?:&&|;|\bthen\b)\s*{echo}{end}", command, re.DOTALL)
    return bool(text) and found is not None and COMPARES.search(found[1]) is None


def same_answer(answer: str, expected: Any) -> bool:
    """Return whether an answer is the expected one. White space around it does not count.

    If a number is expected, an answer that is a number is compared as a number: exactly, without tolerance.
    """
    wanted, given = str(expected).strip(), answer.strip()
    number = isinstance(expected, Real | Decimal) and not isinstance(expected, bool | Fraction)  # NumPy's, too
    if not number or NUMBER.fullmatch(given) is None:
        return wanted == given
    try:
        return Decimal(wanted) == Decimal(given)
    except InvalidOperation:  # an exponent that Decimal cannot hold
        return False
