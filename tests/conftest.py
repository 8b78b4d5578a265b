"""Rules for every test: one way to import, no network, no silent skips."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import sys
import tarfile
from collections.abc import AsyncIterator, Generator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest

if TYPE_CHECKING:
    from gymnast.sandbox import BoxImage, DockerExecutor, Engine

ROOT = Path(__file__).resolve().parents[1]
LONGEST = (  # a long file that begins last leaves the other cores idle
    "test_distributed.py",
    "test_training.py",
    "test_records.py",
    "test_layout.py",
    "test_interrupt.py",
    "test_faults_life.py",
    "test_faults_load.py",
    "test_ray.py",
    "test_resume.py",
    "test_reference_model.py",
    "test_trainer.py",
    "test_conformance.py",
    "test_rows.py",
    "test_step_gradient.py",
    "test_calculator_learns.py",
)
BUSYBOX = "sh cat sleep true kill grep mkfifo rm touch test ls stat id head pwd printf ln mkdir chmod echo ps find tail"
Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)

# With the root on the path, `envs.core` and `gymnast.envs.core` would be two modules with two sets of classes.
sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != ROOT]

# transformers, tokenizers, matplotlib and torch read these when imported, so they are set before any test module.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["MPLBACKEND"] = "Agg"
# More threads make tiny models slower, and sums would depend on the machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Asyncio is the only event loop that the engine supports."""
    return "asyncio"


# The fixtures import lazily: a test of the skip rule copies this file to another folder.


@pytest.fixture(scope="session")
def image() -> str:
    """The default image, made once. Tests that need it are skipped if no engine answers."""
    from gymnast.sandbox import DEFAULT_IMAGE, EngineError, build_image

    try:
        asyncio.run(build_image())
    except EngineError as error:
        pytest.skip(str(error))
    return DEFAULT_IMAGE


@pytest.fixture(scope="session")
def bubblewrap() -> None:
    """Tests with this fixture are skipped if bubblewrap makes no boxes here."""
    from gymnast.sandbox import EngineError
    from gymnast.sandbox.local.bwrap_sandbox import require_bubblewrap

    try:
        require_bubblewrap()
    except EngineError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def busybox(tmp_path_factory: pytest.TempPathFactory) -> BoxImage:
    """An image of a static busybox, its links and empty folders: no Python, no Bash, no C library, no users."""
    from gymnast.sandbox import BoxImage

    program = shutil.which("busybox")
    if program is None:
        pytest.skip("there is no busybox: apt-get install busybox-static")
    root = tmp_path_factory.mktemp("busybox")
    for folder in ("bin", "etc", "proc", "dev", "sys", "tmp", "root"):
        (root / folder).mkdir()
    shutil.copy(program, root / "bin/busybox")
    for name in BUSYBOX.split():
        (root / "bin" / name).symlink_to("busybox")
    with tarfile.open(root.with_suffix(".tar"), "w") as tar:
        tar.add(root, ".")
    return BoxImage.rootfs(root.with_suffix(".tar"))


@pytest.fixture
async def engine(image: str) -> AsyncIterator[Engine]:
    from gymnast.sandbox import Engine

    async with Engine() as engine:
        yield engine


@pytest.fixture(scope="module")
async def shared_box(image: str) -> AsyncIterator[DockerExecutor]:
    from gymnast.sandbox import DockerExecutor

    from .sandbox.boxes import LIMITS

    async with DockerExecutor(limits=LIMITS) as box:
        yield box


@pytest.fixture
async def box(shared_box: DockerExecutor) -> DockerExecutor:
    """A clean box, the same one for the tests of a file."""
    await shared_box.reset()
    return shared_box


@pytest.fixture
async def nothing_left(image: str) -> AsyncIterator[None]:
    """Fails the test if this process has a container two seconds later that it did not have before.

    Do not use it in a file whose pool outlives the test: that pool makes spare boxes at any time.
    """
    from .sandbox.boxes import eventually, own_containers

    before = own_containers()
    yield
    assert await eventually(lambda: own_containers() <= before, 2)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the files that take longest first: several files run at a time."""
    items.sort(key=lambda item: item.path.name not in LONGEST)


def pytest_collection_finish() -> None:
    """Leave what the test files imported out of garbage collections: every training asks for several whole ones."""
    gc.freeze()


def _refuse_skip(report: Report) -> Report:
    """Under GYMNAST_REQUIRE_ALL a skipped test is a failed one; an expected failure (xfail) is no skip."""
    if os.environ.get("GYMNAST_REQUIRE_ALL") == "1" and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid} would be skipped, and GYMNAST_REQUIRE_ALL=1 forbids it. {reason}"
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _refuse_skip((yield))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _refuse_skip((yield))
