"""Answer questions by searching a SQLite database and reading its pages.

    python examples/sqlite_search.py

Each episode has a small database of its own, so an answer cannot be learned by heart: the model has to search for the
person, read the right one of three pages, and report the town that stands there. A search that SQLite refuses is an
error message to the model. A tiny model learns which page to read from rewards alone: docs/gallery.md has the figures.

    gymnast eval examples/sqlite_search.py:Archive --tasks examples/sqlite_search.py:questions --tool-format react \\
        --model "$(make --silent pretrained)"

searches with SmolLM2-135M-Instruct, a pretrained model that runs on a laptop.
"""

from __future__ import annotations

import argparse
import random
import sqlite3
from importlib.util import find_spec

from gymnast.envs import Message, ToolEnv, tool, tool_call
from gymnast.trainer import GRPOConfig, GRPOTrainer, RichProgress
from gymnast.trainer.testing.tiny import make_tiny_model, tokenizer_for, warm_up

NAMES, TRADES = ("Adam", "Berta", "Cleo"), ("baker", "poet", "smith")
TOWNS = ("Aarhus", "Bergen", "Cork", "Delft", "Essen", "Fano", "Ghent", "Hull")


def people(seed: int) -> dict[str, str]:
    """The titles of the pages and the towns on them: `{"Adam the baker": "Cork", ...}`."""
    rng = random.Random(seed)
    return {f"{name} the {trade}": rng.choice(TOWNS) for name in NAMES for trade in TRADES}


class Archive(ToolEnv):
    """Find out where a person lives."""

    def __init__(self) -> None:
        super().__init__()
        self.database = sqlite3.connect(":memory:", check_same_thread=False)  # tools run in threads, one at a time
        self.database.execute("create virtual table pages using fts5(title, body)")

    def reset_task(self, task) -> list[Message]:
        self.town = people(task["seed"])[task["person"]]
        self.database.execute("delete from pages")
        self.database.executemany("insert into pages values (?, ?)", people(task["seed"]).items())
        return [{"role": "user", "content": f"Where does {task['person']} live?"}]

    @tool
    def search(self, words: str) -> str:
        """Search the pages; returns their titles.

        Args:
            words: Words of the title, in the query language of SQLite's FTS5.
        """
        found = self.rows("select title from pages where pages match ? order by title", words)
        return "\n".join(title for (title,) in found) or "nothing was found"

    @tool
    def read(self, title: str) -> str:
        """Read a page.

        Args:
            title: The title of the page.
        """
        found = self.rows("select body from pages where title = ?", title)
        return f"{title}\nlives in {found[0][0]}" if found else "there is no such page"

    @tool(final=True)
    def final_answer(self, town: str) -> str:
        """Give the answer, which ends the episode.

        Args:
            town: The town.
        """
        self.reward = self.metrics["success"] = float(town == self.town)
        return "thank you"

    def rows(self, query: str, argument: str) -> list[tuple[str]]:
        try:
            return self.database.execute(query, (argument,)).fetchall()
        except sqlite3.OperationalError as error:  # the model's query has a mistake: tell it
            raise ValueError(str(error)) from None

    def close(self) -> None:
        self.database.close()
        super().close()


def random_task(rng: random.Random) -> dict[str, object]:
    return {"seed": rng.randrange(1_000_000), "person": f"{rng.choice(NAMES)} the {rng.choice(TRADES)}"}


def questions() -> list[dict[str, object]]:
    rng = random.Random(1)
    return [random_task(rng) for _ in range(64)]


def demonstration(rng: random.Random) -> list[Message]:
    """An episode that reads the right page in half of the cases."""
    archive, task = Archive(), random_task(rng)
    name, _, trade = str(task["person"]).split()
    title = f"{name} the {rng.choice((trade, rng.choice(TRADES)))}"
    messages: list[Message] = [*archive.reset(options={"task": task})[0]]
    town = people(int(str(task["seed"])))[title]
    for call in (tool_call("search", words=name), tool_call("read", title=title), tool_call("final_answer", town=town)):
        messages += [call, *archive.step(call)[0]]
    archive.close()
    return messages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=15, help="optimiser steps (default: %(default)s)")
    arguments = parser.parse_args()

    archive, rng = Archive(), random.Random(0)
    tools = archive.tool_schemas()
    archive.close()
    shown = [(demonstration(rng), tools) for _ in range(1000)]
    tokenizer = tokenizer_for(shown)
    model = make_tiny_model(tokenizer, hidden_size=64)
    warm_up(model, tokenizer, shown, steps=200)

    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        environment=Archive(),
        train_dataset=[random_task(rng) for _ in range(512)],
        args=GRPOConfig(
            output_dir="runs/sqlite-search",
            num_generations=8,
            per_device_train_batch_size=64,
            learning_rate=2e-3,
            max_turns=5,
            max_steps=arguments.steps,
            logging_steps=1,
            log_episodes_steps=10,
            save_strategy="no",
            report_to="trackio" if find_spec("trackio") else "none",
            project="sqlite-search",  # of trackio
            disable_tqdm=True,
            use_cpu=True,
        ),
        callbacks=RichProgress(),
    )
    new = [random_task(rng) for _ in range(128)]
    before = success(trainer, new)
    trainer.train()
    print(f"right in {before:.0%} of {len(new)} new databases before, {success(trainer, new):.0%} after")


def success(trainer: GRPOTrainer, rows: list[dict[str, object]]) -> float:
    episodes = trainer.rollout(rows)
    return sum(episode.metrics.get("success", 0.0) for episode in episodes) / len(episodes)


if __name__ == "__main__":
    main()
