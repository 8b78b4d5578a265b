"""The files of boxes of bubblewrap: images as folders in the user's cache, one upon the other, and snapshots."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable
from functools import cache
from pathlib import Path

from ..base import WORKSPACE
from ..box_image import BoxImage
from ..errors import EngineError, ImageError
from ..host.boot import BOOT
from ..images.digest import digest_of
from ..images.host_image import GUEST_FOLDER, guest_recipe, make_guest, make_root, recipe
from ..images.image import DEFAULT_IMAGE
from .bubblewrap import HOSTNAME, is_root

_BOX, _SNAPSHOT, _MAKING = (f"gymnast-{what}-" for what in ("box", "snapshot", "making"))  # the owner's id follows
_ENDING_SECONDS = 60.0  # for a box to end and its files to be removed, after its owner was killed
_DEFAULT = "default-"
_LAYERS = "layers"  # in a snapshot: a file with the folders below
_FILES = "files"  # in a snapshot: the folder with its own files
_USER = 2_000_000_000  # in boxes of root, the root of the box: no host gives this id to anybody
_HOSTS = f"127.0.0.1 localhost {HOSTNAME}\n"


def cache_folder() -> Path:
    """Return the folder of images. It may be removed while no box runs."""
    if is_root():  # whose boxes are another user's
        return Path("/var/cache/gymnast/boxes")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gymnast" / "boxes"


def guest_folder() -> Path:
    """Return the folder of the guest's Python, which is made if it is missing; ImageError without Linux and glibc."""
    made = _made(f"guest-{guest_recipe(BOOT)}", lambda folder: make_guest(folder, BOOT))
    return made / GUEST_FOLDER.lstrip("/")


def layers_of(image: BoxImage) -> list[Path]:
    """Return the folders that make the root file system of an image, the topmost first. This blocks.

    Raises:
        ImageError: bubblewrap cannot make boxes of this image, or its tar file is broken.
    """
    source = Path(image.source)
    if image.kind == "rootfs" and source.is_dir():
        return [source / _FILES, *map(Path, (source / _LAYERS).read_text().splitlines())]
    if image.kind == "rootfs":
        return [_made(f"rootfs-{digest_of(source)}", lambda folder: _unpack(source, folder))]
    if image.source == DEFAULT_IMAGE:
        return [_made(f"{_DEFAULT}{recipe()}", make_root)]
    what = f"the Dockerfile in {image}" if image.kind == "dockerfile" else f"the image {str(image)!r}"
    raise ImageError(
        f"{what} needs Docker, and bubblewrap makes boxes of folders: export it on a machine that has Docker "
        "(`docker export $(docker create IMAGE) > image.tar`), and give BoxImage.rootfs('image.tar')"
    )


def directory_of(layers: list[Path]) -> str:
    """Return the working directory of an image: a tar file does not say one, the default image has a workspace."""
    return WORKSPACE if layers[-1].name.startswith(_DEFAULT) else "/"


def new_box(layers: list[Path]) -> Path:
    """Make the folder of a box's own files upon these layers, to be the working directory of `mount_command`."""
    folder = Path(tempfile.mkdtemp(prefix=f"{_BOX}{os.getpid()}-"))
    for name in ("upper", "work", "root"):
        (folder / name).mkdir(mode=0o755)
    try:
        os.setxattr(folder / "upper", "user.gymnast", b"")
        os.removexattr(folder / "upper", "user.gymnast")
    except OSError as error:
        shutil.rmtree(folder)
        if error.errno != errno.ENOTSUP:
            raise
        # A folder that code removes and makes anew would show the files of the image again.
        raise EngineError(
            f"{folder.parent} is on a file system without attributes of users, such as one in memory before Linux 6.6: "
            "let TMPDIR name a folder on a disk"
        ) from None
    for number, layer in enumerate(layers):
        (folder / str(number)).symlink_to(layer)
    hosts = next((path for layer in layers if (path := layer / "etc/hosts").exists()), None)
    if hosts is None or not hosts.stat().st_size:  # an exported container has an empty one
        (folder / "upper/etc").mkdir(mode=0o755)
        (folder / "upper/etc/hosts").write_text(_HOSTS)
    _give(folder)
    return folder


def mount_command(layers: int, command: list[str]) -> list[str]:
    """Return a command that mounts so many layers for another one, and removes the box's own files after it.

    Both run as the root of a user namespace. Root itself could write to `/proc/sys` and so harm the machine; its boxes
    are another user's.
    """
    lower = ":".join(map(str, range(layers)))
    options = f"lowerdir={lower},upperdir=upper,workdir=work,volatile,userxattr"
    script = (
        f'mount -t overlay overlay -o {options} root || exit 125; "$@"; code=$?; umount root; rm -rf "$PWD"; exit $code'
    )
    become = ["setpriv", f"--reuid={_USER}", f"--regid={_USER}", "--clear-groups"] if is_root() else []
    return [*become, "unshare", "--user", "--map-root-user", "--mount", "/bin/sh", "-c", script, "sh", *command]


def remove_folder(folder: Path) -> None:
    """Remove a folder with files of a box, whatever their modes. This blocks."""
    if folder.exists():
        subprocess.run([*_of_boxes(), "rm", "-rf", "--", str(folder)], check=False, capture_output=True)


def _of_boxes() -> list[str]:
    """Return the beginning of a command on files of boxes, as code can make files that their owner may not open."""
    return [] if is_root() else ["unshare", "--user", "--map-root-user"]


def take_snapshot(folder: Path) -> Path:
    """Copy the files of a box whose processes stand still; return the folder of the snapshot. This blocks.

    EngineError if the copy fails, for want of room for example.
    """
    snapshot = Path(tempfile.mkdtemp(prefix=f"{_SNAPSHOT}{os.getpid()}-"))
    if is_root():
        os.chown(snapshot, _USER, _USER)
    layers = sorted((path for path in folder.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
    (snapshot / _LAYERS).write_text("".join(f"{os.readlink(layer)}\n" for layer in layers))
    copy = [*_of_boxes(), "cp", "-a", "--", str(folder / "upper"), str(snapshot / _FILES)]
    done = subprocess.run(copy, capture_output=True, text=True)
    if done.returncode:
        remove_folder(snapshot)
        raise EngineError(f"a snapshot could not be copied: {done.stderr[-1000:].strip()}")
    return snapshot


@cache
def reap() -> None:
    """Remove what this user's dead processes have left, such as snapshots and half-made images; once a process."""
    own = _USER if is_root() else os.geteuid()
    for folder in [*Path(tempfile.gettempdir()).glob("gymnast-*"), *cache_folder().glob(f"{_MAKING}*")]:
        match = re.match(f"(?:{_BOX}|{_SNAPSHOT}|{_MAKING})([0-9]+)-", folder.name)
        if match is None or os.path.exists(f"/proc/{match[1]}"):
            continue
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            status = folder.lstat()
            # The guest of a dead process may still be ending.
            is_ending = folder.name.startswith(_BOX) and time.time() - status.st_mtime < _ENDING_SECONDS
            if status.st_uid in (own, os.geteuid()) and not is_ending:
                remove_folder(folder)


def _made(name: str, make: Callable[[Path], None]) -> Path:
    """Return a folder of the cache; make it if it is missing. Another process may be faster, and wins."""
    target = cache_folder() / name
    if not target.exists():
        folder = target.with_name(f"{_MAKING}{os.getpid()}-{uuid.uuid4().hex[:8]}")
        try:
            folder.mkdir(parents=True)
            make(folder)
            _give(folder)
            with contextlib.suppress(OSError):
                folder.rename(target)
        except OSError as error:
            raise ImageError(f"an image could not be unpacked into {target.parent}: {error}") from error
        finally:
            remove_folder(folder)
    return target


def _give(folder: Path) -> None:
    """Make a folder and its files those of the boxes of root."""
    if is_root():
        subprocess.run(["chown", "-hR", f"{_USER}:{_USER}", str(folder)], check=True)


def _unpack(tar: Path, folder: Path) -> None:
    if shutil.which("tar") is None:
        raise ImageError("a root file system is unpacked by the program tar, which this machine lacks")
    # A box gets devices of its own. GNU tar follows no link that it has unpacked.
    command = ["tar", "--extract", "--preserve-permissions", "--no-same-owner", "--exclude=dev/*", "--exclude=./dev/*"]
    done = subprocess.run([*command, "--directory", str(folder), "--file", str(tar)], capture_output=True, text=True)
    if done.returncode:
        raise ImageError(f"{tar} could not be unpacked: {done.stderr[-1000:].strip()}")
