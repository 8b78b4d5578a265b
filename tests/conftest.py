"""What holds for every test: one way to import, no network, no silent skips."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Generator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest

if TYPE_CHECKING:
    from gymnast.sandbox import DockerExecutor, Engine

    from .long_runs import LongRun, LongRuns

ROOT = Path(__file__).resolve().parents[1]
LONG_RUNS: pytest.StashKey[LongRuns] = pytest.StashKey()
Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)

# With the root on the path, `envs.core` and `gymnast.envs.core` would be two modules with two sets of classes.
sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != ROOT]

# Read when transformers, tokenizers, matplotlib and torch are imported, hence before any test module is.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["MPLBACKEND"] = "Agg"
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny models lose time to more, and sums then depend on the machine


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Asyncio is the only event loop that the engine supports."""
    return "asyncio"


# The fixtures import what they need themselves: a test of skips copies this file to a folder of its own.


@pytest.fixture(scope="session")
def image() -> str:
    """The default image, made once; the tests that need it are skipped where no engine answers."""
    from gymnast.sandbox import DEFAULT_IMAGE, EngineError, build_image

    try:
        asyncio.run(build_image())
    except EngineError as error:
        pytest.skip(str(error))
    return DEFAULT_IMAGE


@pytest.fixture
async def engine(image: str) -> AsyncIterator[Engine]:
    from gymnast.sandbox import Engine

    async with Engine() as engine:
        yield engine


@pytest.fixture(scope="module")
async def shared_box(image: str) -> AsyncIterator[DockerExecutor]:
    from gymnast.sandbox import DockerExecutor

    from .boxes import LIMITS

    async with DockerExecutor(limits=LIMITS) as box:
        yield box


@pytest.fixture
async def box(shared_box: DockerExecutor) -> DockerExecutor:
    """A clean box, the same one for the tests of a file."""
    await shared_box.reset()
    return shared_box


@pytest.fixture
async def nothing_left(image: str) -> AsyncIterator[None]:
    """Fails the test if a container of its own is there two seconds later."""
    from .boxes import eventually, own_containers

    before = own_containers()
    yield
    assert await eventually(lambda: own_containers() <= before, 2)


@pytest.fixture
def long_run(request: pytest.FixtureRequest) -> LongRun:
    """What came of the program of a test that is marked with `long_run`."""
    return request.session.stash[LONG_RUNS].result(request.node)


def _has_long_run(item: pytest.Item) -> bool:
    return item.get_closest_marker("long_run") is not None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_has_long_run)  # last, when their programs have ended


def pytest_collection_finish(session: pytest.Session) -> None:
    items = [item for item in session.items if _has_long_run(item)]
    if items and not session.config.option.collectonly:
        from .long_runs import LongRuns

        session.stash[LONG_RUNS] = LongRuns(items)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if LONG_RUNS in session.stash:
        session.stash[LONG_RUNS].stop()


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
