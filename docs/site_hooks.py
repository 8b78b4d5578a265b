"""What the generator of the site cannot do by itself; mkdocs.yml names this file.

- The packages lie in folders at the root. The reference is read from .links/gymnast/, where links name them.
- reference/commands.md is written by typer, from the commands of `gymnast` and their help texts. Its lists of commands
  cut each text, so the first paragraph of the command takes the text's place.
- Each program of examples/ gets a page, so a link such as `../examples/wordle.py` leads to its source.
- In a clone `../examples/cluster/slurm.sh` is a file beside the page. The site has no such file, so the link gets the
  address of the repository (`gymnast.REPOSITORY`); without one, its text stands alone. A link to a file that
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

from gymnast import REPOSITORY

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
    """Write the page of all commands and their options, and a page for each example."""
    written = subprocess.run(COMMANDS, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    files.append(File.generated(config, "reference/commands.md", content=_with_whole_texts(written)))
    for path in sorted((ROOT / "examples").glob("*.py")):
        content = f"# examples/{path.name}\n\n```python\n{path.read_text()}```\n"
        files.append(File.generated(config, f"examples/{path.stem}.md", content=content))
    return files


def _with_whole_texts(commands: str) -> str:
    texts = dict(re.findall(r"^#+ `(gymnast [\w ]+)`\n\n(.+)", commands, re.MULTILINE))

    def section(found: re.Match[str]) -> str:
        return re.sub(r"(?m)^\* `(\w+)`: .+", lambda row: f"* `{row[1]}`: {texts[f'{found[1]} {row[1]}']}", found[0])

    return re.sub(r"^#+ `([\w ]+)`[^#]*", section, commands, flags=re.MULTILINE)


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Give files outside docs/ their address, and let the search prefer the pages to the API."""
    if page.file.src_uri.startswith(("examples/", "reference/")) and page.file.src_uri != "reference/options.md":
        page.meta["search"] = {"boost": 0.4}
    folder = (ROOT / "docs" / page.file.src_uri).parent

    def address(found: re.Match[str]) -> str:
        target = (folder / found[2]).resolve()
        if target.is_relative_to(ROOT / "docs") or not target.is_relative_to(ROOT) or not target.exists():
            return found[0]
        if target.parent == ROOT / "examples" and target.suffix == ".py":
            return f"[{found[1]}]({'../' * page.file.src_uri.count('/')}examples/{target.stem}.md)"
        return (
            f"[{found[1]}]({REPOSITORY}/blob/main/{target.relative_to(ROOT)}{found[3] or ''})"
            if REPOSITORY
            else found[1]
        )

    return re.sub(r"\[([^\]]+)\]\((\.\./[^)#\s]+)(#[^)\s]*)?\)", address, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Show a bar within code of a table as a bar."""
    return re.sub(r"<td.*?</td>", lambda cell: cell[0].replace(r"\|", "|"), html, flags=re.DOTALL)
