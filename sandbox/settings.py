"""What a supervisor is told first, wherever it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .base import Limits, size_of

_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def supervisor_settings(
    limits: Limits,
    *,
    workspace: str,
    environment: Mapping[str, str],
    preload: Sequence[str],
    names: bool = False,
    pipes: bool = False,
    local: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The settings of a box.

    Args:
        limits: of which these are what the supervisor itself holds.
        workspace: the folder that the code starts in, and its home.
        environment: of the code, on top of the supervisor's own and of what every box has.
        preload: modules to import before the first session.
        names: whether the supervisor has to tell what `localhost` is, as nobody else does.
        pipes: whether the supervisor is to offer pipes (`pipes.py`).
        local: None in a container; else the folder and the limits of a box that has only its own processes to rule.
    """
    return {
        "workspace": workspace,
        "environment": {**_common_environment(workspace), **environment},
        "preload": list(preload),
        "max_output": size_of(limits.max_output),
        "max_file": size_of(limits.max_file),
        "grace": limits.grace,
        "idle": limits.idle,
        "lifetime": limits.lifetime,
        "names": names,
        "pipes": pipes,
        "local": local,
    }


def _common_environment(workspace: str) -> dict[str, str]:
    return {
        "HOME": workspace,
        "USER": "sandbox",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "MPLBACKEND": "Agg",
        "PYTHONUNBUFFERED": "1",
        **dict.fromkeys(_ONE_THREAD, "1"),
    }
