"""Code that attacks the channel of its results: what is no answer to the request is tampering, and costs no memory."""

from __future__ import annotations

import pytest

from gymnast.sandbox import Status

from . import faults
from .boxes import usable
from .faults import Box

kind, shared_box, box = faults.kind, faults.shared_box, faults.box

ATTACK = """
import json, os, time
def frame(**header):
    text = json.dumps(header).encode()
    os.write(63, len(text).to_bytes(4, 'big') + bytes(4) + text)
print('partial')
{attack}
time.sleep(60)"""

FORGED = "status='ok', code=0, value=False, dropped=0, lengths=[0, 0, 0]"

ATTACKS = [
    *(
        pytest.param(attack, marks=pytest.mark.fault(19))
        for attack in (
            "os.write(63, b'x' * 100)",
            "os.write(63, bytes(8))",
            "os.write(63, (2).to_bytes(4, 'big') + bytes(4) + b'[]')",
            "os.close(63); time.sleep(60)",
            "os.closerange(3, 300); time.sleep(60)",
        )
    ),
    *(
        pytest.param(attack, marks=pytest.mark.fault(20))
        for attack in (
            f"frame(nonce='0' * 16, {FORGED})",
            "frame(nonce=None)",
            "frame(nonce=[0] * 100)",
            "frame()",
        )
    ),
    *(
        pytest.param(attack, marks=pytest.mark.fault(21))
        for attack in (
            "os.write(63, b'\\xff' * 8)",
            "os.write(63, (2).to_bytes(4, 'big') + b'\\xff' * 4 + b'{}')",
            "os.write(63, b'\\xff' * 4 + (2).to_bytes(4, 'big') + b'{}')",
        )
    ),
]


@pytest.mark.parametrize("attack", ATTACKS)
async def test_tampering_with_the_channel_is_reported(box: Box, attack: str) -> None:
    before = await peak_of_supervisor(box)
    result = await box.python(ATTACK.format(attack=attack), timeout=50)
    assert (result.status, result.exit_code, result.state_lost) == (Status.PROTOCOL, None, True)
    assert result.duration < 8
    assert result.stdout == "partial\n"
    assert box.retire_reason == "protocol"
    assert await usable(box)
    assert await peak_of_supervisor(box) - before < 8 << 20


async def peak_of_supervisor(box: Box) -> int:
    """The most bytes that the supervisor ever held, which any process may read."""
    code = (
        "import os; [line for line in open(f'/proc/{os.getppid()}/status') if line.startswith('VmHWM')][0].split()[1]"
    )
    result = await box.python(code)
    assert result.value is not None, result
    return int(result.value.strip("'")) << 10


@pytest.mark.fault(20)
async def test_an_answer_without_a_question_is_tampering(box: Box) -> None:
    """A thread that answers between two calls, before the next nonce is known, is found out at the next call."""
    code = "import os, threading, time\ndef late():\n    time.sleep(0.3)\n    os.write(63, b'x' * 100)\n"
    assert (await box.python(f"{code}threading.Thread(target=late).start()")).ok
    result = await box.bash("sleep 0.6; echo slept", timeout=20)
    assert result.stdout == "slept\n"
    after = await box.python("'late' in globals()", timeout=20)
    assert (after.status, after.value, after.state_lost) == (Status.OK, "False", True)


FIND_NONCE = """
import json, os, sys, time
frame = sys._getframe()
while "header" not in frame.f_locals: frame = frame.f_back
nonce = frame.f_locals["header"]["nonce"]
def answer(**changes):
    header = dict(nonce=nonce, status="ok", code=0, value=False, dropped=0, lengths=[0, 0, 0]) | changes
    text = json.dumps(header).encode()
    return len(text).to_bytes(4, "big") + bytes(4) + text
"""


@pytest.mark.fault(20)
@pytest.mark.parametrize(
    "changes",
    [
        "status='timeout'",
        "code='0'",
        "code=None",
        "lengths=[1, 2, 3]",
        "lengths=[10**30, 0, 0]",
        "dropped=-1",
        "value=1",
    ],
)
async def test_an_answer_with_the_right_nonce_has_fields_of_the_right_types(box: Box, changes: str) -> None:
    """Code can find the nonce in its own memory, and then answer for itself, but not whatever it likes."""
    result = await box.python(f"{FIND_NONCE}os.write(63, answer({changes})); time.sleep(60)", timeout=50)
    assert (result.status, result.state_lost) == (Status.PROTOCOL, True)
    assert box.retire_reason == "protocol"
    assert await usable(box)


@pytest.mark.fault(20)
async def test_a_second_answer_is_not_taken_for_that_of_the_next_call(box: Box) -> None:
    await box.python(f"{FIND_NONCE}os.write(63, answer() + answer(code=7, status='error'))", timeout=50)
    after = await box.python("6 * 7", timeout=50)
    assert (after.status, after.value, after.state_lost) == (Status.OK, "42", True)
    assert box.retire_reason == "protocol"
    assert await usable(box)
    header, _ = await box._exchange({"op": "reset"}, b"", 30)
    assert header["retire"] == "protocol"  # whoever asks, and however often


@pytest.mark.fault(20)
@pytest.mark.parametrize("text", ["'[' * 990 + ']' * 990", "'1' * 5000", "'-' + '9' * 300", "'1e999'", "'NaN'", "'{}'"])
@pytest.mark.parametrize("field", ["code", "lengths", "status", "nonce"])
async def test_no_value_of_a_field_breaks_the_supervisor(box: Box, field: str, text: str) -> None:
    spoilt = f"""
header = dict(nonce=nonce, status="ok", code=0, value=False, dropped=0, lengths=[0, 0, 0])
header.pop("{field}")
text = (json.dumps(header)[:-1] + ', "{field}": ' + {text} + "}}").encode()
os.write(63, len(text).to_bytes(4, "big") + bytes(4) + text)
time.sleep(60)"""
    result = await box.python(FIND_NONCE + spoilt, timeout=50)
    assert (result.status, result.state_lost) == (Status.PROTOCOL, True)
    assert box.retire_reason == "protocol"
    assert await usable(box)


# --- the shell's ------------------------------------------------------------------------------------------------

# The copies that `eval` keeps of the two ends of the channel, found by what they are: pipes from descriptor 10 on.
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
async def test_no_answer_of_a_shell_breaks_the_supervisor(box: Box, answer: str) -> None:
    result = await box.bash(f"{FIND_CHANNEL}{{ {answer}; }} >&$out; sleep 60", timeout=50)
    assert (result.status, result.state_lost) == (Status.PROTOCOL, True)
    assert box.retire_reason == "protocol"
    assert (await box.bash("echo next")).stdout == "next\n"
    assert await usable(box)


@pytest.mark.fault(20)
@pytest.mark.parametrize("timeout", [2, 50])
async def test_a_shell_that_imitates_its_loop_has_only_lied_about_itself(box: Box, timeout: float) -> None:
    """It is believed for the call in which it does; the next one finds it out, in its own time."""
    imitated = await box.bash(f"{FIND_CHANNEL}printf '%s 0 /tmp\\0' $nonce >&$out; sleep 1000", timeout=50)
    assert imitated.status is Status.OK
    result = await box.bash("echo next", timeout=timeout)
    assert (result.status, result.state_lost) == (Status.TIMEOUT if timeout == 2 else Status.PROTOCOL, True)
    assert result.duration < 20
    assert box.retire_reason == "protocol"
    assert (await box.bash("echo next")).stdout == "next\n"
    assert await usable(box)


@pytest.mark.fault(19)
async def test_a_shell_with_a_long_command_is_not_taken_for_an_imitation(box: Box) -> None:
    command = f"sleep 6 # {'x' * 3_000_000}\necho done"
    result = await box.bash(command, timeout=50)
    assert (result.status, result.stdout, result.state_lost) == (Status.OK, "done\n", False)
    assert box.retire_reason is None
