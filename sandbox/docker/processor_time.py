"""Helps a container that its processor limit stops for minutes. Blocking calls, by docker-py, for an engine's threads.

New kernels (seen on Linux 6.18) let a system call run on beyond the limit. Then they stop the whole container until
that time is made up for: for minutes, no process of it can answer, or die.

Once no kernel in use does so, this module goes, and with it `DockerSandbox._revive` and `Client._help`.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from docker import APIClient

_SECONDS = 0.3  # three of the periods over which the kernel holds the limit


def forgive_processor_time(api: APIClient, container: str) -> None:
    """Set a container's processor limit anew, so that the kernel forgets the time used beyond it."""
    from docker.errors import APIError

    with contextlib.suppress(APIError):  # it has ended
        limits = api.inspect_container(container)["HostConfig"]
        api.update_container(container, cpu_period=limits["CpuPeriod"], cpu_quota=limits["CpuQuota"])


def revive(api: APIClient, container: str, was_starved: bool) -> bool:
    """Forgive a container's processor time if it is stopped for it now, or was before; return whether that is so."""
    from docker.errors import APIError

    with contextlib.suppress(APIError):  # it has ended
        if was_starved or _is_starved(api, container):
            forgive_processor_time(api, container)
            return True
    return False


def _is_starved(api: APIClient, container: str) -> bool:
    before = _stopped_periods(api, container)
    time.sleep(_SECONDS)
    return _stopped_periods(api, container) > before


def _stopped_periods(api: APIClient, container: str) -> int:
    """Return the number of periods in which the container was stopped. A paused or sleeping one adds nothing."""
    return api.stats(container, stream=False, one_shot=True)["cpu_stats"]["throttling_data"]["throttled_periods"]
