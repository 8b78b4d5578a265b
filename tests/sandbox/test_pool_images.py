"""A pool of several images: who gets a box out of turn, and images that take long to get ready."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Hashable
from pathlib import Path

import pytest

from gymnast.sandbox import (
    DEFAULT_IMAGE,
    BoxImage,
    DockerBox,
    DockerExecutor,
    Engine,
    EngineError,
    ExecutorPool,
    ImageError,
    SandboxClosedError,
    SandboxLostError,
    SandboxTimeoutError,
    ScriptedExecutor,
)
from gymnast.sandbox.docker.images import image_facts

from .boxes import LIMITS, eventually
from .pools import at_rest


class Image(ScriptedExecutor):
    """A box of an image, which is ready when `ready` is set, or fails."""

    def __init__(self, name: str, errors: tuple[Exception, ...] = ()) -> None:
        super().__init__([])
        self.name, self.errors = name, list(errors)
        self.prepared, self.ready = [], asyncio.Event()

    @property
    def key(self) -> Hashable:
        return self.name

    async def prepare(self) -> None:
        self.prepared.append(self.name)
        await self.ready.wait()
        if self.errors:
            raise self.errors.pop(0)


class Plain(Image):
    prepare = ScriptedExecutor.prepare


async def order(pool: ExecutorPool, *names: str) -> str:
    """The order in which leases of these images are served; those in capitals have priority."""
    served: list[str] = []

    async def episode(name: str) -> None:
        async with pool.lease(Plain(name.lower()), priority=name.isupper()):
            served.append(name)

    async with pool.lease(Plain("a")):
        episodes = [asyncio.ensure_future(episode(name)) for name in names]
        assert await eventually(lambda: pool.statistics.waiting == len(names), 5)
    await asyncio.gather(*episodes)
    return "".join(served)


async def test_a_box_goes_to_near_leases_of_its_image_out_of_turn() -> None:
    async with ExecutorPool(Plain("a"), max_boxes=1, warm=0) as pool:
        assert await order(pool, *"babababababa") == "aabbbbbaaaab"
        assert pool.statistics.leases - pool.statistics.reused == 4
    async with ExecutorPool(Plain("a"), max_boxes=1, warm=0) as pool:
        assert await order(pool, *"baBa") == "Bbaa"


async def test_an_image_that_is_not_ready_holds_up_its_own_leases_alone() -> None:
    slow, again = Image("slow"), Image("slow")
    async with ExecutorPool(Plain("a"), max_boxes=1, warm=0) as pool:
        async with asyncio.TaskGroup() as group:
            for executor in (slow, slow, again):
                group.create_task(use(pool, executor))
            assert await eventually(lambda: pool.statistics.waiting == 3, 5)
            with pytest.raises(SandboxTimeoutError, match=r"image of this lease was not ready within 0\.1 s"):
                await use(pool, slow, timeout=0.1)
            await use(pool, Plain("a"))
            assert (pool.statistics.boxes, pool.statistics.waiting) == (1, 3)
            slow.ready.set()
        assert (slow.prepared, again.prepared) == (["slow"], [])
        await use(pool, again)
    assert pool.statistics.leases == 5


async def use(pool: ExecutorPool, executor: ScriptedExecutor | None = None, timeout: float = 5) -> None:
    async with pool.lease(executor, timeout=timeout):
        pass


async def test_images_are_prepared_before_their_leases_come() -> None:
    image, other = Image("next"), Image("other", errors=(ImageError("no such image"),))
    image.ready.set()
    other.ready.set()
    async with ExecutorPool(Plain("a"), max_boxes=1, warm=0) as pool:
        with pytest.raises(ImageError, match="no such image"):
            await pool.prepare(image, other, Image("next"))
        await use(pool, image)
        assert (len(image.prepared), pool.statistics.failed_creations) == (1, 1)
        await use(pool, other)  # it is tried again
        assert len(other.prepared) == 2


async def test_an_engine_is_asked_twice_for_an_image_and_every_lease_of_it_fails() -> None:
    image = Image("a", errors=(EngineError("once"),))
    image.ready.set()
    async with ExecutorPool(Plain("other"), warm=0) as pool:
        await use(pool, image)
    image = Image("b", errors=(EngineError("once"), EngineError("twice")))
    image.ready.set()
    async with ExecutorPool(Plain("other"), warm=0) as pool:
        failed = await asyncio.gather(*(use(pool, image) for _ in range(3)), return_exceptions=True)
        assert [str(error) for error in failed] == ["twice"] * 3


async def test_closing_ends_preparations_and_their_leases() -> None:
    image = Image("a")
    async with ExecutorPool(Plain("other"), warm=0) as pool:
        lease, preparing = (asyncio.ensure_future(step) for step in (use(pool, image), pool.prepare(image)))
        assert await eventually(lambda: image.prepared == ["a"], 5)
    with pytest.raises(SandboxClosedError, match="the pool was closed while a lease waited"):
        await lease
    with pytest.raises(SandboxClosedError, match="the pool was closed while images were got ready"):
        await preparing


@pytest.mark.parametrize("fails", [False, True])
async def test_spare_boxes_wait_for_their_image(fails: bool, caplog: pytest.LogCaptureFixture) -> None:
    image = Image("main", errors=(ImageError("no such image"),) if fails else ())
    pool = ExecutorPool(image, max_boxes=4, warm=2)
    async with pool.lease(Plain("a")):
        assert await eventually(lambda: (pool.statistics.boxes, len(image.prepared)) == (1, 1), 5)
        image.ready.set()
        assert await eventually(lambda: pool.statistics.idle == (0 if fails else 2), 5)
        assert await eventually(lambda: ("no such image" in caplog.text) == fails, 5)
    await use(pool, Plain("a"))
    assert len(image.prepared) == 1
    await pool.close()


async def test_a_box_that_cannot_be_reset_is_replaced() -> None:
    class Once(Plain):
        reusable = False

    async with ExecutorPool(Once("a"), max_boxes=1, warm=0) as pool:
        for _ in range(3):
            await use(pool)
        assert (pool.statistics.reused, pool.statistics.retired["not reusable"]) == (0, 3)


async def test_a_pool_lends_whole_boxes_and_replaces_used_ones(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/file").write_text("given")
    template, cwd = DockerBox(engine=engine, limits=LIMITS), "/tmp"
    async with ExecutorPool(template, max_boxes=1) as pool:
        for _ in range(2):
            async with pool.lease(template.variant(network="none"), timeout=60) as box:
                assert box.capabilities == template.capabilities
                assert (await box.exec("ls -A", cwd=cwd)).stdout == ""
                await box.copy_in(tmp_path / "folder", "/tmp")
                await box.write_file("/tmp/more", "data")
                async with box.open(["cat", "/tmp/file", "/tmp/more"]) as process:
                    assert await process.wait(timeout=30) == 0
                    assert await process.read() == b"givendata"
                await box.copy_out("/tmp", tmp_path / f"out-{pool.statistics.leases}")
                assert await box.read_file("/tmp/more") == b"data"
            with pytest.raises(SandboxClosedError, match="the lease of this box is over"):
                await box.exec("true")
            assert box.clone().key == box.variant().key == template.key
            assert (tmp_path / f"out-{pool.statistics.leases}/file").read_text() == "given"
        assert (pool.statistics.created, pool.statistics.reused) == (2, 0)


async def test_a_folder_is_built_apart_from_the_boxes(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM {DEFAULT_IMAGE}\nRUN sleep 2; echo built > /built\n# {tmp_path}")
    image = BoxImage.dockerfile(tmp_path, network=False)
    built = DockerExecutor(image=image, engine=engine, limits=LIMITS)
    async with ExecutorPool(DockerExecutor(engine=engine, limits=LIMITS), max_boxes=1, warm=0) as pool:
        preparing = asyncio.ensure_future(pool.prepare(built))
        async with pool.lease(timeout=30) as box:
            assert (await box.bash("ls /built")).exit_code != 0
            assert not preparing.done()
        await preparing
        async with pool.lease(built, timeout=30) as box:
            assert (await box.bash("cat /built")).stdout == "built\n"
    facts = await image_facts(engine, built.image)
    await engine.call(engine.client.api.remove_image, facts.id, True)


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_fails_every_lease_ends_and_no_box_is_lost(seed: int) -> None:
    chance = random.Random(seed)

    class Frail(Image):
        """A box whose steps take some time, and fail now and then."""

        async def step(self, share: float, *errors: type[Exception]) -> None:
            await asyncio.sleep(chance.random() * 0.003)
            if chance.random() < share:
                raise chance.choice(errors)("by chance")

        async def prepare(self) -> None:
            await self.step(0.2, EngineError, ImageError)

        async def start(self) -> None:
            await self.step(0.1, EngineError, ImageError)
            await super().start()

        async def reset(self) -> None:
            await self.step(0.1, SandboxLostError)
            await super().reset()

    async def lease() -> None:
        executor, timeout = Frail(str(chance.randrange(12))), chance.choice([0.02, 60.0])
        executor.reusable = chance.random() < 0.9
        await asyncio.sleep(chance.random() * 0.2)
        async with pool.lease(executor, timeout=timeout, fresh=chance.random() < 0.2, priority=chance.random() < 0.2):
            await asyncio.sleep(chance.random() * 0.01)

    pool = ExecutorPool(Frail("0"), max_boxes=1 + 2 * seed, warm=seed % 2, max_uses=5)
    leases = [asyncio.ensure_future(lease()) for _ in range(150)]
    for number, task in enumerate(leases):
        if number % 6 == 0:
            asyncio.get_running_loop().call_later(0.3 * chance.random(), task.cancel)
    ends = {type(end) for end in await asyncio.gather(*leases, return_exceptions=True)}
    assert ends <= {type(None), EngineError, ImageError, SandboxTimeoutError, asyncio.CancelledError}
    assert await at_rest(pool)
    assert (pool.statistics.waiting, pool.statistics.leased) == (0, 0)
    await pool.close()
    assert pool.statistics.boxes == 0
