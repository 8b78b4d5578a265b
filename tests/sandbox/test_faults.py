"""Every fault has a test: a mark on one of ours, a check of the conformance suite, or a test of the pool or CodeEnv.

The faults are numbered, and each must have a certain result. `@pytest.mark.fault(number)` marks the tests that show
it.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from gymnast.sandbox.testing.conformance import CHECKS

FAULTS = {
    1: "an endless loop", 2: "a loop that ignores SIGINT", 3: "SIGSTOP to itself", 4: "a block in C", 5: "os._exit",
    6: "a segmentation fault", 7: "sys.exit", 8: "all descriptors closed", 9: "stdout closed", 10: "a memory bomb",
    11: "children over the memory limit", 12: "a fork bomb", 13: "a fork that both continue", 14: "a daemon",
    15: "a thread that prints later", 16: "500 MB of output", 17: "odd bytes", 18: "100 MB in one line",
    19: "garbage on the channel", 20: "a forged reply", 21: "a length of 4 GB", 22: "a full disk",
    23: "no inodes", 24: "names and folders that resist", 25: "a link to read", 26: "a pipe or a device to read",
    27: "a file too large to read", 28: "a link to write through", 29: "a malicious tree", 30: "kill(-1), kill(1)",
    31: "the environment of others", 32: "the network and odd sockets", 33: "setuid, mount, unshare, ptrace",
    34: "System V objects", 35: "a container removed", 36: "a container paused, an engine stalled",
    37: "SIGKILL of the owner", 38: "cancellation anywhere", 39: "an image missing or unfit", 40: "no engine",
    41: "an exhausted pool", 42: "64 leases at once", 43: "input()", 44: "no code at all", 45: "a shell that ends",
    46: "a background job", 47: "a changed clock", 48: "two episodes in one box", 49: "a planted reward",
    50: "no reward for a broken sandbox",
}  # fmt: skip

# Tested for every executor, including those of users.
IN_CONFORMANCE = {
    1: ["python_is_interrupted_at_its_timeout", "bash_is_interrupted_at_its_timeout"],
    2: ["python_is_killed_where_it_ignores_interruption", "bash_is_killed_where_it_ignores_interruption"],
    3: ["python_is_killed_where_it_ignores_interruption"],
    5: ["python_that_exits_is_begun_afresh"],
    6: ["python_that_exits_is_begun_afresh"],
    7: ["python_exit_ends_the_call_only"],
    8: ["closed_descriptors_are_survived"],
    9: ["python_survives_odd_failures"],
    10: ["python_out_of_memory"],
    13: ["only_the_parent_answers_after_a_fork"],
    14: ["reset_ends_processes"],
    15: ["a_late_thread_speaks_in_the_next_result"],
    17: ["python_replaces_odd_bytes", "bash_replaces_odd_bytes"],
    19: ["garbage_on_the_channel_is_noticed", "bash_cannot_forge_its_status"],
    24: ["reset_removes_files_that_resist", "names_may_be_odd", "an_impossible_path_is_an_error"],
    27: ["data_over_the_limit_is_not_written"],
    28: ["links_are_listed_and_not_followed", "pipes_and_devices_are_not_files"],
    32: ["there_is_no_network"],
    33: ["the_code_has_no_privileges"],
    38: ["a_cancelled_call_is_interrupted", "a_cancelled_start_leaves_a_closed_box"],
    43: ["python_survives_odd_failures", "bash_has_no_input"],
    44: ["python_reports_code_that_cannot_run", "bash_reports_a_command_that_does_not_parse"],
    45: ["bash_that_exits_is_begun_afresh"],
    46: ["bash_leaves_background_jobs"],
}

# Tests in other files: of the pool, and of the environment that grades.
ELSEWHERE = {
    12: ["test_sandbox_local.py::test_many_processes_are_cleared"],
    21: ["test_sandbox_protocol.py::test_a_huge_length_is_refused_at_once_and_nothing_is_allocated"],
    33: ["../with_docker/test_seccomp.py::test_a_call_is_denied"],
    38: [
        "../with_docker/test_faults_life.py::test_a_lease_cancelled_anywhere_is_returned",
        "../with_docker/test_code_containers.py::test_a_cancelled_episode_gives_its_box_back",
    ],
    41: [
        "test_pool_rules.py::test_leases_are_served_in_the_order_in_which_they_came",
        "test_pool_rules.py::test_a_lease_that_gets_no_box_in_time_says_who_has_them",
    ],
    42: ["../with_docker/test_pool.py::test_of_64_leases_at_once_few_boxes_are_made_at_a_time"],
    48: ["../with_docker/test_pool.py::test_nothing_crosses_from_lease_to_lease"],
    49: [
        "../with_docker/test_code_checks.py::test_what_the_agent_planted_does_not_count",
        "../with_docker/test_code_checks.py::test_a_wrong_submission_gets_nothing",
    ],
    50: [
        "../with_docker/test_code_containers.py::test_a_box_that_is_lost_is_a_failed_episode",
        "../envs/test_code_env.py::test_a_box_that_is_lost_while_grading_is_a_failed_episode",
        "../envs/test_code_env.py::test_no_engine_is_a_failed_episode",
        "../envs/test_code_env.py::test_no_free_box_is_a_failed_episode",
        "../envs/test_code_failures.py::test_an_exception_in_grade_is_no_verdict",
    ],
}

TESTS = Path(__file__).parent


def marked() -> set[int]:
    """The faults that decorators and `pytest.param(marks=...)` mark."""
    rooms = (TESTS, TESTS.parent / "with_docker")
    sources = "".join(path.read_text() for room in rooms for path in room.glob("test_*.py"))
    return {int(number) for number in re.findall(r"mark\.fault\((\d+)\)", sources)}


def test_every_fault_has_a_test_and_every_mark_a_fault() -> None:
    assert list(FAULTS) == list(range(1, 51))
    assert marked() | set(IN_CONFORMANCE) | set(ELSEWHERE) == set(FAULTS)


@pytest.mark.parametrize("name", sorted({name for names in IN_CONFORMANCE.values() for name in names}))
def test_the_check_is_part_of_the_conformance_suite(name: str) -> None:
    assert name in {check.name for check in CHECKS}


@pytest.mark.parametrize("test", sorted({test for tests in ELSEWHERE.values() for test in tests}))
def test_the_test_is_there(test: str) -> None:
    file, _, name = test.partition("::")
    tree = ast.parse((TESTS / file).read_text())
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
