"""What a code of an error means: by number, by class name or by diagnostic code."""

from __future__ import annotations

import difflib
from importlib import import_module
from typing import NamedTuple, TypedDict

from ...errors import RESERVED, ArgumentValueError, DiagCode, VyreError

PAGE = "docs/error-codes.md"
MODULES = ("...errors", "...driver.verify.cases")
"""Where errors are defined."""


class Advice(NamedTuple):
    """How it comes about most often, and what to do then."""

    cause: str
    fix: str


ADVICE: dict[str, Advice] = {
    "ArgumentTypeError": Advice(
        "an array of another dtype than the kernel declares, a list, or a name that the kernel does not have",
        "convert with x.astype(...) as the message says; `vyre ir FILE` shows the parameters",
    ),
    "ArgumentValueError": Advice(
        "a length, shape or number that cannot be used, or two options that contradict each other",
        "change the value that the message names",
    ),
    "BackendError": Advice(
        "a backend raised something that has no class of its own", "read the message, then try `vyre doctor`"
    ),
    "BackendRejected": Advice(
        "the backend under test failed where the reference has an answer", "report the chained error to its author"
    ),
    "BackendUnavailable": Advice(
        "a package or a driver is missing, or the name is misspelt",
        "`vyre backends` lists what is there, and what to install for the rest",
    ),
    "ConformanceError": Advice(
        "a check of a backend against the reference did not pass", "read which case it was, and report the backend"
    ),
    "CooperativeResidencyExceeded": Advice(
        "a grid-wide barrier over more workgroups than the device holds at once",
        "drop cooperative=True: the program then runs as several launches",
    ),
    "DeadlineExceeded": Advice(
        "an endless loop, a first call that had to compile, or a timeout shorter than the work",
        "pass a longer timeout, or compile before the clock starts: vyre.compile(program)",
    ),
    "DeviceLost": Advice(
        "a driver was reset or a device removed, or a dispatch was left behind after its deadline",
        "call again: the backend is recovered or opened anew; if it stays lost, restart the process",
    ),
    "DeviceOutOfMemory": Advice(
        "buffers of this and of other processes fill the device",
        "free other users of the device, or split the work into smaller calls, and try again",
    ),
    "DispatchFailed": Advice(
        "a launch was refused, or a backend broke its contract", "read the context; compare with `--backend reference`"
    ),
    "Diverged": Advice(
        "a backend gave other bytes than the reference", "report both outputs to the author of the backend"
    ),
    "EmptyMatrix": Advice("every case of a conformance run was filtered out", "widen the filter"),
    "IRTypeError": Advice(
        "an IR node was built from something that is not an IR value", "pass expressions, or numbers through lit(...)"
    ),
    "IRValueError": Advice("a literal, count or name that the IR cannot hold", "use a value within the type's range"),
    "InvalidProgram": Advice(
        "the program breaks a rule of the validator, or its buffers do not fit it",
        "`vyre ir FILE` lists every finding with its place and fix",
    ),
    "KernelCompileFailed": Advice(
        "the target's compiler refused the emitted code, or its library is broken",
        "read the log in the context; `vyre ir FILE --emit ID` shows the code to report",
    ),
    "KernelError": Advice(
        "Python that kernels do not have, or types that do not agree",
        "change the line under the caret; docs/kernel-language.md lists what kernels have",
    ),
    "NotComparable": Advice(
        "the program has a race, so two right results may differ", "put a barrier or an atomic where the reasons say"
    ),
    "PoisonedLock": Advice(
        "an exception inside the driver left its state half changed", "report the first failure, and acquire it anew"
    ),
    "RaceDetected": Advice(
        "two invocations touch one element, one of them writes, and no barrier lies between",
        "give each invocation its own element, put a barrier between them, or use an atomic",
    ),
    "ReferenceRejected": Advice(
        "the reference itself refused the program, so nothing can be compared", "correct the program first"
    ),
    "StepLimitExceeded": Advice("a loop that does not end, or a step limit set too low", "bound the loop, or raise it"),
    "TextError": Advice(
        "a misspelt word or a missing bracket in the text form", "correct the line and column it names"
    ),
    "Trap": Advice(
        "the program's own trap() was reached, or an assert failed", "look at the tag and invocation in the context"
    ),
    "UnsupportedFeature": Advice(
        "a type or an operation that this backend or device does not have",
        "choose another backend: `vyre caps ID` says what each one does",
    ),
    "VyreError": Advice("the root of all errors; a raised one has a class below it", "read the fix in the message"),
    "WireError": Advice("a file that was cut, changed or is not a program", "write it again: vyre ir FILE --wire OUT"),
    "WireUnknownOp": Advice("a program of a newer version", "install the version that wrote it, or encode it again"),
    "WireVersionError": Advice(
        "a revision of the wire format that this version does not read", "write it again: program.to_wire(rev=6)"
    ),
}
"""Class -> advice. Every error class has a line; a test compares."""


class Meaning(TypedDict):
    """One thing that a code stands for. `number` and `name` belong to error classes, `severity` to diagnostic codes."""

    code: str
    name: str | None
    number: int | None
    diagnostic: str
    severity: str
    retryable: bool
    meaning: str
    cause: str | None
    fix: str
    link: str


def error_classes() -> dict[str, type[VyreError]]:
    """Every error class by name."""
    return {
        value.__name__: value
        for module in MODULES
        for value in vars(import_module(module, __package__)).values()
        if isinstance(value, type) and issubclass(value, VyreError)
    }


def is_code(text: str) -> bool:
    """Whether it can only be meant as a code: a number, or something that is one."""
    return text.isdecimal() or bool(_of_diagnostic(text)) or text.lower() in {n.lower() for n in error_classes()}


def meanings(text: str) -> list[Meaning]:
    """All that a code stands for: a number is shared by the classes under it."""
    classes = error_classes()
    if text.isdecimal():
        found = [cls for _, cls in sorted(classes.items()) if str(int(cls.code)) == text.lstrip("0")]
        if found:
            return [_of_class(cls) for cls in found]
    known = {name.lower(): cls for name, cls in classes.items()}
    if text.lower() in known:
        return [_of_class(known[text.lower()])]
    if diagnostic := _of_diagnostic(text):
        return [_of_code(diagnostic)]
    numbers = sorted({str(int(cls.code)) for cls in classes.values()})
    if text.upper() in RESERVED:
        raise ArgumentValueError(
            f"{text.upper()} is kept free and has no meaning", fix=f"see {PAGE} for those that have"
        )
    spelt = {name.lower(): name for name in (*classes, *(code.value for code in DiagCode), *numbers)}
    begun = [n for n in spelt if n.startswith(text.lower())]
    near = [spelt[n] for n in (begun or difflib.get_close_matches(text.lower(), spelt, 3, 0.5))[:3]]
    raise ArgumentValueError(
        f"there is no error code {text}",
        fix=f"did you mean {' or '.join(near)}?" if near else f"see {PAGE} for all of them",
    )


def _of_diagnostic(text: str) -> DiagCode | None:
    try:
        return DiagCode(text.upper().replace("_", "-"))
    except ValueError:
        return None


def _of_class(cls: type[VyreError]) -> Meaning:
    advice = ADVICE[cls.__name__]
    return Meaning(
        code=str(int(cls.code)),
        name=cls.__name__,
        number=int(cls.code),
        diagnostic=cls.diagnostic_code,
        severity="error",
        retryable=cls.retryable,
        meaning=" ".join((cls.__doc__ or "").split("\n\n")[0].split()),
        cause=advice.cause,
        fix=advice.fix,
        link=f"{PAGE}#{cls.__name__.lower()}",
    )


def _of_code(code: DiagCode) -> Meaning:
    return Meaning(
        code=code.value,
        name=None,
        number=None,
        diagnostic=code.value,
        severity=code.severity,
        retryable=False,
        meaning=code.description,
        cause=None,
        fix=code.fix,
        link=f"{PAGE}#{code.value.lower()}",
    )
