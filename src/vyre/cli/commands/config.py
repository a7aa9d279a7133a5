"""vyre config: the settings in force, and who set them."""

from __future__ import annotations

import os
import sys
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

from ..app import Json, app, group
from ..output import print_json, print_table

if TYPE_CHECKING:
    from ...driver.settings.knobs import Setting

config = group("Show the settings in force, and who set them.")
app.add_typer(config, name="config")


class SettingRow(TypedDict):
    name: str  # in files and in vyre.config()
    value: str | int | float | bool | None  # None: what `default` says
    origin: str  # config(), a variable, the path of a file, or default
    variable: str
    type: str
    default: str
    meaning: str
    read: str


class FileRow(TypedDict):
    whose: str  # project or user
    path: str | None  # None: there is no such file
    used: bool


class ProblemRow(TypedDict):
    """Why a file, or a line of it, is not obeyed."""

    path: str
    message: str
    fix: str


class Document(TypedDict):
    settings: list[SettingRow]
    files: list[FileRow]
    problems: list[ProblemRow]
    unknown_variables: list[str]  # VYRE_... that no setting has


@config.command()
def show(
    origin: Annotated[bool, typer.Option("--origin", help="Say who set each, and which files were read.")] = False,
    as_json: Json = False,
) -> None:
    """List every setting with its value here and now.

    An argument of a call wins over vyre.config(), that over a variable VYRE_*, that over the project's file (vyre.toml,
    or [tool.vyre] of pyproject.toml), that over the user's file, that over the default.
    """
    document = collect()
    if as_json:
        print_json(document)
        return
    found = [
        (row["name"], _shown(row), *([row["origin"]] if origin else []), row["variable"])
        for row in document["settings"]
    ]
    styles = ["dim" if row["origin"] == "default" else "" for row in document["settings"]]
    print_table(("setting", "value", *(["origin"] if origin else []), "variable"), found, styles)
    for row in document["files"] if origin else []:
        path = row["path"] or "none"
        print(f"{row['whose']}'s file: {path}{'' if row['used'] or not row['path'] else ' (not used)'}")
    for problem in document["problems"]:
        print(f"{problem['message']}. Fix: {problem['fix']}", file=sys.stderr)
    for variable in document["unknown_variables"]:
        close = get_close_matches(variable, [row["variable"] for row in document["settings"]], 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        print(f"{variable} is set and is not a setting{hint}", file=sys.stderr)


def collect() -> Document:
    from ...driver.settings.files import user_path
    from ...driver.settings.knobs import files as read_files
    from ...front.config import config as settings

    found = read_files()  # first: later reads would log what is told here
    rows = [_row(setting) for setting in settings.show()]
    files = [
        FileRow(whose="project", path=found.project, used=found.project is not None),
        FileRow(whose="user", path=user_path(), used=found.user is not None),
    ]
    problems = [ProblemRow(path=p.path, message=p.message, fix=p.fix) for p in found.problems]
    known = {row["variable"] for row in rows}
    unknown = sorted(name for name in os.environ if name.startswith("VYRE_") and name not in known)
    return Document(settings=rows, files=files, problems=problems, unknown_variables=unknown)


def _row(setting: Setting) -> SettingRow:
    knob, value = setting.knob, setting.value
    if isinstance(value, tuple):
        value = str(value) or None
    return SettingRow(
        name=knob.name,
        value=value,
        origin=setting.origin,
        variable=knob.variable,
        type=knob.kind.word,
        default=knob.without,
        meaning=knob.meaning,
        read=knob.read,
    )


def _shown(row: SettingRow) -> str:
    value = row["value"]
    if value is None or row["origin"] == "default":
        return row["default"]
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
