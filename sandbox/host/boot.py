"""The start of a supervisor: a short program as its command, and the guest's source over its standard input.

So any image with a Python will do: nothing of ours is in the image, in a mount or in an argument.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Literal

_PACKAGE = "gymnast_guest"  # the name of the room `guest` inside the box

# Any Python 3 can parse this program, so an old one is refused with a message.
BOOT = """
import os, sys
def unfit(missing):
    header = ('{"id": 0, "lengths": [], "unfit": "%s"}' % missing).encode()
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

_IMPORTER = f"""
import importlib
from importlib.machinery import ModuleSpec
class Importer:
    def find_spec(self, name, path=None, target=None):
        if name in SOURCES:
            return ModuleSpec(name, self, is_package=name == "{_PACKAGE}")
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        source, file = SOURCES[module.__name__], "<" + module.__name__ + ">"
        exec(compile(source, file, "exec", dont_inherit=True), module.__dict__)
importer = Importer()
sys.meta_path.insert(0, importer)
try:
    main = importlib.import_module("{_PACKAGE}." + MAIN).main
except ImportError as error:
    unfit("the standard library's module " + str(error.name))
sys.meta_path.remove(importer)
main()
"""


@cache
def program(main: Literal["supervisor", "box"] = "supervisor") -> bytes:
    """Return the input that `BOOT` reads: eight digits of length, and a program that imports and runs the guest.

    Args:
        main: the module of the guest whose `main` runs.
    """
    sources = {}
    for file in files("gymnast.sandbox.guest").iterdir():
        stem, _, suffix = file.name.partition(".")
        if suffix == "py":
            sources[_PACKAGE if stem == "__init__" else f"{_PACKAGE}.{stem}"] = file.read_text("utf-8")
    text = f"MAIN, SOURCES = {main!r}, {sources!r}\n{_IMPORTER}".encode()
    return b"%08d" % len(text) + text
