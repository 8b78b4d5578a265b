"""Boxes under gVisor keep the contract; what differs is in docs/security.md."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gymnast.sandbox import DockerExecutor, Limits, build_image
from gymnast.sandbox.testing import conformance

from ..sandbox.boxes import GRACE


@pytest.fixture
def engine_with_gvisor(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An engine of this test, as that of the machine need not know the runtime."""
    if os.geteuid() != 0 or not shutil.which("runsc") or not shutil.which("dockerd"):
        pytest.skip("an engine with gVisor needs root, dockerd and runsc: apt-get install docker.io runsc")
    with tempfile.TemporaryDirectory(prefix="gymnast-runsc-") as name:
        folder = Path(name)
        runsc = {"path": shutil.which("runsc"), "runtimeArgs": ["--network=none"]}  # a box has no network anyway
        (folder / "daemon.json").write_text(json.dumps({"runtimes": {"runsc": runsc}}))
        places = {"config-file": "daemon.json", "data-root": "data", "exec-root": "exec", "pidfile": "pid"}
        # In a network namespace of its own: with --bridge=none it would remove the bridge of the machine's engine.
        command = ["unshare", "--net", "dockerd", "--host", f"unix://{folder}/socket", "--bridge=none"]
        command += ["--iptables=false", "--ip6tables=false"]
        command += [f"--{option}={folder / place}" for option, place in places.items()]
        with (folder / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as dockerd:
            try:
                deadline = time.monotonic() + 60
                while not (folder / "socket").exists():
                    assert dockerd.poll() is None, (folder / "log").read_text()[-2000:]
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
                monkeypatch.setenv("DOCKER_HOST", f"unix://{folder}/socket")
                yield
            finally:
                dockerd.terminate()


@pytest.mark.usefixtures("engine_with_gvisor")
async def test_code_in_gvisor_keeps_the_contract() -> None:
    await build_image()
    limits = Limits(grace=GRACE, pids=1024)  # its own threads count
    report = await conformance.check(
        lambda: DockerExecutor(runtime="runsc", limits=limits), provides={conformance.CODE}
    )
    assert report.ok, report
    assert len(report.passed) > 70
