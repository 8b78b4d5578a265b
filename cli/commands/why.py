"""`gymnast why`: why is the reward what it is?"""

from __future__ import annotations

from ..arguments.run_folder import RunArgument, read_run
from ..terminal.options import AsJSON


def why(run: RunArgument, as_json: AsJSON = False) -> None:
    """Say in at most ten lines why the reward of a training is what it is."""
    from dataclasses import asdict

    from ...records.alarms.alarms import find_alarms
    from ...records.alarms.why import why_lines
    from ..terminal.output import console, print_json

    found = read_run(run, names_broken_lines=False)  # an alarm does
    if as_json:
        print_json({"lines": why_lines(found), "alarms": [asdict(alarm) for alarm in find_alarms(found)]})
        return
    for line in why_lines(found):
        console().print(line, markup=False)
