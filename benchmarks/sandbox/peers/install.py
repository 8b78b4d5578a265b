"""Installs the peers: a virtual environment for each, and one image for all, made without an image registry."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from gymnast.sandbox import DEFAULT_IMAGE

FOLDER = Path(__file__).resolve().parents[3] / ".venv-peers"

REQUIREMENTS = {
    "smolagents": ["smolagents[docker]~=1.26"],
    "llm-sandbox": ["llm-sandbox[docker]~=0.3.46"],
    "swe-rex": ["swe-rex~=1.4", "aiohttp"],  # imports aiohttp without asking for it
}

IMAGE = "gymnast-benchmark-peers:latest"
IMAGE_REQUIREMENTS = ["jupyter_kernel_gateway", "ipykernel", "swe-rex~=1.4", "aiohttp"]
DOCKERFILE = f"""\
FROM {DEFAULT_IMAGE}
COPY packages /opt/packages
COPY libraries /opt/libraries
COPY swerex-remote /usr/local/bin/
ENV PYTHONPATH=/opt/packages LD_LIBRARY_PATH=/opt/libraries
EXPOSE 8888
CMD ["python3", "-m", "kernel_gateway", "--KernelGatewayApp.ip=0.0.0.0", "--KernelGatewayApp.port=8888", \
     "--ZMQChannelsWebsocketConnection.limit_rate=False"]
"""  # the gateway holds back all output of a cell that prints more than 1 MB a second


class PeerError(Exception):
    """A peer could not be installed or measured; the message says why."""


def environment(peer: str) -> Path:
    """The Python of the peer's virtual environment, which is made where it is not there yet.

    Raises:
        PeerError: it could not be installed.
    """
    python, stamp = FOLDER / peer / "bin" / "python", FOLDER / peer / "installed.txt"
    wanted = "\n".join([sys.version, *REQUIREMENTS[peer]])
    if not (stamp.exists() and stamp.read_text() == wanted):
        print(f"installing {peer} ...", flush=True)
        _run([sys.executable, "-m", "venv", "--clear", str(FOLDER / peer)])
        _pip(python, *REQUIREMENTS[peer])
        stamp.write_text(wanted)
    return python


def version(peer: str) -> str:
    """The installed version."""
    program = f"import importlib.metadata as m; print(m.version({peer!r}))"
    return _run([str(environment(peer)), "-c", program]).strip()


def image(docker: Any, base: str) -> str:
    """The peers' image, made where it is not there yet, or not of the `base` image with this id.

    Raises:
        PeerError: it could not be made.
    """
    recipe = hashlib.sha256("\n".join([base, DOCKERFILE, *IMAGE_REQUIREMENTS]).encode()).hexdigest()[:16]
    found = docker.images(name=IMAGE)
    if found and (found[0]["Labels"] or {}).get("recipe") == recipe:
        return IMAGE
    print("making the peers' image ...", flush=True)
    context = FOLDER / "image"
    shutil.rmtree(context, ignore_errors=True)
    packages, libraries = context / "packages", context / "libraries"
    libraries.mkdir(parents=True)
    (context / "Dockerfile").write_text(f"{DOCKERFILE}LABEL recipe={recipe}\n")
    server = context / "swerex-remote"
    server.write_text('#!/bin/sh\nexec python3 -m swerex.server "$@"\n')
    server.chmod(0o755)
    _pip(Path(sys.executable), "--target", str(packages), *IMAGE_REQUIREMENTS)
    for library in _libraries(packages):
        shutil.copy(library, libraries)
    lines = list(docker.build(path=str(context), tag=IMAGE, rm=True, forcerm=True, decode=True))
    if lines and "error" in lines[-1]:
        raise PeerError(f"the peers' image could not be built: {lines[-1]['error']}")
    for old in found:
        docker.remove_image(old["Id"])
    shutil.rmtree(context)
    return IMAGE


def _libraries(packages: Path) -> set[str]:
    """The C libraries of this machine that the packages need, and the small image may not have."""
    modules = [str(path) for path in packages.rglob("*.so*")]
    listed = subprocess.run(["ldd", *modules], capture_output=True, text=True, check=False).stdout
    found = set(re.findall(r"=> (/\S+)", listed))
    return {path for path in found if str(packages) not in path and Path(path).name != "libc.so.6"}


def _pip(python: Path, *arguments: str) -> None:
    _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments])


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise PeerError(lines[-1].strip() if lines else f"{command[0]} ended with {done.returncode}")
    return done.stdout
