"""`gymnast view` shows pictures: in the transcript, and as one box among the tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

from gymnast.cli.microscope.page import write_page
from gymnast.records.files.episode_log import append_episodes
from gymnast.records.files.run import Run

from ..cli.chromium import chromium, opened
from ..envs.pictures import picture
from .test_records import CAT, seen

LARGE = picture(3, width=400, height=300)


@pytest.mark.parametrize("is_lost", [False, True])
def test_pictures_are_shown_and_those_that_are_lost_are_named(tmp_path: Path, is_lost: bool) -> None:
    append_episodes(tmp_path / "episodes.jsonl", [{"step": 0}], [seen(0, CAT, LARGE)])
    if is_lost:
        (tmp_path / "images" / LARGE.file_name).unlink()
    path = tmp_path / ("view.html" if is_lost else "elsewhere/a page.html")
    path.parent.mkdir(exist_ok=True)
    write_page(Run(tmp_path), path)
    url = path.as_uri() + "#episode=0&view="
    with chromium() as browser:
        with opened(browser, url + "transcript") as page:
            small = page.locator(".message.user").first.get_by_role("button", name="image 6x4, full size")
            small.click()
            assert "full" in (small.get_attribute("class") or "")
            widths = (
                page.locator(".message.user").first.locator("img").evaluate_all("all => all.map(i => i.naturalWidth)")
            )
            assert widths == [6, 256][: 2 - is_lost]
            if is_lost:
                assert "[image 400x300]" in page.locator(".message.user").first.inner_text()
            else:
                links = page.locator(".message.user a.picture").evaluate_all("all => all.map(a => a.href)")
                assert links == [(tmp_path / "images" / LARGE.file_name).as_uri()] * 2
        with opened(browser, url + "tokens") as page:
            page.locator("details.prompt summary").click()
            assert page.locator("details.prompt .tok").all_inner_texts() == ["⟨1⟩", "image 6x4, 2 tokens"]
