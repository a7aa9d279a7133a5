"""The error tree: stable numbers, a Fix on every text, and values that survive a process border."""

import copy
import pickle
import re
import subprocess
import sys
import traceback

import pytest

from vyre import errors
from vyre.errors import (
    RESERVED,
    BackendError,
    DeadlineExceeded,
    DeviceLost,
    DeviceOutOfMemory,
    DiagCode,
    DispatchFailed,
    ErrorCode,
    InvalidProgram,
    KernelError,
    Trap,
    UnsupportedFeature,
    VyreError,
    WireError,
    WireUnknownOp,
    WireVersionError,
)

STABLE_IDS = {
    "DeviceOutOfMemory": 1001,
    "UnsupportedFeature": 1002,
    "PoisonedLock": 1003,
    "KernelCompileFailed": 1004,
    "DispatchFailed": 1005,
    "InvalidProgram": 1006,
    "CooperativeResidencyExceeded": 1007,
    "DeviceLost": 1008,
    "DeadlineExceeded": 1009,
    "Unknown": 1999,
}
PYTHON_WORDS = {
    "DeviceOutOfMemory": MemoryError,
    "DeadlineExceeded": TimeoutError,
    "InvalidProgram": ValueError,
    "WireError": ValueError,
    "TextError": ValueError,
    "ArgumentTypeError": TypeError,
    "ArgumentValueError": ValueError,
    "IRTypeError": TypeError,
    "IRValueError": ValueError,
    "KernelError": SyntaxError,
}
CLASSES = sorted(
    (c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, VyreError)), key=lambda c: c.__name__
)
GENERIC_FIX = "Fix: include backend-specific recovery guidance."

every_class = pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)


def sample(cls):
    """One error of `cls`, with context wherever the class takes any."""
    if cls is KernelError:
        where = {"filename": "k.py", "lineno": 7, "offset": 5, "text": "x = [1]\n", "end_offset": 8}
        return KernelError("lists have no meaning here", fix="use shared()", **where)
    extra = {"issues": ("V010", "V066")} if cls is InvalidProgram else {}
    return cls("it did not work", fix="try the other way", asked=[9], limit=8, **extra)


# -- numbers ----------------------------------------------------------------------------------------------------------


def test_stable_ids_never_change():  # A-ERR-1, A-ERR-2
    assert {code.name: code.value for code in ErrorCode} == STABLE_IDS
    assert all(code.stable_id == code.value for code in ErrorCode)
    assert len({code.stable_id for code in ErrorCode}) == len(ErrorCode.__members__)


def test_ids_increase_in_order_of_declaration():  # A-ERR-3
    ids = list(ErrorCode)
    assert ids == sorted(ids)


def test_the_tree_in_the_docstring_names_every_class_with_its_number():  # A-ERR-4
    for cls in CLASSES:
        assert re.search(rf"\b{cls.__name__}\b", errors.__doc__), cls
        if "code" in vars(cls):
            assert re.search(rf"\b{cls.__name__}\b.* {cls.code}\b", errors.__doc__), cls


@every_class
def test_each_class_has_the_code_of_its_name_or_of_its_nearest_named_parent(cls):  # A-ERR-8
    named = next((c.__name__ for c in cls.__mro__ if c.__name__ in STABLE_IDS), "Unknown")
    assert sample(cls).code == STABLE_IDS[named]
    assert isinstance(cls.code, ErrorCode)


def test_only_a_full_device_is_worth_a_plain_retry():
    assert [cls for cls in CLASSES if cls.retryable] == [DeviceOutOfMemory]


@every_class
def test_diagnostic_codes_are_catalogued(cls):
    assert cls.diagnostic_code in DiagCode.__members__.values()


def test_diagnostic_codes_that_others_rely_on():
    assert VyreError.diagnostic_code == "E-UNKNOWN"
    assert WireError.diagnostic_code == "E-WIRE-VALIDATION"
    assert WireVersionError.diagnostic_code == "E-WIRE-VERSION"
    assert WireUnknownOp.diagnostic_code == "E-WIRE-UNKNOWN-OP"
    assert {c.diagnostic_code for c in CLASSES if issubclass(c, DispatchFailed) and c is not DispatchFailed} == {
        "E-INTERP"
    }


# -- text -------------------------------------------------------------------------------------------------------------


@every_class
def test_every_text_ends_in_its_fix(cls):  # A-ERR-5
    error = sample(cls)
    assert str(error).endswith(f"Fix: {error.fix}")
    assert error.message in str(error)


@pytest.mark.parametrize(
    "error, text",
    [
        (VyreError("it broke", fix="mend it"), "it broke. Fix: mend it"),
        (VyreError("it broke.", fix="mend it"), "it broke. Fix: mend it"),
        (VyreError("it broke", fix="Fix: mend it "), "it broke. Fix: mend it"),
        (VyreError("it broke", fix="mend it", b="x", a=1), "it broke [a=1] [b='x']. Fix: mend it"),
        (VyreError("it broke", fix="mend it", message="inner"), "it broke [message='inner']. Fix: mend it"),
        (
            Trap("the program trapped", fix="store inside the buffer", address=4, tag="oob"),
            "the program trapped [address=4] [tag='oob']. Fix: store inside the buffer",
        ),
    ],
)
def test_text_is_message_sorted_context_and_fix(error, text):
    assert str(error) == text


@every_class
@pytest.mark.parametrize("fix", ["", "  ", "Fix: ", None])
def test_a_blank_fix_is_refused(cls, fix):
    where = {"filename": "k.py", "lineno": 1, "offset": 1, "text": "x"} if cls is KernelError else {}
    with pytest.raises(TypeError, match=f"{cls.__name__} needs a fix: one imperative sentence"):
        cls("it broke", fix=fix, **where)


def test_a_missing_fix_is_refused():
    with pytest.raises(TypeError, match="fix"):
        VyreError("it broke")


def test_new_appends_the_generic_hint():  # A-ERR-6
    assert str(BackendError.new("x")) == f"x. {GENERIC_FIX}"
    assert str(BackendError.new("x.")) == f"x. {GENERIC_FIX}"


@pytest.mark.parametrize(
    "text", ["x. Fix: y", "x\nFix: y", "Fix: y", "x Fix: ", " x.  Fix: y. ", "a. Fix: b. Fix: c", "xFix: y"]
)
def test_new_keeps_words_that_bring_their_own_fix(text):  # A-ERR-7
    error = BackendError.new(text)
    assert str(error) == error.into_message() == text
    assert str(pickle.loads(pickle.dumps(error))) == text
    assert error.fix
    assert error.code == ErrorCode.Unknown


def test_new_splits_message_and_fix():
    assert BackendError.new("x. Fix: y") == BackendError("x", fix="y")


def test_unsupported_extension_names_the_extension_and_the_backend():  # A-ERR-9
    error = BackendError.unsupported_extension("reference", "expression", "acme.warp")
    assert type(error) is UnsupportedFeature
    assert error.code == 1002
    assert error.context == {"name": "opaque IR extension expression acme.warp", "backend": "reference"}
    assert str(error).startswith("the backend does not support an opaque IR extension [")
    assert "Fix: choose a backend" in str(error)


def test_poisoned_lock_keeps_the_cause():  # A-ERR-10
    error = BackendError.poisoned_lock(KeyError("slot"))
    assert error.code == 1003
    assert "a lock was poisoned" in str(error)
    assert "slot" in error.context["lock_error"]
    assert "Fix: report the first failure" in str(error)


# -- values -----------------------------------------------------------------------------------------------------------


@every_class
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickling_gives_an_equal_error(cls, protocol):  # A-ERR-11
    error = sample(cls)
    error.add_note("seen on the second run")
    again = pickle.loads(pickle.dumps(error, protocol))
    assert again == error
    assert type(again) is cls
    assert (str(again), again.args, again.__notes__) == (str(error), error.args, error.__notes__)


@every_class
@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_copies_are_equal_and_hash_alike(cls, duplicate):
    error = sample(cls)
    again = duplicate(error)
    assert again is not error
    assert again == error
    assert hash(again) == hash(error)
    assert str(again) == str(error)


@pytest.mark.parametrize(
    "other",
    [
        VyreError("b", fix="f", n=1),
        VyreError("a", fix="g", n=1),
        VyreError("a", fix="f", n=2),
        VyreError("a", fix="f"),
        BackendError("a", fix="f", n=1),
        "a [n=1]. Fix: f",
    ],
)
def test_type_message_fix_and_context_each_matter_for_equality(other):
    error = VyreError("a", fix="f", n=1)
    assert error == VyreError("a", fix="f", n=1)
    assert error != other


def test_findings_travel_with_an_invalid_program():
    error = InvalidProgram("two rules are broken", fix="read the findings", issues=["V010", "V066"], program="scan")
    again = pickle.loads(pickle.dumps(error))
    assert again.issues == error.issues == ("V010", "V066")
    assert again.context == {"program": "scan"}
    assert error != InvalidProgram("two rules are broken", fix="read the findings", program="scan")
    assert InvalidProgram("x", fix="y").issues == ()


@pytest.mark.parametrize("name, word", PYTHON_WORDS.items())
def test_errors_are_caught_by_the_word_that_python_has(name, word):
    cls = getattr(errors, name)
    with pytest.raises(word) as caught:
        raise sample(cls)
    assert isinstance(caught.value, VyreError)
    assert str(caught.value) == str(sample(cls))


def test_a_deadline_is_no_operating_system_error_number():
    error = DeadlineExceeded("the dispatch took too long", fix="raise timeout", limit_s=1.0)
    assert (error.errno, error.filename, error.args) == (None, None, ("the dispatch took too long",))


def test_errors_chain_and_carry_a_traceback():
    cause = OSError("ioctl")
    with pytest.raises(DeviceLost) as caught:
        raise DeviceLost("the device is gone", fix="acquire it again") from cause
    assert caught.value.__cause__ is cause
    assert caught.value.__traceback__ is not None


# -- kernel source ----------------------------------------------------------------------------------------------------


def kernel_error(text, offset, end_offset=None, lineno=12):
    return KernelError(
        "lists have no meaning here",
        fix="use shared()",
        filename="k.py",
        lineno=lineno,
        offset=offset,
        text=text,
        end_offset=end_offset,
    )


@pytest.mark.parametrize(
    "text, offset, end_offset, excerpt",
    [
        ("x = [1, 2]", 5, None, ["    x = [1, 2]", "        ^"]),
        ("x = [1, 2]\n", 5, 11, ["    x = [1, 2]", "        ^^^^^^"]),
        ("        x = [1]\n", 13, 16, ["    x = [1]", "        ^^^"]),
        ("\t\tx = [1]\n", 7, 10, ["    x = [1]", "        ^^^"]),
        ("x\t=\t[1]", 5, 8, ["    x\t=\t[1]", "     \t \t^^^"]),
        ("é = [1]", 5, 8, ["    é = [1]", "        ^^^"]),
        ("x = [1,", 5, 99, ["    x = [1,", "        ^^^"]),  # goes on in the next line
        ("x = 1", 99, None, ["    x = 1", "         ^"]),  # just after the end
        ("    x", 1, 3, ["    x", "    ^"]),  # inside the indentation
        ("x = 1", 5, 2, ["    x = 1", "        ^"]),
        ("x = 1", None, None, ["    x = 1"]),
        ("   \n", 1, None, []),
        (None, None, None, []),
    ],
)
def test_kernel_errors_point_at_the_source(text, offset, end_offset, excerpt):
    lines = ["k.py:12: lists have no meaning here", *excerpt, "Fix: use shared()"]
    assert str(kernel_error(text, offset, end_offset)).split("\n") == lines


def test_a_kernel_error_without_a_line_names_the_file():
    assert str(kernel_error(None, None, lineno=None)) == "k.py: lists have no meaning here\nFix: use shared()"


def test_a_kernel_error_is_a_complete_syntax_error():
    error = pickle.loads(pickle.dumps(kernel_error("x = [1, 2]\n", 5, 11)))
    assert (error.filename, error.lineno, error.offset, error.text) == ("k.py", 12, 5, "x = [1, 2]\n")
    assert (error.end_lineno, error.end_offset) == (12, 11)
    assert error.msg == "lists have no meaning here. Fix: use shared()"
    assert kernel_error("x", 1) != kernel_error("x", 1, lineno=13)


def test_the_traceback_of_a_kernel_error_shows_place_caret_and_fix():
    shown = "".join(traceback.format_exception_only(kernel_error("x = [1, 2]\n", 5, 11)))
    assert 'File "k.py", line 12' in shown
    assert "        ^^^^^^\n" in shown
    assert shown.endswith("KernelError: lists have no meaning here. Fix: use shared()\n")


# -- the catalogue ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", DiagCode)
def test_every_code_has_a_family_a_severity_a_description_and_a_fix(code):
    assert re.fullmatch(r"V\d{3}|[EBCPWN](-[A-Z0-9]+)+", code)
    assert code.name == code.value.replace("-", "_")
    assert code.severity in {"error", "warning", "note"}
    for prose in (code.description, code.fix):
        assert prose
        assert prose == prose.strip(" .")
    assert not code.fix.startswith("Fix")


def test_a_code_is_its_own_string():
    assert DiagCode.E_WIRE_VERSION == "E-WIRE-VERSION"
    assert f"{DiagCode.V010}" == "V010"
    assert DiagCode("V010") is DiagCode.V010
    assert pickle.loads(pickle.dumps(DiagCode.V010)) is DiagCode.V010


def test_severity_follows_the_family_except_for_three_validation_warnings():
    assert {c for c in DiagCode if c.severity == "note"} == {"N-TOML-DIALECT-SHADOWED"}
    warnings = {c.value for c in DiagCode if c.severity == "warning"}
    assert warnings == {"V035", "V116", "V214", "W-DEPREC-001", "W-OP-DEPRECATED"}


def test_reserved_retired_and_test_codes_are_not_members():
    values = {c.value for c in DiagCode}
    internal = {"V111", "V113", "V114", "V118", "V119", "V129"}
    assert RESERVED == ("V024", "V026", "V037", "V038", "V039", "V040")
    assert not values & {*RESERVED, *internal, "E-TEST", "E-X", "W-DEPRECATED"}
    assert {f"V{n}" for n in range(200, 216)} <= values


def test_importing_the_errors_imports_no_heavy_module():
    heavy = "{'typing', 'dataclasses', 'inspect', 're', 'numpy'}"
    code = f"import sys; before = set(sys.modules); import vyre.errors; print(*{heavy} & (set(sys.modules) - before))"
    shown = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == ""


def test_codes_are_read_when_one_is_named_and_keep_the_name_that_users_know():
    code = "import sys, vyre.errors; assert 'vyre.errors.codes' not in sys.modules; vyre.errors.DiagCode.V008"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert errors.DiagCode.__module__ == "vyre.errors"
    assert pickle.loads(pickle.dumps(errors.DiagCode.V008)) is errors.DiagCode.V008
    with pytest.raises(AttributeError, match="has no attribute 'DiagCodes'"):
        errors.DiagCodes  # noqa: B018
