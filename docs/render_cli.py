"""Write docs/reference/cli.md from the commands: python docs/render_cli.py"""

from __future__ import annotations

from pathlib import Path

from vyre.cli import app

PAGE = Path(__file__).parent / "reference" / "cli.md"

EXIT_CODES = {
    app.DONE: "Done; where something was asked, the answer is yes.",
    app.NO: "The answer is no, or it failed: results differ, a backend is not available, a result cannot be written. "
    "What to do next stands on stderr.",
    app.USAGE: "Wrong usage: an unknown command or option, a file that cannot be read, or a value that makes no sense.",
    app.INTERRUPTED: "Interrupted by Ctrl-C.",
    app.PIPE_CLOSED: "The reader of the output had seen enough: <code>vyre backends &#124; head -1</code>.",
}


def render() -> str:
    top, *commands = app.describe()
    lines = [
        "# The command line",
        "",
        "`vyre`, or `python -m vyre`. Results go to stdout, everything else to stderr; with `--json` every command",
        "prints one JSON document, whose fields are added to and never changed, and with `--help` its help. Errors",
        "end in `Fix:` and show no traceback unless `--debug` is given. `NO_COLOR` is respected. Made from the",
        "commands by `docs/render_cli.py`.",
        "",
        "| command | |",
        "|---|---|",
        *(f"| [`{c['name']}`](#{_anchor(c['name'])}) | {_cell(c['summary'])} |" for c in commands),
        "",
        "## Exit codes",
        "",
        "| code | meaning |",
        "|---|---|",
        *(f'| <a id="exit-{code}"></a>`{code}` | {meaning} |' for code, meaning in EXIT_CODES.items()),
        "",
        "## Options of `vyre` itself",
        "",
        *_table(top, without=("help",)),
    ]
    for command in commands:
        lines += [f"## {command['name']}", "", *_paragraphs(command["help"])]
        lines += ["```text", _usage(command, commands), "```", "", *_table(command, without=("as_json", "help"))]
    return "\n".join(lines)


def _usage(command: app.CommandInfo, commands: list[app.CommandInfo]) -> str:
    """Our own, since every version of typer has another one."""
    words = [p["metavar"] for p in command["parameters"] if p["kind"] == "argument"]
    if any(other["name"].startswith(command["name"] + " ") for other in commands):
        words.append("COMMAND")
    return " ".join([command["name"], *words, "[OPTIONS]"])


def _table(command: app.CommandInfo, without: tuple[str, ...] = ()) -> list[str]:
    rows = [f"| {_name(p)} | {_what(p)} |" for p in command["parameters"] if p["name"] not in without]
    return ["| | |", "|---|---|", *rows, ""] if rows else []


def _name(parameter: app.ParameterInfo) -> str:
    flags = ", ".join(parameter["flags"])
    return "`" + _cell(" ".join(part for part in (flags, parameter["metavar"]) if part)) + "`"


def _what(parameter: app.ParameterInfo) -> str:
    default = f" Default: `{parameter['default']}`." if parameter["default"] else ""
    return _cell(parameter["help"]) + default


def _paragraphs(text: str) -> list[str]:
    """Paragraphs of a help text, each on one line."""
    return [line for part in text.split("\n\n") for line in (" ".join(part.split()), "")]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _anchor(name: str) -> str:
    return name.replace(" ", "-")


if __name__ == "__main__":
    PAGE.write_text(render(), "utf-8")
