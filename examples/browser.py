"""An agent that uses a web browser by looking: every result of a tool is a screenshot.

    pip install ".[browser]" && apt-get install chromium
    python examples/browser.py

`BrowserEnv` shows the pages of a folder in Chromium, which Playwright drives. All episodes share one browser, and each
has a context of its own. The browser has no network: requests are answered from the folder.
This program plays one episode with a fixed list of calls, and leaves it in `runs/browser/` for `gymnast view`.
A pretrained model must see pictures here; the model of `make pretrained` reads only text.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import mimetypes
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, Page, Playwright, Route, async_playwright

from gymnast.envs import Image, Message, RolloutEngine, ScriptedPolicy, StopReason, ToolEnv, tool, tool_call
from gymnast.records.files.episode_log import append_episodes

SITE = "http://site/"  # no such host: Playwright answers for it


class Chromium:
    """One browser: it starts for the first page and ends with the last."""

    def __init__(self, executable: str | None = None) -> None:
        self.executable = executable or shutil.which("chromium")
        if self.executable is None:
            raise FileNotFoundError("there is no chromium on the PATH: apt-get install chromium, or give executable=")
        self._pages = 0
        self._starting: asyncio.Task[tuple[Playwright, Browser]] | None = None

    async def _start(self) -> tuple[Playwright, Browser]:
        driver = await async_playwright().start()
        # Chromium refuses to run its own sandbox for root. All names are unknown to it, so it reaches no server.
        options: dict[str, Any] = {"chromium_sandbox": os.geteuid() != 0, "handle_sigint": False}
        try:
            browser = await driver.chromium.launch(
                executable_path=self.executable, args=["--host-resolver-rules=MAP * ~NOTFOUND"], **options
            )
        except BaseException:
            await driver.stop()
            raise
        return driver, browser

    @contextlib.asynccontextmanager
    async def page(self, folder: Path, width: int, height: int) -> AsyncIterator[Page]:
        """An empty page in a context of its own, which sees the files of a folder as `http://site/`."""
        self._pages += 1
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
        try:
            _, browser = await asyncio.shield(self._starting)  # others wait for it, too
            context = await browser.new_context(viewport={"width": width, "height": height}, offline=True)
            try:
                await context.route("**/*", lambda route: answer(route, folder))
                yield await context.new_page()
            finally:
                await context.close()
        finally:
            self._pages -= 1
            if not self._pages:
                starting, self._starting = self._starting, None
                driver, browser = await starting
                await browser.close()
                await driver.stop()


async def answer(route: Route, folder: Path) -> None:
    """Answer a request with a file of the folder; nothing else is found."""
    path = (folder / route.request.url.partition("#")[0].partition("?")[0].removeprefix(SITE)).resolve()
    if route.request.url.startswith(SITE) and path.is_relative_to(folder) and path.is_file():
        kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        await route.fulfill(body=path.read_bytes(), content_type=kind)
    else:
        await route.fulfill(status=404, body="Not found", content_type="text/plain")


class BrowserEnv(ToolEnv):
    """Web pages, which the model sees as pictures.

    A row has `prompt`, `page` (the first file that is shown) and `goal` (an expression of JavaScript that is true if
    the task is done, such as `document.title == "sent"`).

    Args:
        folder: The pages.
        browser: The browser, which all copies of the environment share.
        width: Of the pictures, in pixels.
        height: Of the pictures, in pixels.
    """

    _open: contextlib.AsyncExitStack | None = None  # closes the context of this episode

    def __init__(self, folder: Path, browser: Chromium, *, width: int = 512, height: int = 384, **options: Any) -> None:
        super().__init__(**options)
        self.folder, self.browser, self.size = Path(folder).resolve(), browser, (width, height)

    async def reset_task(self, task: Any) -> list[Message]:
        await self._close()
        self.goal, self._open = task["goal"], contextlib.AsyncExitStack()
        self.page = await self._open.enter_async_context(self.browser.page(self.folder, *self.size))
        await self.page.goto(SITE + task["page"])
        content = [{"type": "text", "text": task["prompt"]}, {"type": "image", "image": await self._seen()}]
        return [{"role": "user", "content": content}]

    @tool
    async def click(self, x: int, y: int) -> Image:
        """Click at a place. Returns a screenshot.

        Args:
            x: Pixels from the left edge.
            y: Pixels from the upper edge.
        """
        await self.page.mouse.click(x, y)
        return await self._seen()

    @tool
    async def type(self, text: str) -> Image:
        """Type at the place of the cursor. Returns a screenshot.

        Args:
            text: The text; a line end is the key Enter.
        """
        await self.page.keyboard.type(text)
        return await self._seen()

    @tool
    async def scroll(self, pixels: int) -> Image:
        """Scroll the page. Returns a screenshot.

        Args:
            pixels: Downwards; a negative number goes upwards.
        """
        await self.page.evaluate("pixels => scrollBy(0, pixels)", pixels)
        return await self._seen()

    @tool
    async def goto(self, page: str) -> Image:
        """Open a page. Returns a screenshot.

        Args:
            page: Its file, such as index.html.
        """
        await self.page.goto(SITE + page)
        return await self._seen()

    async def agrade(self, stop: StopReason) -> float | None:
        self.metrics["success"] = float(await self.page.evaluate(self.goal))
        return self.metrics["success"]

    async def aclose(self) -> None:
        await self._close()
        await super().aclose()

    async def _seen(self) -> Image:
        await self.page.wait_for_load_state()
        return await asyncio.to_thread(Image, await self.page.screenshot())

    async def _close(self) -> None:
        stack, self._open = self._open, None
        if stack is not None:
            await stack.aclose()


FORM = """<!doctype html><title>form</title>
<style>input, button { position: absolute; left: 40px; width: 200px; height: 40px; font: 20px sans-serif }</style>
<input style="top: 40px" placeholder="Your name">
<button style="top: 120px" onclick="document.title = document.querySelector('input').value">Send</button>"""
TASK = {"prompt": "Send the name Ada.", "page": "form.html", "goal": "document.title == 'Ada'"}
CALLS = [tool_call("click", x=100, y=60), tool_call("type", text="Ada"), tool_call("click", x=100, y=140)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output-dir", type=Path, default=Path("runs/browser"))
    folder = parser.parse_args().output_dir
    (folder / "pages").mkdir(parents=True, exist_ok=True)
    (folder / "pages" / "form.html").write_text(FORM)
    environment = BrowserEnv(folder / "pages", Chromium())
    [episode] = RolloutEngine(environment, ScriptedPolicy([*CALLS, "Sent."])).play([TASK])
    append_episodes(folder / "episodes.jsonl", [{"step": 0}], [episode])
    print(episode)
    print(f"gymnast view {folder} --open shows what the agent saw")


if __name__ == "__main__":
    main()
