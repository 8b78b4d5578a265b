"""What goes into a box at its start: a few lines as the command, and the supervisor's source over its input.

So nothing of ours need be in the image, in a mount, or among the arguments.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

_MODULES = (  # each after those that it imports
    "protocol",
    "inside_channel",
    "inside_processes",
    "inside_files",
    "inside_landlock",
    "inside_container",
    "inside_descendants",
    "inside_worker",
    "inside_loop",
    "inside_host",
    "inside_sessions",
    "inside_python",
    "inside_bash",
    "inside_names",
    "supervisor",
)

# Any Python 3 can read this much, so that an old one is refused and not merely broken.
BOOT = """
import os, sys
def unfit(what):
    header = ('{"id": 0, "lengths": [], "unfit": "%s"}' % what).encode()
    os.write(1, len(header).to_bytes(4, "big") + bytes(4) + header)
    os._exit(0)
def read(size):
    data = b""
    while len(data) < size:
        more = os.read(0, size - len(data))
        if not more:
            os._exit(0)
        data += more
    return data
if sys.version_info < (3, 8):
    unfit("Python >= 3.8 (its python3 is %d.%d)" % sys.version_info[:2])
exec(read(int(read(8))))
"""

_LOADER = """
import types
package = types.ModuleType("gymnast_box")
package.__path__ = []
sys.modules["gymnast_box"] = package
try:
    for name, source in SOURCES:
        module = types.ModuleType("gymnast_box." + name)
        module.__package__ = "gymnast_box"
        sys.modules[module.__name__] = module
        setattr(package, name, module)
        exec(compile(source, "<gymnast " + name + ">", "exec", dont_inherit=True), module.__dict__)
except ImportError as error:
    unfit("the standard library's module " + str(error.name))
module.main()
"""


@cache
def program() -> bytes:
    """What `BOOT` reads: eight digits of length, and a program that loads the supervisor's modules and runs it."""
    sources = [(name, Path(__file__).with_name(f"{name}.py").read_text("utf-8")) for name in _MODULES]
    text = f"SOURCES = {sources!r}\n{_LOADER}".encode()
    return b"%08d" % len(text) + text
