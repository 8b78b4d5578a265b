"""Tables of evaluations and of their comparison."""

from __future__ import annotations

from typing import Any

from .output import one_line, print_table


def print_summary(summary: dict[str, Any]) -> None:
    """Print a summary for people."""
    rows = [("episodes", f"{summary['episodes']} of {summary['tasks']} tasks, {summary['failed']} failed")]
    for name in [name for name in summary if name.startswith("pass@") and "/" not in name]:
        rows.append((name, f"{summary[name]:.1%}  ({summary[name + '/low']:.1%} to {summary[name + '/high']:.1%})"))
    if summary["reward"] is not None:
        between = f"  ({summary['reward/low']:.3f} to {summary['reward/high']:.3f})" if "reward/low" in summary else ""
        rows.append(("reward", f"{summary['reward']:.3f}{between}"))
    rows.append(("stop", ", ".join(f"{reason} {count}" for reason, count in summary["stop"].items())))
    for name, tool in summary["tools"].items():
        error = f"; most often: {one_line(tool['error'], 120)}" if "error" in tool else ""
        rows.append((f"tool {name}", f"{tool['calls']} calls, {tool['failed']} failed{error}"))
    for failure, count in summary["failures"].items():
        rows.append(("failure", f"{count} times {one_line(failure, 120)}"))
    tokens = summary["tokens"]
    if tokens["answer"]:
        rows.append(("tokens", f"{tokens['prompt']} prompt ({tokens['cached']} cached), {tokens['answer']} answer"))
    if "cost" in summary:
        rows.append(("cost", f"{summary['cost']:.4f}"))
    rows += [("note", note) for note in summary["notes"]]
    rows.append(("results", summary["results"]))
    print_table(rows)


def print_comparison(comparison: dict[str, Any], first: str, second: str) -> None:
    """Print a comparison for people."""
    rows = [
        (
            name,
            f"{measure['first']:.3f}",
            f"{measure['second']:.3f}",
            f"{measure['difference']:+.3f}",
            "-" if measure["low"] is None else f"{measure['low']:+.3f} to {measure['high']:+.3f}",
            f"{measure['p']:.2g}",
        )
        for name, measure in comparison.items()
        if name != "tasks"
    ]
    headings = ("", "first", "second", "difference", "95 % interval", "p")
    print_table(rows, headings=headings, title=f"{comparison['tasks']} tasks; first: {first}, second: {second}")
