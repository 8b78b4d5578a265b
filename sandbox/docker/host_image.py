"""Images: a small one made of this machine's own Python, without a registry; and any other from a Dockerfile.

`python -m gymnast.sandbox build` makes the default image: the interpreter and its standard library, Bash and the usual
command-line tools, and the C libraries that these need. Linux with glibc only; elsewhere build `images/python`.
"""

from __future__ import annotations

import asyncio
import compileall
import hashlib
import json
import logging
import os
import platform
import py_compile
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .client import Client, Image
from .engine import Engine
from .errors import EngineError, ImageError

logger = logging.getLogger("gymnast.sandbox")

DEFAULT_IMAGE = "gymnast-sandbox:latest"

RECIPE_LABEL = "gymnast.recipe"  # of the images that `build` makes: what `recipe` was

DOCKERFILES = Path(__file__).with_name("images")

_LEFT_OUT = shutil.ignore_patterns(
    "__pycache__", "test", "tests", "idlelib", "tkinter", "turtledemo", "turtle.py", "ensurepip", "lib2to3",
    "pydoc_data", "site-packages", "dist-packages", "config-*", "_test*.so", "_ctypes_test*.so", "_xx*.so",
    "_tkinter*.so", "*.a",
)  # fmt: skip

_TOOLS = [
    "bash", "sh", "awk", "base64", "basename", "cat", "chmod", "cmp", "comm", "cp", "cut", "date", "dd", "df", "diff",
    "dirname", "du", "echo", "env", "expand", "expr", "false", "file", "find", "fold", "grep", "egrep", "fgrep",
    "gzip", "gunzip", "head", "hostname", "id", "install", "join", "kill", "ln", "ls", "md5sum", "mkdir", "mkfifo",
    "mktemp", "mv", "nl", "nproc", "numfmt", "od", "paste", "pkill", "pgrep", "printenv", "printf", "ps", "pwd",
    "readlink", "realpath", "rev", "rm", "rmdir", "sed", "seq", "sha1sum", "sha256sum", "shuf", "sleep", "sort",
    "split", "stat", "tac", "tail", "tar", "tee", "test", "time", "timeout", "touch", "tr", "true", "truncate", "tty",
    "uname", "uniq", "unlink", "unzip", "wc", "which", "whoami", "xargs", "xxd", "yes", "zip",
]  # fmt: skip

_FOLDERS = (
    "usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "usr/local/bin", "usr/local/lib", "etc/ssl/certs",
    "dev", "proc", "sys", "run", "root", "var/tmp", "workspace", "tmp",
)  # fmt: skip

_FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nsandbox:x:1000:1000::/workspace:/bin/bash\n",
    "etc/group": "root:x:0:\nsandbox:x:1000:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "etc/hosts": "127.0.0.1 localhost\n",
}


async def default_image(engine: Engine) -> Image:
    """The default image.

    Raises:
        ImageError: it has not been made yet.
    """
    try:
        return await engine.image(DEFAULT_IMAGE, "never")
    except ImageError:
        raise ImageError(
            f"there is no image {DEFAULT_IMAGE} yet: `python -m gymnast.sandbox build` makes it from this machine's "
            "Python within seconds and without a registry; or name an image of yours: DockerExecutor(image=...)"
        ) from None


async def build(engine: Engine, name: str = DEFAULT_IMAGE) -> Image:
    """Make an image of this machine's Python and command-line tools; it replaces an earlier one of this name.

    Raises:
        ImageError: this machine is no Linux with glibc, or the name is empty.
        EngineError: the engine does not answer, or refuses the name.
    """
    _check_name(name)
    previous = await engine.call(engine.client.inspect, name)
    with tempfile.TemporaryDirectory(prefix="gymnast-image-") as folder:
        archive = Path(folder, "rootfs.tar")
        await asyncio.to_thread(_make_archive, Path(folder, "rootfs"), archive)
        await engine.call(_import, engine.client, archive, name)
    if previous is not None and RECIPE_LABEL in previous.labels:
        try:
            await engine.call(engine.client.remove_untagged, previous.id)
        except EngineError as error:
            logger.warning("the image that was %s before was not removed: %s", name, error)
    return await engine.image(name, "never")


async def build_if_changed(engine: Engine, name: str = DEFAULT_IMAGE) -> Image:
    """Make the image unless it is there, of this Python and by this recipe.

    Raises:
        ImageError, EngineError: as `build`.
    """
    try:
        found = await engine.image(name, "never")
    except ImageError:
        return await build(engine, name)
    return found if found.labels.get(RECIPE_LABEL) == recipe() else await build(engine, name)


async def build_image(name: str = DEFAULT_IMAGE) -> Image:
    """Make the image unless it is there, with a connection to the engine of its own; takes seconds the first time.

    Raises:
        ImageError: this machine is no Linux with glibc.
        EngineError: no engine answers, or it may not be used; the message says what to do.
    """
    async with Engine() as engine:
        return await build_if_changed(engine, name)


async def build_dockerfile(engine: Engine, folder: str | Path, name: str) -> Image:
    """Build an image from the folder of a Dockerfile, as `docker build -t NAME FOLDER` does.

    Raises:
        ImageError: the build failed, and the message ends with the build's last lines; or the name is empty.
        EngineError: the engine does not answer, or refuses the name.
    """
    _check_name(name)

    def work() -> None:
        if not Path(folder, "Dockerfile").is_file():
            raise ImageError(f"there is no Dockerfile in {folder}")
        lines = list(engine.client.api.build(path=str(folder), tag=name, rm=True, forcerm=True, decode=True))
        if lines and "error" in lines[-1]:
            said = "".join(line.get("stream", "") for line in lines)[-2000:]
            raise ImageError(f"the image {name!r} could not be built: {lines[-1]['error']}\n{said}")

    await engine.call(work)
    return await engine.image(name, "never")


async def dockerfile_image(engine: Engine, folder: Path) -> Image:
    """The image of a Dockerfile's folder, built unless it has been built of the same files before.

    Raises:
        ImageError, EngineError: as `build_dockerfile`.
    """
    name = f"gymnast-dockerfile:{await asyncio.to_thread(_digest, folder)}"
    async with engine.lock(f"building {name}"):
        try:
            return await engine.image(name, "never")
        except ImageError:
            return await build_dockerfile(engine, folder, name)


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(folder)}\0{path.stat().st_mode}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def recipe() -> str:
    """Changes when the default image would."""
    parts = (sys.version, platform.machine(), Path(__file__).read_text("utf-8"))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _check_name(name: str) -> None:
    if not name:
        raise ImageError("an image needs a name, such as 'my-sandbox:latest', got ''")


def _import(client: Client, archive: Path, name: str) -> None:
    from docker.utils import parse_repository_tag  # late, as `client.py` does

    repository, tag = parse_repository_tag(name)
    changes = [
        "ENV PATH=/usr/local/bin:/usr/bin:/bin",
        'CMD ["python3"]',
        "WORKDIR /workspace",
        f"LABEL {RECIPE_LABEL}={recipe()}",
    ]
    answer: Any = client.api.import_image(src=str(archive), repository=repository, tag=tag or "latest", changes=changes)
    last = json.loads(answer.strip().splitlines()[-1])
    if "error" in last:
        raise ImageError(f"the engine did not take the image {name!r}: {last['error']}")


def _make_archive(root: Path, archive: Path) -> None:
    if sys.platform != "linux" or platform.libc_ver()[0] != "glibc":
        raise ImageError(
            "an image can be made of this machine's own programs on Linux with glibc only; "
            f"build one with a registry: docker build -t my-sandbox {DOCKERFILES / 'python'}"
        )
    _make_skeleton(root)
    binaries = [*_copy_python(root), *_copy_tools(root)]
    binaries += _copy_libraries(root, binaries)
    if shutil.which("strip"):
        subprocess.run(["strip", "--strip-unneeded", *binaries], check=False, capture_output=True)
    library = root / "usr/local/lib"
    compileall.compile_dir(
        library, quiet=2, stripdir=str(root), prependdir="/",
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,  # the files never change
    )  # fmt: skip
    with tarfile.open(archive, "w", format=tarfile.GNU_FORMAT) as tar:
        tar.add(root, ".", filter=_owned_by_root)


def _owned_by_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member


def _make_skeleton(root: Path) -> None:
    for folder in _FOLDERS:
        (root / folder).mkdir(parents=True)
    (root / "tmp").chmod(0o1777)
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    for name, text in _FILES.items():
        (root / name).write_text(text)
    certificates = Path("/etc/ssl/certs/ca-certificates.crt")
    if certificates.exists():
        shutil.copy(certificates, root / "etc/ssl/certs")


def _copy_python(root: Path) -> list[Path]:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    interpreter = root / "usr/local/bin" / version
    shutil.copy(os.path.realpath(sys.executable), interpreter)
    for name in ("python3", "python"):
        interpreter.with_name(name).symlink_to(version)
    library = root / "usr/local/lib" / version
    shutil.copytree(sysconfig.get_path("stdlib"), library, ignore=_LEFT_OUT)
    extensions = Path(sysconfig.get_config_var("DESTSHARED") or "")
    if extensions.is_dir() and not (library / "lib-dynload").exists():  # distributions keep them elsewhere
        shutil.copytree(extensions, library / "lib-dynload", ignore=_LEFT_OUT)
    return [interpreter, *library.rglob("*.so")]


def _copy_tools(root: Path) -> list[Path]:
    copied: dict[str, Path] = {}
    for name in _TOOLS:
        found = shutil.which(name)
        if found is None:
            continue
        target = root / "usr/bin" / name
        real = os.path.realpath(found)
        if real in copied:
            target.symlink_to(copied[real].name)
        else:
            shutil.copy(real, target)
            copied[real] = target
    return [path for path in copied.values() if _is_binary(path)]


def _is_binary(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def _copy_libraries(root: Path, binaries: Iterable[Path]) -> list[Path]:
    """Copy the shared libraries that the binaries need to where the loader looks first."""
    listed = subprocess.run(["ldd", *binaries], capture_output=True, text=True, check=False).stdout
    needed = set(re.findall(r"=> (/\S+)", listed))
    loaders = set(re.findall(r"^\s+(/\S+) \(0x", listed, re.MULTILINE))
    libc = next(path for path in needed if Path(path).name == "libc.so.6")
    folder = Path(libc).parent
    unlisted = folder / "libgcc_s.so.1"  # loaded by the C library when a thread is cancelled
    if unlisted.exists():
        needed.add(str(unlisted))
    copied = []
    for library in needed:
        copied.append(_inside(root, folder / Path(library).name))
        shutil.copy(os.path.realpath(library), copied[-1])
    for loader in loaders:
        shutil.copy(os.path.realpath(loader), _inside(root, Path(loader)))  # never stripped: debuggers and it disagree
    return copied


def _inside(root: Path, path: Path) -> Path:
    """Where a library of the host goes; /lib is a link to /usr/lib."""
    parts = path.parts[1:]
    target = root.joinpath(*(("usr", *parts) if parts[0] != "usr" else parts))
    target.parent.mkdir(parents=True, exist_ok=True)
    return target
