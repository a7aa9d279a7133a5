"""Every deliberate failure: what happened, the numbers, and what to do next.

    VyreError                               1999
      BackendError                          1999  a backend, or the driver on its behalf
        DeviceOutOfMemory (MemoryError)     1001  retryable
        BackendUnavailable                        it cannot be had: unknown, disabled, or it would not open
        UnsupportedFeature                  1002
        PoisonedLock                        1003
        KernelCompileFailed                 1004
        DispatchFailed                      1005
          Trap, StepLimitExceeded, RaceDetected   outcomes of the reference engine
        InvalidProgram (ValueError)         1006
        CooperativeResidencyExceeded        1007
        DeviceLost                          1008
        DeadlineExceeded (TimeoutError)     1009
      WireError (ValueError)                      WireVersionError, WireUnknownOp
      TextError (ValueError)
      ArgumentTypeError (TypeError), ArgumentValueError (ValueError)
      IRTypeError (TypeError), IRValueError (ValueError)
      KernelError (SyntaxError)

Everything imports this module, so it imports nothing that Python has not loaded by then.
"""

from __future__ import annotations

from collections import namedtuple
from enum import IntEnum, StrEnum

TYPE_CHECKING = False  # importing typing would cost more than the rest of this module
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, ClassVar, Self

    from .codes import RESERVED as RESERVED
    from .codes import DiagCode as DiagCode


MOST_LETTERS = 1000
"""The most characters that a caller's value is shown with."""


def shown(value: object, write: Callable[[object], str] = repr) -> str:
    """Any value as a text of bounded length; never an error, whatever its own code does."""
    try:
        text = write(value)
        return text if len(text) <= MOST_LETTERS else f"{text[:MOST_LETTERS]}... ({len(text)} letters)"
    except KeyboardInterrupt:
        raise
    except BaseException:  # an int with more digits than Python will write, say
        return f"(a number of {value.bit_length()} bits)" if type(value) is int else f"(a {type(value).__name__})"


def told(error: BaseException) -> str:
    """The class and the message of an exception of another library."""
    return f"{type(error).__name__}: {shown(error, str)}".removesuffix(": ")


class ErrorCode(IntEnum):
    """Stable numbers for machines, each named after its class. Append only: no number ever changes its meaning."""

    DeviceOutOfMemory = 1001
    UnsupportedFeature = 1002
    PoisonedLock = 1003
    KernelCompileFailed = 1004
    DispatchFailed = 1005
    InvalidProgram = 1006
    CooperativeResidencyExceeded = 1007
    DeviceLost = 1008
    DeadlineExceeded = 1009
    Unknown = 1999

    @property
    def stable_id(self) -> int:
        return self.value


class VyreError(Exception):
    """The root. `context` holds the numbers (asked, limit, device); a blank `fix` is refused.

    A subclass keeps this constructor's shape: errors cross process borders and are rebuilt through it.

    Examples:
        >>> print(VyreError("the grid is too large", fix="split it", asked=9, limit=8))
        the grid is too large [asked=9] [limit=8]. Fix: split it
    """

    code: ClassVar[int] = ErrorCode.Unknown
    retryable: ClassVar[bool] = False
    diagnostic_code: ClassVar[str] = "E-UNKNOWN"

    message: str
    fix: str
    context: dict[str, object]

    def __init__(self, message: str, /, *, fix: str, **context: object) -> None:
        self.message = message.rstrip(" .")
        self.fix = (fix or "").strip().removeprefix("Fix:").lstrip()
        self.context = context
        if not self.fix:
            raise TypeError(f"{type(self).__name__} needs a fix: one imperative sentence")
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self._headline()}. Fix: {self.fix}"

    def _headline(self) -> str:
        """The text without the fix."""
        return f"{self.message}{_where(self.context)}"

    def diagnostic(self) -> Diagnostic:
        """This error as a record: a stable code, the operation where it names one (`op_id`), and the fix."""
        op = self.context.get("op_id")
        where = OpLocation(op) if isinstance(op, str) else None
        return Diagnostic(Severity.ERROR, self.diagnostic_code, self._headline(), where, self.fix)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VyreError) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash((type(self), self.message, self.fix))  # context may hold lists

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, self.fix, self.context), self.__dict__

    def _identity(self) -> tuple[object, ...]:
        return type(self), self.message, self.fix, self.context


def _where(context: Mapping[str, object]) -> str:
    return "".join(f" [{key}={_written(value)}]" for key, value in sorted(context.items()))


def _written(value: object) -> str:
    """A value of the context, as long as it is. Where its own repr fails, the error must still be told."""
    try:
        return repr(value)
    except Exception:
        return shown(value)


def _rebuild(cls: type[VyreError], message: str, fix: str, context: dict[str, object]) -> VyreError:
    return cls(message, fix=fix, **context)


class BackendError(VyreError):
    """A backend failed, or the driver refused on its behalf."""

    _text: str | None = None  # the words of `new`, when they brought their own Fix

    @staticmethod
    def new(text: str) -> BackendError:
        """An error from plain words, kept byte for byte if they hold `Fix: `."""
        message, marker, fix = text.partition("Fix: ")
        error = BackendError(message, fix=fix.strip() or "include backend-specific recovery guidance.")
        if marker:
            error._text = text
        return error

    @staticmethod
    def unsupported_extension(backend: str, kind: str, identity: object) -> UnsupportedFeature:
        """`backend` has no code for an opaque expression, node or type."""
        return UnsupportedFeature(
            "the backend does not support an opaque IR extension",
            fix="choose a backend whose supported_ops() lists the extension, or lower it to core operations",
            name=f"opaque IR extension {kind} {identity}",
            backend=backend,
        )

    @staticmethod
    def poisoned_lock(err: object) -> PoisonedLock:
        """Guarded state was left half changed by an exception inside its critical section."""
        return PoisonedLock(
            "a lock was poisoned: an exception left the state behind it inconsistent",
            fix="report the first failure named here, then retry with a newly acquired backend",
            lock_error=str(err),
        )

    def into_message(self) -> str:
        return str(self)

    def __str__(self) -> str:
        return self._text or super().__str__()


class DeviceOutOfMemory(BackendError, MemoryError):
    """The device is full at this moment; freeing and retrying may work. Never means 'too big for this device'."""

    code, retryable, diagnostic_code = ErrorCode.DeviceOutOfMemory, True, "E-GPU"


class BackendUnavailable(BackendError):
    """No backend, or not the one that was named: it is unknown, disabled, or would not open."""

    diagnostic_code = "B-CAP-002"


class UnsupportedFeature(BackendError):
    """The backend does not offer something the program or the call needs."""

    code, diagnostic_code = ErrorCode.UnsupportedFeature, "B-CAP-003"


class PoisonedLock(BackendError):
    """An exception inside a critical section left guarded state inconsistent."""

    code = ErrorCode.PoisonedLock


class KernelCompileFailed(BackendError):
    """The target's compiler rejected the emitted kernel; its log is in the context."""

    code, diagnostic_code = ErrorCode.KernelCompileFailed, "E-LOWERING"


class DispatchFailed(BackendError):
    """A launch was refused or did not finish."""

    code, diagnostic_code = ErrorCode.DispatchFailed, "E-GPU"


MOST_TRAPS = 64
"""Invocations that trapped of which an error tells one by one."""


class Trapped(namedtuple("Trapped", "tag address invocation place", defaults=("",))):
    """An invocation that trapped: with which tag and address, its global id, and `file:line` where that is known."""

    __slots__ = ()


class Trap(DispatchFailed):
    """The program trapped; `address` and `tag` are in the context, and no output was produced.

    They are those of the first invocation that did. Where several trapped, `trapped` is there too, and says how many.
    """

    diagnostic_code = "E-INTERP"

    @classmethod
    def of(cls, first: Sequence[Trapped], trapped: int = 1) -> Trap:
        """Of so many invocations; `first` are the first of them, up to `MOST_TRAPS`."""
        tag, address, invocation, _ = first[0]
        more: dict[str, object] = {"trapped": trapped, "first": tuple(first)} if trapped > 1 else {}
        return cls(
            f"the program trapped: {tag}",
            fix="correct the input or the condition that leads to this trap",
            address=address,
            tag=tag,
            invocation=invocation,
            **more,
        )

    @property
    def trapped(self) -> int:
        """How many invocations trapped: at least so many, where they meet at barriers, and else exactly."""
        found = self.context.get("trapped", 1)
        assert isinstance(found, int)
        return found

    @property
    def first(self) -> tuple[Trapped, ...]:
        """The first of them, by global id, z before y before x; at most `MOST_TRAPS`."""
        told: dict[str, Any] = self.context
        if "first" not in told and "invocation" in told:
            return (Trapped(told.get("tag", ""), told.get("address", 0), told["invocation"]),)
        found: tuple[Trapped, ...] = told.get("first", ())
        return found

    @property
    def overflow(self) -> int:
        """How many of them `first` does not have."""
        return self.trapped - len(self.first)

    def _headline(self) -> str:
        shown = {key: value for key, value in self.context.items() if key != "first"}
        return f"{self.message}{_where(shown)}"


class StepLimitExceeded(DispatchFailed):
    """The program executed more steps than the caller allows."""

    diagnostic_code = "E-INTERP"


class RaceDetected(DispatchFailed):
    """Two invocations touched one location without an order between them."""

    diagnostic_code = "E-INTERP"


class InvalidProgram(BackendError, ValueError):
    """The program, or what it is bound to, breaks a rule. `issues` are the validator's findings, if it made any."""

    code = ErrorCode.InvalidProgram

    issues: tuple[object, ...]

    def __init__(self, message: str, /, *, fix: str, issues: tuple[object, ...] = (), **context: object) -> None:
        super().__init__(message, fix=fix, **context)
        self.issues = tuple(issues)

    def diagnostic(self) -> Diagnostic:
        """As of every error, under the code of its first finding; `driver.diagnostics_of` gives them all."""
        code = getattr(self.issues[0], "code", None) if self.issues else None
        found = super().diagnostic()
        return found if code is None else found._replace(code=code)

    def _identity(self) -> tuple[object, ...]:
        return *super()._identity(), self.issues


class CooperativeResidencyExceeded(BackendError):
    """A grid-wide wait needs more workgroups at once than the device holds; the split path still works."""

    code = ErrorCode.CooperativeResidencyExceeded


class DeviceLost(BackendError):
    """The device is gone, and with it every handle and pipeline made on it."""

    code, diagnostic_code = ErrorCode.DeviceLost, "E-GPU"


class DeadlineExceeded(BackendError, TimeoutError):
    """The dispatch did not finish in time; nothing of the caller's was written."""

    code = ErrorCode.DeadlineExceeded


class WireError(VyreError, ValueError):
    """Bytes that are not a program, or a program that has no bytes.

    `kind` in the context: magic, version, truncated, flags, integrity, discriminant, limit or encode.
    """

    diagnostic_code = "E-WIRE-VALIDATION"


class WireVersionError(WireError):
    """A revision of the wire format that this version does not read or write."""

    diagnostic_code = "E-WIRE-VERSION"


class WireUnknownOp(WireError):
    """A record whose operation id is unknown or disagrees with its payload."""

    diagnostic_code = "E-WIRE-UNKNOWN-OP"


class TextError(VyreError, ValueError):
    """Text that is not a program; `line` and `column` are in the context."""


class ArgumentTypeError(VyreError, TypeError):
    """An argument of a call has the wrong type or dtype."""


class ArgumentValueError(VyreError, ValueError):
    """An argument of a call has the right type and an unusable value, length or layout."""


class IRTypeError(VyreError, TypeError):
    """An IR value was built from the wrong kind of thing."""


class IRValueError(VyreError, ValueError):
    """An IR value was built from the right kind of thing with an impossible value."""


class KernelError(VyreError, SyntaxError):
    """Kernel source that has no meaning, shown with its line and a caret.

    `offset` and `end_offset` count characters of `text` from 1, as in SyntaxError; `end_offset` is the first one after.
    """

    def __init__(
        self,
        message: str,
        /,
        *,
        fix: str,
        filename: str,
        lineno: int | None,
        offset: int | None,
        text: str | None,
        end_offset: int | None = None,
    ) -> None:
        where = {"filename": filename, "lineno": lineno, "offset": offset, "text": text, "end_offset": end_offset}
        super().__init__(message, fix=fix, **where)
        self.msg = f"{self.message}. Fix: {self.fix}"  # a traceback shows msg and not str()
        self.filename, self.lineno, self.offset, self.text = filename, lineno, offset, text
        self.end_lineno, self.end_offset = (None, None) if end_offset is None else (lineno, end_offset)

    def __str__(self) -> str:
        return "\n".join([self._headline(), *self._excerpt(), f"Fix: {self.fix}"])

    def _headline(self) -> str:
        place = self.filename if self.lineno is None else f"{self.filename}:{self.lineno}"
        return f"{place}: {self.message}"

    def _excerpt(self) -> list[str]:
        """The source line without its indentation, and carets under the part that is meant."""
        source = (self.text or "").rstrip()
        line = source.lstrip()
        if not line:
            return []
        if not self.offset:
            return [f"    {line}"]
        indent = len(source) - len(line)
        start = min(max(self.offset - 1 - indent, 0), len(line))
        end = min((self.end_offset or 0) - 1 - indent, len(line))
        pad = "".join("\t" if char == "\t" else " " for char in line[:start])
        return [f"    {line}", f"    {pad}{'^' * max(end - start, 1)}"]


# ---- diagnostics ----------------------------------------------------------------------------------------------------


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"

    @property
    def label(self) -> str:
        return self.value


class OpLocation(namedtuple("OpLocation", "op_id operand_idx attr_name", defaults=(None, None))):
    """The operation that is meant; `operand_idx` or `attr_name` is the part of it that is.

    >>> print(OpLocation("math.add").with_operand(2))
    op `math.add` operand[2]
    """

    __slots__ = ()

    def with_operand(self, index: int) -> OpLocation:
        return self._replace(operand_idx=index)

    def with_attr(self, name: str) -> OpLocation:
        return self._replace(attr_name=name)

    def __str__(self) -> str:
        operand = "" if self.operand_idx is None else f" operand[{self.operand_idx}]"
        attribute = "" if self.attr_name is None else f" attr `{self.attr_name}`"
        return f"op `{self.op_id}`{operand}{attribute}"


class Diagnostic(
    namedtuple("Diagnostic", "severity code message location suggested_fix doc_url", defaults=(None, None, None))
):
    """One failure, warning or note as a record, for people (`str`) and machines (`to_dict`).

    `code` is a `DiagCode`, or the text of a code that another package keeps.

    >>> print(Diagnostic.warning("W-OP-DEPRECATED", "math.plus is old").with_fix("use math.add"))
    warning[W-OP-DEPRECATED]: math.plus is old
      = help: use math.add
    """

    __slots__ = ()

    @classmethod
    def error(cls, code: str, message: str) -> Self:
        return cls(Severity.ERROR, code, message)

    @classmethod
    def warning(cls, code: str, message: str) -> Self:
        return cls(Severity.WARNING, code, message)

    @classmethod
    def note(cls, code: str, message: str) -> Self:
        return cls(Severity.NOTE, code, message)

    def with_location(self, location: OpLocation) -> Self:
        return self._replace(location=location)

    def with_fix(self, fix: str) -> Self:
        return self._replace(suggested_fix=fix)

    def with_doc_url(self, url: str) -> Self:
        return self._replace(doc_url=url)

    def render_human(self) -> str:
        lines = [f"{self.severity.label}[{self.code}]: {self.message}"]
        if self.location is not None:
            lines.append(f"  --> {self.location}")
        if self.suggested_fix is not None:
            lines.append(f"  = help: {self.suggested_fix}")
        if self.doc_url is not None:
            lines.append(f"  = note: {self.doc_url}")
        return "\n".join(lines)

    __str__ = render_human

    def to_dict(self) -> dict[str, Any]:
        """What is known, ready for JSON."""
        found = {name: value for name, value in self._asdict().items() if value is not None}
        found |= {"severity": self.severity.value, "code": str(self.code)}
        if self.location is not None:
            found["location"] = {k: v for k, v in self.location._asdict().items() if v is not None}
        return found

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Self:
        """The record that `to_dict` was asked for."""
        try:
            location = OpLocation(**found["location"]) if "location" in found else None
            return cls(**{**found, "severity": Severity(found["severity"]), "location": location})
        except (TypeError, KeyError, ValueError) as e:
            raise ArgumentValueError(
                f"this is not a diagnostic: {e}", fix="pass what Diagnostic.to_dict() or to_json() gave"
            ) from e

    def to_json(self) -> str:
        import json  # only writing JSON pays for it

        return json.dumps(self.to_dict(), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        import json

        try:
            found = json.loads(text)
        except ValueError as e:
            raise ArgumentValueError(f"this is not JSON: {e}", fix="pass what Diagnostic.to_json() gave") from e
        return cls.from_dict(found)


# ---- codes ----------------------------------------------------------------------------------------------------------

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """The catalogue, read when its first code is named: making it takes longer than all else here."""
        if name not in ("DiagCode", "RESERVED"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from . import codes

        found = globals()[name] = getattr(codes, name)
        return found
