"""Bubblewrap needs no root: the tests of its boxes pass as the user `nobody`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest

AS_NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "env", "HOME=/nonexistent"]
PROGRAM = """
import site, sys
site.addsitedir(sys.argv.pop(1))
import gymnast.sandbox, pytest
sys.exit(pytest.main(sys.argv[1:]))"""


@pytest.mark.usefixtures("bubblewrap")
@pytest.mark.parametrize("name", ["test_bwrap.py", "test_bwrap_box.py"])
def test_bubblewrap_needs_no_root(name: str) -> None:
    if os.geteuid() != 0:
        return  # then the other file has shown it
    for python in (sys.executable, shutil.which("python3", path="/usr/local/bin:/usr/bin") or "python3"):
        command = [*AS_NOBODY, python, "-c", PROGRAM, sysconfig.get_path("purelib")]
        if subprocess.run([*command, "--version"], capture_output=True).returncode == 0:
            break
    else:
        pytest.skip("the user nobody may read no Python that has gymnast's packages")
    tests = str(Path(__file__).with_name(name))
    with tempfile.TemporaryDirectory() as cache:  # of images; a folder of pytest is closed to others
        os.chmod(cache, 0o777)
        environment = {**os.environ, "XDG_CACHE_HOME": cache}
        pytest_command = [*command, tests, "-q", "-p", "no:cacheprovider"]
        done = subprocess.run(pytest_command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout[-5000:]
