"""What the generator of the site cannot do by itself; mkdocs.yml names this file.

- The packages lie in folders at the root. The reference is read from .links/gymnast/, where links name them.
- reference/commands.md is written by typer, from the commands of `gymnast` and their help texts.
- In a clone `../examples/cluster/slurm.sh` is a file beside the page. The site has no such file, so the link gets the
  address of the repository (`repository` in mkdocs.yml); without one, its text stands alone. A link to a file that
  does not exist stays as it is, and the strict build names it.
- In a table GitHub needs `\\|` for a bar within code, and the generator would show the backslash.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
LINKS = ROOT / ".links" / "gymnast"
COMMANDS = (sys.executable, "-m", "typer", "gymnast.cli.main", "utils", "docs", "--name", "gymnast")
PACKAGES = ("sandbox", "envs", "records", "trainer", "cluster", "cli", "gymnast/__init__.py")


def on_startup(**_: Any) -> None:
    """Make the links, before mkdocstrings looks for their folder."""
    LINKS.mkdir(parents=True, exist_ok=True)
    for package in PACKAGES:
        link = LINKS / Path(package).name
        if not link.is_symlink():
            link.symlink_to(ROOT / package)


def on_files(files: Any, *, config: Any, **_: Any) -> Any:
    """Write the page of all commands and their options."""
    written = subprocess.run(COMMANDS, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    files.append(File.generated(config, "reference/commands.md", content=written))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Give files outside docs/ their address in the repository, if it has one."""
    folder = (ROOT / "docs" / page.file.src_uri).parent

    def address(found: re.Match[str]) -> str:
        target = (folder / found[2]).resolve()
        if target.is_relative_to(ROOT / "docs") or not target.is_relative_to(ROOT) or not target.exists():
            return found[0]
        repository = config.extra["repository"]
        return (
            f"[{found[1]}]({repository}/blob/main/{target.relative_to(ROOT)}{found[3] or ''})"
            if repository
            else found[1]
        )

    return re.sub(r"\[([^\]]+)\]\((\.\./[^)#\s]+)(#[^)\s]*)?\)", address, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Show a bar within code of a table as a bar."""
    return re.sub(r"<td.*?</td>", lambda cell: cell[0].replace(r"\|", "|"), html, flags=re.DOTALL)
