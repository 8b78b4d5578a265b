"""Pictures in what a run leaves: each once, and `Image`s again where it is read."""

from __future__ import annotations

import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gymnast.envs import Episode, Image, Message, Turn
from gymnast.envs.tokens import ImageSpan, Tokens, TokenTrace
from gymnast.records import read_episodes
from gymnast.records.files import episode_log
from gymnast.records.files.episode_log import EpisodeLog, append_episodes
from gymnast.records.files.run import Run

from ..envs.episodes import specs
from ..envs.pictures import picture

CAT, DOG = picture(1, width=6, height=4), picture(2, width=40, height=30)


def seen(group: int, *images: Image) -> Episode:
    """Make an episode whose row, messages and trace show these pictures."""
    parts: list[dict[str, Any]] = [{"type": "image", "image": image} for image in images]
    shown: Message = {"role": "user", "content": [{"type": "text", "text": "look"}, *parts]}
    spec = specs(8)[group]
    row = {"cat": {"bytes": CAT.data, "path": None}, "pillow": [CAT.open()]}
    spec.task.row.update(row)  # type: ignore[attr-defined]
    trace = TokenTrace.of(Tokens([1, 2, 3], (ImageSpan(1, 2, images[0]),)))
    turn = Turn(message={"role": "assistant", "content": "ok"}, observation=[shown])
    return Episode(spec=spec, prompt=[shown], turns=[turn], traces=[trace], metrics={"odd": math.inf})


@pytest.mark.parametrize("text", ["ok", "a lone \ud800 surrogate"])
def test_a_run_keeps_each_picture_once_and_gives_it_back(tmp_path: Path, text: str) -> None:
    log = EpisodeLog(tmp_path, every=1)
    log.begin(0, 2)
    episodes = [seen(0, CAT, DOG), seen(1, DOG)]
    episodes[0].turns[0].message["content"] = text
    for step in range(2):
        assert log.add(step, episodes) == episodes
    assert {path.name: path.read_bytes() for path in (tmp_path / "images").iterdir()} == {
        f"{image.digest}.png": image.data for image in (CAT, DOG)
    }
    line = json.loads((tmp_path / "episodes.jsonl").read_text().splitlines()[0])["episode"]
    named = {"digest": CAT.digest, "media_type": "image/png", "width": 6, "height": 4}
    assert line["prompt"][0]["content"][1] == {"type": "image", "image": named}
    assert (line["traces"][0]["images"][0]["image"], line["spec"]["task"]["row"]["cat"]) == (named, named)
    assert line["spec"]["task"]["row"]["pillow"] == [named]
    assert Run(tmp_path).episodes[0].question == "look[image 6x4][image 40x30]"
    for again in ([one for _, one in read_episodes(log.path)][2], Run(tmp_path).episode(Run(tmp_path).episodes[2])):
        assert (again.prompt, again.turns[0].observation, again.traces) == (
            *(episodes[0].prompt, episodes[0].turns[0].observation, episodes[0].traces),
        )
    assert Episode.from_json(episodes[1].to_json()).messages == episodes[1].messages  # with its data


def test_pictures_count_in_the_bound_of_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = seen(0, CAT), seen(1, picture(width=200, height=200))
    share = len(small.to_json()) + len(large.to_json({})) + 1000  # room for both, but not for the picture of the second
    monkeypatch.setattr(episode_log, "MOST_BYTES", share * episode_log.ROUNDS)
    log = EpisodeLog(tmp_path, every=None)
    log.begin(0, 1)
    assert log.add(0, [small, large]) == [small]
    assert [path.name for path in (tmp_path / "images").iterdir()] == [CAT.file_name]


@pytest.mark.parametrize(
    ("damage", "message"), [("gone", "cannot be read"), ("other", "another picture than the recorded one")]
)
def test_a_missing_picture_is_named(
    tmp_path: Path, damage: str, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    append_episodes(tmp_path / "episodes.jsonl", [{"step": 0}], [seen(0, DOG)])
    file = tmp_path / "images" / DOG.file_name
    file.unlink() if damage == "gone" else file.write_bytes(CAT.data)
    assert [*read_episodes(tmp_path / "episodes.jsonl")] == []
    assert message in caplog.text
    with pytest.raises(ValueError, match="give its folder as images="):
        Episode.from_json(seen(0, DOG).to_json({}))


def test_a_picture_is_kept_whole_if_many_threads_keep_it_at_once(tmp_path: Path) -> None:
    large = picture(1, width=400, height=300)
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(large.save, [tmp_path / "images"] * 64))
    assert [path.read_bytes() for path in (tmp_path / "images").iterdir()] == [large.data]
