"""Rows of the Hugging Face Hub: `hub:owner/name[split]`, also with a configuration and a revision.

`hub:owner/name/configuration@revision[split]` has all of them; a revision is a branch, a tag or a commit.
"""

from __future__ import annotations

from typing import Any

from ...envs.extras import needs_extra
from ..terminal.exits import CommandError

PREFIX = "hub:"


def load_from_hub(reference: str, place: str, split: str | None) -> Any:
    """Return a data set of the Hub, or its splits if the reference names none."""
    with needs_extra("datasets", reference):
        from datasets import load_dataset
        from datasets.exceptions import DatasetNotFoundError, DatasetsError
    named, at, revision = place.removeprefix(PREFIX).partition("@")
    owner, _, rest = named.partition("/")
    name, _, configuration = rest.partition("/")
    if not owner or not name or (at and not revision):
        raise CommandError(
            f"{reference} must be {PREFIX}owner/name, with the split in brackets: {PREFIX}owner/name[train], or with a "
            f"revision: {PREFIX}owner/name@main[train]"
        )
    try:
        return load_dataset(f"{owner}/{name}", configuration or None, split=split, revision=revision or None)
    except DatasetNotFoundError as error:
        remedy = (
            "check the name; a private or gated data set needs the access that its page grants, and `hf auth login`"
        )
        raise CommandError(f"{reference}: {error} To go on, {remedy}") from error
    except ConnectionError as error:
        remedy = "without a network only data sets that were loaded before can be used, or files, such as rows.parquet"
        raise CommandError(f"{reference}: {error}; {remedy}") from error
    except (ValueError, OSError, DatasetsError) as error:  # no such split or configuration, or files that are broken
        message = " ".join(f"{error.__cause__ or error}".splitlines()[:2])
        raise CommandError(
            f"{reference}: {message}; write {PREFIX}{owner}/{name}/configuration{at}{revision}[split]"
        ) from error
