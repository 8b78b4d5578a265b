"""Control groups of version 2 hold boxes of bubblewrap: those of root, and of a user to whom they are delegated.

Each test starts a machine of its own, as no test may change the groups of this one.
"""

from __future__ import annotations

import sys

import pytest

from .machine import run, why_not

USERS = {  # and who cannot run some tests of `inside.py`, for want of groups
    "root": " and not delegated_group",
    "delegated": "",
    "login": " and not delegated_group and not a_container_has",
}
FILES = ("tests/with_cgroups/inside.py", "tests/sandbox/test_bwrap.py", "tests/sandbox/test_bwrap_box.py")


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("user", USERS)
def test_boxes_of_bubblewrap(user: str, file: str) -> None:
    if reason := why_not():
        pytest.skip(reason)
    # The machine has one slow processor, and these have short time limits; `inside.py` has what they show of groups.
    quick = "not test_the_contract and not used_up_between_two_calls"
    options = ["-q", "-p", "no:cacheprovider", "-o", "timeout=900", "-k", quick + USERS[user]]
    code, text = run([sys.executable, "-m", "pytest", *options, file], user=user)
    assert (code, "groups left: none" in text) == (0, True)
