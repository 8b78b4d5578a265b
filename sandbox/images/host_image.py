"""The root file system of the default image, which `gymnast sandbox build` makes without a registry.

It holds this machine's own interpreter and standard library, Bash and the usual command-line tools, and the C libraries
that these need. This requires Linux with glibc; elsewhere, build `dockerfiles/python`.
"""

from __future__ import annotations

import compileall
import hashlib
import os
import platform
import py_compile
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterable
from pathlib import Path

from ..errors import ImageError

_METHOD = 2  # raise this when `make_archive` begins to make another image of the same parts

RECIPE_LABEL = "gymnast.recipe"  # on the images of this recipe; the value is `recipe()`
CHANGES = ("ENV PATH=/usr/local/bin:/usr/bin:/bin", 'CMD ["python3"]', "WORKDIR /workspace")  # as in a Dockerfile

GUEST_FOLDER = "/.gymnast"  # in a `Box`
GUEST_COMMAND = (
    f"{GUEST_FOLDER}/ld.so", "--library-path", f"{GUEST_FOLDER}/lib", f"{GUEST_FOLDER}/bin/python3", "-I", "-S", "-u",
    "-X", "utf8", f"{GUEST_FOLDER}/boot",
)  # fmt: skip
# The guest's own C library reads no file of the box: it could be a pipe, or worse.
GUEST_VARIABLES = {"LC_ALL": "C", "TZ": "UTC0", "TZDIR": GUEST_FOLDER}

DOCKERFILES = Path(__file__).with_name("dockerfiles")

_LEFT_OUT = (
    "__pycache__", "test", "tests", "idlelib", "tkinter", "turtledemo", "turtle.py", "ensurepip", "lib2to3",
    "pydoc_data", "site-packages", "dist-packages", "config-*", "_test*.so", "_ctypes_test*.so", "_xx*.so",
    "_tkinter*.so", "*.a",
)  # fmt: skip

_NOT_FOR_GUESTS = (
    "asyncio", "concurrent", "curses", "dbm", "distutils", "email", "html", "http", "logging", "multiprocessing",
    "sqlite3", "unittest", "venv", "wsgiref", "xml", "xmlrpc", "_codecs_*.so", "_curses*.so", "_dbm*.so",
    "_gdbm*.so", "_hashlib*.so", "_sqlite3*.so", "_ssl*.so", "_uuid*.so", "nis*.so", "pydoc.py", "readline*.so",
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


def guest_recipe(boot: str) -> str:
    """Return a digest of everything that the archive of `make_guest_archive` depends on."""
    parts = (_METHOD, boot, sys.version, platform.machine(), platform.libc_ver(), _LEFT_OUT, _NOT_FOR_GUESTS)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def recipe() -> str:
    """Return a digest of everything that the default image depends on."""
    parts = (_METHOD, sys.version, platform.machine(), _LEFT_OUT, _TOOLS, _FOLDERS, _FILES)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def make_archive(root: Path, archive: Path) -> None:
    """Build the image's root file system in `root`, and write it to `archive`, a tar file.

    ImageError if this machine does not run Linux with glibc.
    """
    make_root(root)
    _write_archive(root, archive)


def make_root(root: Path) -> None:
    """Build the image's root file system in `root`; ImageError as of `make_archive`."""
    _require_glibc()
    _make_skeleton(root)
    binaries = [*_copy_python(root / "usr/local"), *_copy_tools(root)]
    binaries += _copy_libraries(root, binaries)
    _shrink(binaries)
    _compile(root / "usr/local/lib", root)


def make_guest_archive(root: Path, archive: Path, boot: str) -> None:
    """Build in `root` the folder `.gymnast`: a Python that runs in any image, for the guest of a `Box`.

    Its loader is `ld.so`, its libraries are in `lib`, its program is `bin/python3`, and `boot` holds the text that is
    given. ImageError as of `make_archive`.
    """
    make_guest(root, boot)
    _write_archive(root, archive)


def make_guest(root: Path, boot: str) -> None:
    """Build what `make_guest_archive` puts into its archive."""
    _require_glibc()
    prefix = root / GUEST_FOLDER.lstrip("/")
    (prefix / "bin").mkdir(parents=True)
    binaries = _copy_python(prefix, _NOT_FOR_GUESTS)
    needed, loaders = _libraries(binaries)
    for library in needed:
        binaries.append(prefix / "lib" / Path(library).name)
        shutil.copy(os.path.realpath(library), binaries[-1])
    _shrink(binaries)
    loader = Path(os.path.realpath(loaders.pop())).read_bytes()
    # The box's files may be hostile, and the loader would obey this one.
    (prefix / "ld.so").write_bytes(loader.replace(b"/etc/ld.so.preload", f"{GUEST_FOLDER}/.preload".encode()))
    (prefix / "ld.so").chmod(0o755)
    (prefix / "boot").write_text(boot)
    _compile(prefix / "lib", root)


def _require_glibc() -> None:
    if sys.platform != "linux" or platform.libc_ver()[0] != "glibc":
        raise ImageError(
            "only Linux with glibc can make an image of its own programs; "
            f"build one from a registry: docker build -t my-sandbox {DOCKERFILES / 'python'}"
        )


def _shrink(binaries: Iterable[Path]) -> None:
    if shutil.which("strip"):
        subprocess.run(["strip", "--strip-unneeded", *binaries], check=False, capture_output=True)


def _compile(library: Path, root: Path) -> None:
    compileall.compile_dir(
        library, quiet=2, stripdir=str(root), prependdir="/",
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,  # the files never change
    )  # fmt: skip


def _write_archive(root: Path, archive: Path) -> None:
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


def _copy_python(prefix: Path, left_out: Iterable[str] = ()) -> list[Path]:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    interpreter = prefix / "bin" / version
    shutil.copy(os.path.realpath(sys.executable), interpreter)
    for name in ("python3", "python"):
        interpreter.with_name(name).symlink_to(version)
    library = prefix / "lib" / version
    shutil.copytree(sysconfig.get_path("stdlib"), library, ignore=shutil.ignore_patterns(*_LEFT_OUT, *left_out))
    extensions = Path(sysconfig.get_config_var("DESTSHARED") or "")
    if extensions.is_dir() and not (library / "lib-dynload").exists():  # some distributions keep them elsewhere
        shutil.copytree(extensions, library / "lib-dynload", ignore=shutil.ignore_patterns(*_LEFT_OUT))
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


def _libraries(binaries: Iterable[Path]) -> tuple[set[str], set[str]]:
    """Return the shared libraries that the binaries need, and their loaders."""
    listed = subprocess.run(["ldd", *binaries], capture_output=True, text=True, check=False).stdout
    needed = set(re.findall(r"=> (/\S+)", listed))
    unlisted = _libc(needed).with_name("libgcc_s.so.1")  # loaded by the C library when a thread is cancelled
    if unlisted.exists():
        needed.add(str(unlisted))
    return needed, set(re.findall(r"^\s+(/\S+) \(0x", listed, re.MULTILINE))


def _libc(libraries: Iterable[str]) -> Path:
    return Path(next(path for path in libraries if Path(path).name == "libc.so.6"))


def _copy_libraries(root: Path, binaries: Iterable[Path]) -> list[Path]:
    """Copy the shared libraries that the binaries need into the folder that the loader searches first."""
    needed, loaders = _libraries(binaries)
    folder = _libc(needed).parent
    copied = []
    for library in needed:
        copied.append(_inside(root, folder / Path(library).name))
        shutil.copy(os.path.realpath(library), copied[-1])
    for loader in loaders:  # these keep their symbols, which debuggers need
        shutil.copy(os.path.realpath(loader), _inside(root, Path(loader)))
    return copied


def _inside(root: Path, path: Path) -> Path:
    """Return the path in the image for a library of the host. In the image, /lib is a link to /usr/lib."""
    parts = path.parts[1:]
    target = root.joinpath(*(("usr", *parts) if parts[0] != "usr" else parts))
    target.parent.mkdir(parents=True, exist_ok=True)
    return target
