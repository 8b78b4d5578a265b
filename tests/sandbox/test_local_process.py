"""LocalExecutor: the removal of its processes and its folder, and modules that cannot be preloaded."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from gymnast.sandbox import EngineError, ImageError, LocalExecutor, SandboxLostError
from gymnast.sandbox.local import process as local_process


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which boxes make their folders; `target/workspace` holds a file of others."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "target/workspace").mkdir(parents=True)
    (tmp_path / "target/workspace/precious").write_text("data")
    return tmp_path


def links_in(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_symlink()]


def texts_in(folder: Path, name: str) -> list[str]:
    return [path.read_text() for path in folder.rglob(name)]


@pytest.mark.parametrize(
    "trick", ["mv {root} {root}-moved; ln -s {target} {root}", "rm -rf {root}; mv {target} {root}", "rm -rf {root}"]
)
async def test_a_folder_that_replaced_the_one_of_the_box_is_not_removed(folder: Path, trick: str) -> None:
    target = folder / "target"
    async with LocalExecutor() as box:
        root = box.workspace.parent
        await box.bash(f"cd /; {trick.format(root=root, target=target)}")
        with pytest.raises(SandboxLostError):
            await box.python("import os, signal; os.kill(os.getppid(), signal.SIGKILL)")
    assert links_in(folder) == []
    assert texts_in(folder, "precious") == ["data"]


def test_a_process_id_that_another_process_has_got_is_not_killed() -> None:
    bystander = subprocess.Popen(["sleep", "600"])
    local_process._kill_if_marked(bystander.pid, b"GYMNAST_SANDBOX=/nowhere")
    assert bystander.poll() is None
    marked = subprocess.Popen(["sleep", "600"], env={**os.environ, "GYMNAST_SANDBOX": "/nowhere"})
    local_process.kill_marked("/nowhere")
    assert marked.wait(10) == -signal.SIGKILL
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()


@pytest.mark.parametrize("name", ["no_such_module", "no_such.module", "json.no_such_module"])
async def test_a_module_that_cannot_be_preloaded(name: str) -> None:
    with pytest.raises(ImageError, match=f"^this machine lacks the module {name}, named in preload$"):
        await LocalExecutor(preload=["json", name]).start()


@pytest.mark.parametrize(
    ("name", "message"),
    [("asyncio.windows_utils", "win32 only"), ("multiprocessing.popen_spawn_win32", "No module named 'msvcrt'")],
)
async def test_a_module_that_breaks_when_it_is_preloaded(name: str, message: str) -> None:
    with pytest.raises(EngineError, match=f"(?s)ended while it was started.*{message}"):
        await LocalExecutor(preload=[name]).start()
