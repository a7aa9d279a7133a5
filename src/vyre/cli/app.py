"""The frame of every command: how one is found, what it prints where, how it fails, and with which exit code.

A command is a module of this package, imported when it is called:

    from .app import Json, app
    from .output import console, print_json

    class Document(TypedDict):                       # what --json prints; fields are added, never changed
        backends: list[BackendRow]

    @app.command()
    def backends(as_json: Json = False) -> None:
        \"\"\"List backends and why one would not open.\"\"\"
        document = collect()                         # data first, so that the table, --json and a test share it
        if as_json:
            print_json(document)
        else:
            console().print(table(document))
        raise typer.Exit(0 if found else 1)

and a line in `COMMANDS`: its name and the first line of its docstring, word for word (a test compares), so that
`vyre --help` imports none of them. The module is named like the command. A command with commands of its own makes a
`group(...)`, adds it by `app.add_typer(sub, name="config")`, and has one line too. Modules import what is slow (rich,
NumPy, the driver) inside functions: shell completion imports all of them.

- Results go to stdout (`console()`, `print_json`, `sys.stdout`), everything else to stderr (`notes()`, `progress()`).
- Exit code 0: done; 1: the answer is no, or it failed; 2: wrong usage. A command returns (0) or raises `typer.Exit`.
- A `VyreError` is raised and never caught just to be printed: the frame prints its message and fix. Wrong words on the
  command line are an `ArgumentValueError` or `ArgumentTypeError` (exit code 2); every other error is exit code 1.
- `--debug` may stand anywhere before `--`, and adds tracebacks. With `--json`, a failure prints an `ErrorDocument`.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from difflib import get_close_matches
from importlib import import_module
from typing import Annotated, Any, TypedDict

import typer
from typer.core import TyperGroup

from .. import __version__
from ..errors import ArgumentTypeError, ArgumentValueError, ErrorCode, VyreError
from .output import plain_streams, print_json, silence

COMMANDS = {
    "doctor": "Check that vyre works on this machine, and say what to do where it does not.",
    "backends": "List backends in the order they are asked, and why one would not open.",
    "devices": "List the devices of one backend, or of all.",
    "caps": 'Show what a backend can do on a device, and what each "no" means.',
    "run": "Run a kernel or a program from a file.",
    "replay": "Run a recorded dispatch again, and say whether the same comes out.",
    "blame": "Find the operation that a backend computes wrongly.",
    "config": "Show the settings in force, and who set them.",
    "ir": "Show the program of a kernel or a file: text, wire, facts, emitted code.",
    "explain": "Show the plan of a run with every reason, or what an error code means.",
    "cache": "Show what is remembered on disk, why something is not, and take it elsewhere.",
    "trace": "Run a script, and write what it dispatched when.",
    "profile": "Run a script, and print where the time went.",
    "serve": "Run a script, and serve metrics of its dispatches.",
    "bench": "Measure kernels on every backend of this machine.",
}
"""Command -> the first line of its help. The order is the order of the help."""

DONE, NO, USAGE, INTERRUPTED, PIPE_CLOSED = 0, 1, 2, 130, 141
"""Exit codes. The last two are what a shell reports of a program that ended by SIGINT and by SIGPIPE."""

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
"""The type of the option that every command has."""

_WrongUsage = typer.BadParameter.__mro__[1]  # the parser's errors; where their module lies depends on typer's version
_OPTIONS: dict[str, Any] = {
    "rich_markup_mode": None,  # formatting help by rich takes longer than all the rest of the start
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}


class Failure(TypedDict):
    code: int
    name: str
    message: str
    fix: str
    context: dict[str, Any]


class ErrorDocument(TypedDict):
    """What --json prints when a command fails."""

    error: Failure


class _LazyGroup(TyperGroup):
    """Commands by name: the module of one is imported when it is called, or when its own help is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        import_module(f".commands.{cmd_name}", __package__)
        return _swift(vars(typer.main.get_command(app))["commands"].get(cmd_name), ctx)

    def get_help_option(self, ctx: Any) -> Any:
        return _given(super().get_help_option(ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in COMMANDS and not ctx.resilient_parsing:
            close = get_close_matches(args[0], COMMANDS)
            raise ArgumentValueError(
                f"there is no command {args[0]!r}",
                fix=f"did you mean {' or '.join(close)}?" if close else f"use one of: {', '.join(COMMANDS)}",
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _given(help_option: Any) -> Any:
    """The option with a value of its own type where it is not used."""
    if help_option is not None:
        help_option.default = False
    return help_option


def _swift(command: Any, ctx: Any) -> Any:
    """Spare flags and plain texts the conversion of typer 0.29: loading pydantic takes 100 ms, and they need none."""
    _given(command.get_help_option(ctx))
    for parameter in command.params:
        if getattr(getattr(parameter, "type_descriptor", None), "annotation", None) is str:
            parameter._runtime_param = _AsItIs
    for each in getattr(command, "commands", {}).values():
        _swift(each, ctx)
    return command


class _AsItIs:
    @staticmethod
    def coerce(value: str | None, param: object, ctx: object) -> str | None:
        return value


app = typer.Typer(cls=_LazyGroup, name="vyre", add_completion=False, **_OPTIONS)


def group(help: str) -> typer.Typer:
    """A command that has commands of its own; by itself it prints its help, as `vyre` does."""
    made = typer.Typer(add_completion=False, **_OPTIONS)

    @made.callback(help=help, invoke_without_command=True)
    def alone(ctx: typer.Context, as_json: Json = False) -> None:
        if ctx.invoked_subcommand is None:
            _print_help(ctx, as_json)

    return made


@app.callback(invoke_without_command=True)
def _top(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    as_json: Json = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors; may be given anywhere.")] = False,
    install_completion: Annotated[
        bool, typer.Option("--install-completion", help="Install tab completion for the shell that this runs in.")
    ] = False,
    show_completion: Annotated[
        bool, typer.Option("--show-completion", help="Print what --install-completion would install.")
    ] = False,
) -> None:
    """Write a compute program once, run it on whatever is there, get the same bytes everywhere.

    Exit codes: 0 done, 1 the answer is no, 2 wrong usage, 130 interrupted.
    """
    if version:
        print_json({"version": __version__}) if as_json else print(f"vyre {__version__}")
        raise typer.Exit(DONE)
    if install_completion or show_completion:
        _complete(ctx, install_completion)
    if ctx.invoked_subcommand is None:
        _print_help(ctx, as_json)


def _print_help(ctx: Any, as_json: bool) -> None:
    if as_json:
        print_json(Commands(commands=[each for each in describe() if each["name"].startswith(ctx.command_path)]))
    else:
        print(ctx.get_help())


def _complete(ctx: typer.Context, install: bool) -> None:
    from typer.completion import install_callback, show_callback  # typer's own options cost 100 ms at every start

    callback: Any = install_callback if install else show_callback
    try:
        callback(ctx, None, True)
    except (SystemExit, typer.Exit) as e:  # it always ends by one of them
        if (e.code if isinstance(e, SystemExit) else e.exit_code) != DONE:
            fix = "run it from the prompt of bash, zsh, fish or PowerShell"
            raise VyreError("the shell that this runs in is not one that can be completed", fix=fix) from e
    raise typer.Exit(DONE)


# ---- running one ----------------------------------------------------------------------------------------------------


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line `words` (`sys.argv` without the program); the exit code."""
    words = list(sys.argv[1:] if words is None else words)
    ours = words[: words.index("--")] if "--" in words else words  # words that the parser cannot read count too
    debug, as_json = "--debug" in ours, "--json" in ours
    words = _in_place([word for word in ours if word != "--debug"]) + words[len(ours) :]
    if words[:1] == ["help"]:  # `vyre help run` means `vyre run --help`
        words = [*words[1:], "--help"]
    plain_streams()
    try:
        with _tracebacks() if debug else nullcontext():
            code = _run(words)
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        if as_json:
            _print_failure(_Unexpected("interrupted", fix="run it again"), "KeyboardInterrupt")
        return _report("interrupted", INTERRUPTED)
    except BrokenPipeError:  # the reader of our output has seen enough
        silence()
        return PIPE_CLOSED
    except SystemExit:  # the shell's completion ends by it
        raise
    except BaseException as e:
        return _failed(e, debug=debug, as_json=as_json)
    return code


def _tracebacks() -> AbstractContextManager[None]:
    from ..front.config import config

    return config(debug=True)


def _in_place(words: list[str]) -> list[str]:
    """`vyre --json doctor` means `vyre doctor --json`."""
    command = next((k for k, word in enumerate(words) if not word.startswith("-")), 0)
    early = words[:command]
    return [word for word in early if word != "--json"] + words[command:] + ["--json"] * ("--json" in early)


def _run(words: list[str]) -> int:
    command = typer.main.get_command(app)
    if "_VYRE_COMPLETE" in os.environ:
        from typer.completion import get_completion_inspect_parameters

        get_completion_inspect_parameters()  # makes typer's shells known
        command.main(args=words, prog_name="vyre")  # exits by itself
    try:
        with command.make_context("vyre", words) as ctx:
            command.invoke(ctx)
    except typer.Exit as e:
        return e.exit_code
    return DONE


def _failed(error: BaseException, *, debug: bool, as_json: bool) -> int:
    """Say what happened and what to do next; the exit code."""
    known = _as_vyre_error(error)
    if debug:
        import traceback

        _report("".join(traceback.format_exception(error)).rstrip(), NO)
    if as_json:
        _print_failure(known, type(error if isinstance(known, _Unexpected) else known).__name__)
    return _report(f"error: {known}", USAGE if isinstance(known, (ArgumentTypeError, ArgumentValueError)) else NO)


def _print_failure(error: VyreError, name: str) -> None:
    context = {key: repr(value) for key, value in sorted(error.context.items())}
    failure = Failure(code=int(error.code), name=name, message=error.message, fix=error.fix, context=context)
    try:
        print_json(ErrorDocument(error=failure))
        sys.stdout.flush()
    except OSError:  # its reader is gone, or the disk is full; stderr still says what happened
        silence()


class _Unexpected(VyreError):
    """An exception that no code raises on purpose."""

    code = ErrorCode.Unknown


def _as_vyre_error(error: BaseException) -> VyreError:
    if isinstance(error, VyreError):
        return error
    if isinstance(error, _WrongUsage):
        wrong: Any = error
        path = wrong.ctx.command_path if wrong.ctx is not None else "vyre"
        text = wrong.format_message().rstrip(".")
        fix = f"see `{path} --help`"
        if wrong.ctx is not None and any(p.name == "words" for p in wrong.ctx.command.params):
            fix = f"write -- before what the script gets, or {fix}"
        return ArgumentValueError(text[:1].lower() + text[1:], fix=fix)
    if isinstance(error, OSError) and error.filename is None and error.errno == errno.ENOSPC:
        silence()  # buffered output must not fail again at exit
        return VyreError(f"the results cannot be written: {error.strerror}", fix="free some space, or write elsewhere")
    text = " ".join(str(error).split())
    return _Unexpected(f"{type(error).__name__}: {text}", fix="run again with --debug and report it")


def _report(text: str, code: int) -> int:
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        silence(sys.stderr)
    return code


# ---- for the documentation ------------------------------------------------------------------------------------------


class ParameterInfo(TypedDict):
    name: str
    kind: str  # argument or option
    flags: list[str]
    metavar: str
    required: bool
    default: str | None
    help: str


class CommandInfo(TypedDict):
    name: str  # as typed: "vyre config show"
    summary: str
    help: str
    usage: str
    parameters: list[ParameterInfo]


class Commands(TypedDict):
    """What --json prints where no command is named."""

    commands: list[CommandInfo]


def describe() -> list[CommandInfo]:
    """Every command with its help and options, `vyre` itself first, those of a group after it."""
    top = typer.main.get_command(app)
    return _described(top, None, "vyre")


def _described(command: Any, parent: Any, name: str) -> list[CommandInfo]:
    with command.make_context(name, [], parent=parent, resilient_parsing=True) as ctx:
        help = (command.help or "").strip()
        found = [
            CommandInfo(
                name=ctx.command_path,
                summary=help.partition("\n")[0],
                help=help,
                usage=command.get_usage(ctx).removeprefix("Usage: "),
                parameters=[_parameter(p, ctx) for p in command.get_params(ctx) if not getattr(p, "hidden", False)],
            )
        ]
        for each in command.list_commands(ctx) if hasattr(command, "list_commands") else ():
            found += _described(command.get_command(ctx, each), ctx, each)
    return found


def _parameter(parameter: Any, ctx: Any) -> ParameterInfo:
    default = parameter.get_default(ctx)
    is_option = parameter.param_type_name == "option"
    return ParameterInfo(
        name=parameter.name,
        kind=parameter.param_type_name,
        flags=[*parameter.opts, *parameter.secondary_opts] if is_option else [],
        metavar="" if getattr(parameter, "is_flag", False) else parameter.metavar or parameter.name.upper(),
        required=parameter.required,
        default=None if default in (None, False, (), []) else str(default),
        help=getattr(parameter, "help", None) or "",
    )
