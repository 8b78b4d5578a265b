"""Code that attacks the channel of its results: all but an answer to the request is tampering and costs no memory."""

from __future__ import annotations

import asyncio

import pytest

from gymnast.sandbox import Status

from . import faults
from .boxes import usable
from .faults import RealBox

kind, shared_box, box = faults.kind, faults.shared_box, faults.box

ATTACK = """
import os, struct, time
def frame(nonce, *fields):
    os.write(63, struct.pack(">16s??BQII", nonce, *fields))
print('partial')
{attack}
time.sleep(60)"""

ATTACKS = [
    *(
        pytest.param(attack, marks=pytest.mark.fault(19))
        for attack in (
            "os.write(63, b'x' * 100)",
            "os.write(63, bytes(8))",
            "os.write(63, b'[]')",
            "os.close(63); time.sleep(60)",
            "os.closerange(3, 300); time.sleep(60)",
        )
    ),
    *(
        pytest.param(attack, marks=pytest.mark.fault(20))
        for attack in (
            "frame(b'0' * 16, False, False, 0, 0, 0, 0)",
            "frame(b'', False, False, 0, 0, 0, 0)",
            "os.write(63, b'0' * 16)",
        )
    ),
    *(
        pytest.param(attack, marks=pytest.mark.fault(21))
        for attack in (
            "os.write(63, b'\\xff' * 8)",
            "frame(b'\\xff' * 16, True, True, 255, 2**64 - 1, 2**32 - 1, 2**32 - 1)",
        )
    ),
]


@pytest.mark.parametrize("attack", ATTACKS)
async def test_tampering_with_the_channel_is_reported(box: RealBox, attack: str) -> None:
    before = await peak_of_supervisor(box)
    result = await box.python(ATTACK.format(attack=attack), timeout=50)
    assert (result.status, result.exit_code, result.state_lost) == (Status.PROTOCOL, None, True)
    assert result.duration < 20
    assert result.stdout == "partial\n"
    assert box.retire_reason == ("protocol", "")
    assert await usable(box)
    assert await peak_of_supervisor(box) - before < 8 << 20


async def peak_of_supervisor(box: RealBox) -> int:
    """The peak memory of the supervisor in bytes, which any process may read."""
    code = (
        "import os; [line for line in open(f'/proc/{os.getppid()}/status') if line.startswith('VmHWM')][0].split()[1]"
    )
    result = await box.python(code)
    assert result.value is not None, result
    return int(result.value.strip("'")) << 10


@pytest.mark.fault(20)
async def test_an_answer_without_a_request_is_tampering(box: RealBox) -> None:
    """A thread that answers between two calls, before the next nonce is known, is detected at the next call."""
    code = "import os, threading, time\ndef late():\n    time.sleep(0.3)\n    os.write(63, b'x' * 100)\n"
    assert (await box.python(f"{code}threading.Thread(target=late).start()")).ok
    result = await box.bash("sleep 0.6; echo slept", timeout=20)
    assert result.stdout == "slept\n"
    after = await box.python("'late' in globals()", timeout=20)
    assert (after.status, after.value, after.state_lost) == (Status.OK, "False", True)


@pytest.mark.fault(20)
async def test_any_next_call_reports_tampering(box: RealBox) -> None:
    """So the pool's check for life detects data that was sent while no call ran."""
    code = "import os, time\nif os.fork() == 0:\n    time.sleep(0.3); os.write(63, b'x' * 100); os._exit(0)"
    assert (await box.python(code)).ok
    await asyncio.sleep(0.8)
    await box.ping()
    await box.ping()
    assert box.retire_reason == ("protocol", "")


FIND_NONCE = """
import os, struct, sys, time
frame = sys._getframe()
while not isinstance(frame.f_locals.get("nonce"), bytes): frame = frame.f_back
nonce = frame.f_locals["nonce"]
def answer(failed=False, value=False, code=0, dropped=0, size=0, error=0):
    return struct.pack(">16s??BQII", nonce, failed, value, code, dropped, size, error)
"""


@pytest.mark.fault(20)
@pytest.mark.fault(21)
@pytest.mark.parametrize(
    "changes", ["dropped=2**63", "size=2**32 - 1", "error=2**32 - 1", "size=1_200_000, value=True"]
)
async def test_an_answer_with_the_right_nonce_announces_no_more_than_the_limit(box: RealBox, changes: str) -> None:
    """Code can find the nonce in its own memory and forge its own answer, but only within the limits."""
    before = await peak_of_supervisor(box)
    result = await box.python(f"{FIND_NONCE}os.write(63, answer({changes})); time.sleep(60)", timeout=50)
    assert (result.status, result.state_lost) == (Status.PROTOCOL, True)
    assert box.retire_reason == ("protocol", "")
    assert await usable(box)
    assert await peak_of_supervisor(box) - before < 8 << 20


@pytest.mark.fault(20)
async def test_an_answer_that_never_arrives_hangs_only_its_own_call(box: RealBox) -> None:
    result = await box.python(f"{FIND_NONCE}os.write(63, answer(error=10)); time.sleep(60)", timeout=1)
    assert (result.status, result.state_lost) == (Status.TIMEOUT, True)
    assert await usable(box)


@pytest.mark.fault(20)
async def test_a_forged_answer_affects_only_its_own_cell(box: RealBox) -> None:
    forged = f"{FIND_NONCE}os.write(63, answer(failed=2, code=255, dropped=7, error=4) + b'mine'); time.sleep(60)"
    result = await box.python(forged, timeout=50)
    assert (result.status, result.exit_code, result.stderr, result.dropped_bytes) == (Status.ERROR, 255, "mine", 7)


@pytest.mark.fault(20)
async def test_two_answers_at_once_are_tampering(box: RealBox) -> None:
    result = await box.python(f"{FIND_NONCE}os.write(63, answer() + answer()); time.sleep(60)", timeout=50)
    assert (result.status, result.state_lost) == (Status.PROTOCOL, True)
    assert box.retire_reason == ("protocol", "")


@pytest.mark.fault(20)
async def test_a_second_answer_is_not_the_answer_of_the_next_call(box: RealBox) -> None:
    two = "os.write(63, answer()); time.sleep(0.3); os.write(63, answer(code=7, failed=True))"
    first = await box.python(f"{FIND_NONCE}{two}", timeout=50)
    assert (first.status, first.state_lost) == (Status.OK, False)
    assert (await box.bash("sleep 0.6")).ok
    after = await box.python("6 * 7", timeout=50)
    assert (after.status, after.value, after.state_lost) == (Status.OK, "42", True)
    assert box.retire_reason == ("protocol", "")
    assert await usable(box)
    assert box._box is not None
    await box._clean(box._box)
    assert box.retire_reason == ("protocol", "")  # whichever call comes next, and however many


# --- the shell's ------------------------------------------------------------------------------------------------

# The copies of the two ends of the channel that `eval` keeps: pipes from descriptor 10 on.
FIND_CHANNEL = """
for fd in /proc/$$/fd/*; do
  fd=${fd##*/}
  if [ $fd -ge 10 ] && [ -p /proc/$$/fd/$fd ]; then
    if { : >&$fd; } 2>/dev/null && [ "$(stat -c %A /proc/$$/fd/$fd)" = l-wx------ ]; then out=$fd; else in=$fd; fi
  fi
done
IFS= read -r -d '' nonce <&$in
"""


@pytest.mark.fault(20)
@pytest.mark.parametrize(
    "answer",
    [
        "printf -v digits '9%.0s' {1..5000}; printf '%s %s /\\0' $nonce $digits",
        "printf '%s 1_0 /\\0' $nonce",
        "printf '%s  /\\0' $nonce",
        "printf '%s 0\\0' $nonce",
        "printf '\\0'",
        "printf '%s \\xd9\\xa1 /\\0' $nonce",
        "printf '%s 0 /%0200000d\\0' $nonce 1",
        "printf '%s 0 /\\0%s 0 /\\0' $nonce $nonce",
    ],
)
async def test_no_answer_of_a_shell_breaks_the_supervisor(box: RealBox, answer: str) -> None:
    result = await box.bash(f"{FIND_CHANNEL}{{ {answer}; }} >&$out; sleep 60", timeout=50)
    assert (result.status, result.state_lost) == (Status.PROTOCOL, True)
    assert box.retire_reason == ("protocol", "")
    assert (await box.bash("echo next")).stdout == "next\n"
    assert await usable(box)


@pytest.mark.fault(20)
async def test_a_shell_that_forges_its_status_runs_into_the_timeout_of_the_next_call(box: RealBox) -> None:
    """The forged status is accepted. A shell that does not take the next command is killed and replaced."""
    imitated = await box.bash(f"{FIND_CHANNEL}printf '%s 0 /tmp\\0' $nonce >&$out; sleep 1000", timeout=50)
    assert imitated.status is Status.OK
    result = await box.bash("echo next", timeout=0.2)
    assert (result.status, result.state_lost) == (Status.TIMEOUT, True)
    assert box.retire_reason is not None
    assert box.retire_reason.category in ("hard kill", "protocol")  # the second if SIGINT made it answer twice
    assert (await box.bash("echo next")).stdout == "next\n"
    assert await usable(box)
