"""What is a program compiled to: where are its parameters, whose layout has it, and how near are its floats?"""

from __future__ import annotations

from collections.abc import Sequence

from .decision import Decision

INLINE, BUFFER = "inline", "in a buffer"
OWN, SHARED = "own", "shared"
EXACT, WITHIN = "exact", "within ulp_budget"


def choose_parameters(nbytes: int, inline_bytes: int) -> Decision:
    """Where the numbers of a launch are, of which a device takes up to `inline_bytes` with the launch itself."""
    numbers = {"bytes": nbytes, "inline_bytes": inline_bytes}
    if not inline_bytes:
        return Decision("parameters", BUFFER, "the device takes none with a launch", numbers)
    if nbytes > inline_bytes:
        reason = f"they have {nbytes} bytes, and the device takes {inline_bytes} with a launch"
        return Decision("parameters", BUFFER, reason, numbers)
    return Decision("parameters", INLINE, f"the device takes their {nbytes} bytes with the launch", numbers)


def choose_layout(slots: int, *, known: bool) -> Decision:
    """Whether a binding table of so many slots is one that other code of the device has, and is `known`."""
    if known:
        return Decision("layout", SHARED, f"other code binds the same {slots} slots", {"slots": slots})
    return Decision("layout", OWN, f"no other code binds these {slots} slots yet", {"slots": slots})


def choose_floats(
    budget: int | None, *, native: Sequence[str] = (), has_functions: bool = True, float64: bool = False
) -> Decision:
    """How near functions such as `sin` are. `native`: those of the device itself that are within the budget.

    `has_functions`: the program uses some. One that computes with f64 is exact: a device's functions flush or not as
    its compiler is told for all of it.
    """
    if not budget:
        return Decision("floats", EXACT, "no ulp_budget is set")
    numbers = {"ulp_budget": budget}
    if not has_functions:
        return Decision("floats", EXACT, "the program has no function that a budget is for", numbers)
    if float64:
        return Decision("floats", EXACT, "the program computes with f64, which is exact within any budget", numbers)
    if not native:
        return Decision("floats", EXACT, "the backend has no function of its own within the budget", numbers)
    reason = f"each operation within {budget} ulp: the device's own {', '.join(native)} may be used"
    return Decision("floats", WITHIN, reason, numbers)
