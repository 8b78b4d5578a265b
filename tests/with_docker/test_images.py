"""Images: valid names, the fate of the image that had the name before, and images of folders and tar files."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import subprocess
import sys
import tarfile
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gymnast.sandbox import DEFAULT_IMAGE, BoxImage, DockerBox, DockerExecutor, Engine, EngineError, ImageError
from gymnast.sandbox.docker.builds import build_dockerfile
from gymnast.sandbox.docker.images import MADE, build, image_facts
from gymnast.sandbox.docker.reaper import prune
from gymnast.sandbox.images.digest import digest_of

from ..sandbox.boxes import LIMITS

OURS = uuid.uuid4().hex  # on the images of this process: other processes test at the same time
NAME = "localhost:5000/gymnast-test"  # a registry with a port, which is never contacted


@pytest.fixture
async def names(engine: Engine) -> AsyncIterator[list[str]]:
    """Names of images, which are removed after the test."""
    names: list[str] = []
    yield names
    for name in names:
        with contextlib.suppress(EngineError):
            await engine.call(lambda name=name: engine.client.api.remove_image(name))


async def test_a_rebuilt_image_replaces_the_old_one_unless_that_has_another_name(
    engine: Engine, names: list[str]
) -> None:
    names += [f"{NAME}:1"]
    first = await engine.image(DEFAULT_IMAGE, "never")
    await engine.call(engine.client.api.tag, first.id, NAME, "1")
    second = await build(engine, names[0])
    assert (await engine.image(DEFAULT_IMAGE, "never")).id == first.id != second.id
    await build(engine, names[0])
    assert await engine.call(engine.client.inspect, second.id) is None


async def test_an_image_of_others_is_not_removed(engine: Engine, names: list[str]) -> None:
    empty = bytes(1024)  # an archive without files
    await engine.call(engine.client.api.import_image_from_data, empty, NAME, "latest")
    theirs = await engine.image(NAME, "never")
    names += [NAME, theirs.id]
    await build(engine, NAME)
    assert await engine.call(engine.client.inspect, theirs.id) is not None


@pytest.mark.parametrize(
    ("name", "message"), [("Gymnast-Review:x", "must be lowercase"), ("", "an image needs a name")]
)
async def test_impossible_names(engine: Engine, name: str, message: str) -> None:
    command = [sys.executable, "-m", "gymnast.cli", "sandbox", "build", f"--name={name}"]
    process = await asyncio.create_subprocess_exec(*command, stderr=subprocess.PIPE)
    said = (await process.communicate())[1].decode()
    assert process.returncode == 2
    assert "\nerror: " in said
    assert message in said
    with pytest.raises((EngineError, ImageError), match=message):
        await build(engine, name)


async def test_a_dockerfile_needs_a_name(engine: Engine) -> None:
    with pytest.raises(ImageError, match="an image needs a name"):
        await build_dockerfile(engine, "any", "")


# --- folders and tar files --------------------------------------------------------------------------------------


def write(folder: Path, dockerfile: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "Dockerfile").write_text(f"FROM {DEFAULT_IMAGE}\n{dockerfile}\nLABEL of={OURS}\n")
    return folder


@pytest.mark.parametrize(
    ("change", "counts"),
    [
        (lambda folder: (folder / "data").write_text("new"), True),
        (lambda folder: (folder / "sub/data").write_text("OLD"), True),
        (lambda folder: (folder / "more").touch(), True),
        (lambda folder: (folder / "empty").mkdir(), True),
        (lambda folder: (folder / "data").chmod(0o755), True),
        (lambda folder: (folder / "data").rename(folder / "moved"), True),
        (lambda folder: (folder / "link").unlink() or (folder / "link").symlink_to("elsewhere"), True),
        (lambda folder: os.utime(folder / "data", (1, 1)), False),
        (lambda folder: (folder / "big.bin").write_text("new"), False),  # in .dockerignore
        (lambda folder: (folder / "sub/kept.bin").write_text("new"), True),  # an exception there
    ],
)
def test_the_digest_of_a_folder(tmp_path: Path, change: Any, counts: bool) -> None:
    (tmp_path / ".dockerignore").write_text("# no data\n**/*.bin\n!sub/kept.bin\n")
    (tmp_path / "sub").mkdir()
    for name in ("Dockerfile", "data", "big.bin", "sub/data", "sub/kept.bin"):
        (tmp_path / name).write_text("old")
    (tmp_path / "link").symlink_to("data")
    (tmp_path / "link to a folder").symlink_to("sub")
    before = digest_of(tmp_path)
    change(tmp_path)
    assert (digest_of(tmp_path) != before) == counts


def test_files_are_read_once_for_a_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Dockerfile").write_text("FROM scratch")
    digest = digest_of(tmp_path)
    monkeypatch.setattr(Path, "open", None)
    assert digest_of(tmp_path) == digest
    (tmp_path / "socket").touch()
    monkeypatch.undo()
    assert digest_of(tmp_path) != digest
    (tmp_path / "Dockerfile").unlink()
    (tmp_path / "Dockerfile").symlink_to("Dockerfile")
    with pytest.raises(ImageError, match=f"an image cannot be made of {tmp_path}/absent"):
        digest_of(tmp_path / "absent")


def has_buildkit(command: Path) -> bool:
    return subprocess.run([command, "build", "--help"]).returncode == 0


@pytest.fixture(params=["classic", "BuildKit"])
async def builder(
    engine: Engine, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[str]:
    """The engine's builder and, if a `docker` command of this machine has it, BuildKit."""
    folder = tmp_path / "bin"
    folder.mkdir()
    found = [command for place in os.get_exec_path() if (command := Path(place, "docker")).exists()]
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("DOCKER_BUILDKIT", "1")
    if request.param == "BuildKit":
        able = [command for command in found if has_buildkit(command)]
        if not able:
            pytest.skip("no docker command has BuildKit: install Debian's docker.io, or buildx")
        (folder / "docker").symlink_to(able[0])
    yield request.param
    for image in engine.client.api.images(filters={"label": f"of={OURS}"}):
        engine.client.api.remove_image(image["Id"], force=True)


async def test_a_folder_is_built_once_for_each_content_and_arguments(
    engine: Engine, builder: str, tmp_path: Path
) -> None:
    folder = write(tmp_path / "context", f"ARG WORD=none\nRUN echo {builder} $WORD > /word\nCOPY . /context")
    (folder / "ignored").touch()
    (folder / ".dockerignore").write_text("ignored")
    image = BoxImage.dockerfile(folder, arguments={"WORD": "given"}, network=False)
    first, again = await asyncio.gather(image_facts(engine, image), image_facts(engine, image))
    assert first == again
    async with DockerExecutor(image=image, engine=engine, limits=LIMITS) as box:
        assert (await box.bash("cat /word; ls -A /context")).stdout == f"{builder} given\n.dockerignore\nDockerfile\n"
    other = await image_facts(engine, BoxImage.dockerfile(folder))
    assert other.id != first.id


HEREDOC = "RUN <<END\necho a line\nEND"
MOUNT = "RUN --mount=type=tmpfs,target=/scratch touch /scratch/file"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("RUN echo before; exit 3", r"exit 3.*(code: 3|exit code: 3)"),
        ("RUN true\nNONSENSE", r"line 3: unknown instruction: NONSENSE"),
        ("COPY absent /", "COPY.*absent"),
        (HEREDOC, "line 3: unknown instruction: ECHO"),
    ],
)
async def test_a_failed_build_names_the_line(
    engine: Engine, builder: str, tmp_path: Path, lines: str, message: str
) -> None:
    image = BoxImage.dockerfile(write(tmp_path / "context", lines))
    with pytest.raises(ImageError, match=f"(?s)the Dockerfile in {tmp_path}/context could not be built: .*{message}"):
        await image_facts(engine, image)


async def test_what_only_buildkit_can_do(engine: Engine, builder: str, tmp_path: Path) -> None:
    image = BoxImage.dockerfile(write(tmp_path / "context", MOUNT))
    if builder == "BuildKit":
        await image_facts(engine, image)
    else:
        with pytest.raises(
            ImageError, match=r"This Dockerfile needs BuildKit \(heredocs, RUN --mount\): install buildx"
        ):
            await image_facts(engine, image)


async def test_a_cancelled_build_ends(engine: Engine, builder: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "context", "RUN sleep 1000")
    building = asyncio.create_task(image_facts(engine, BoxImage.dockerfile(folder)))
    assert not (await asyncio.wait([building], timeout=1))[0]
    building.cancel()
    done, _ = await asyncio.wait([building], timeout=10)
    assert done
    assert building.cancelled()


async def test_a_root_file_system_is_imported_once(engine: Engine, names: list[str], tmp_path: Path) -> None:
    archive = tmp_path / "root.tar"
    with tarfile.open(archive, "w") as tar:
        member = tarfile.TarInfo(f"etc/{os.getpid()}")
        member.size = 5
        tar.addfile(member, io.BytesIO(b"hello"))
    image = BoxImage.rootfs(archive)
    first, again = [await image_facts(engine, image) for _ in range(2)]
    names.append(first.id)
    assert first == again
    archive.write_bytes(b"no archive" * 100)
    with pytest.raises(ImageError, match=r"did not make the image 'gymnast-rootfs:.*' from .*root.tar"):
        await image_facts(engine, image)


async def test_unused_images_of_files_are_pruned(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MADE, "rootfs", f"gymnast-test-{OURS}")  # other processes use the others at the same time
    monkeypatch.delitem(MADE, "dockerfile")
    (tmp_path / "a.tar").write_bytes(bytes(1024))
    async with DockerBox(image=BoxImage.rootfs(tmp_path / "a.tar"), engine=engine):
        assert await prune(engine) == []
    [name] = await prune(engine)
    assert name.startswith(f"gymnast-test-{OURS}:")
    assert await engine.call(engine.client.inspect, name) is None
