"""What the words of a launch say of its first trap, for tests that launch code themselves."""

from vyre.driver.contract.traps import require_no_trap
from vyre.errors import Trap


def sprung(kernel, words):
    """The trap that was sprung, if one was."""
    try:
        require_no_trap(kernel.traps, words, counted=not kernel.meets)
    except Trap as e:
        return e
    return None


def first_trap(kernel, words):
    """Index of the tag + 1, address and global id; None: nothing trapped."""
    found = sprung(kernel, words)
    if found is None:
        return None
    one = found.first[0]
    return kernel.traps.index(one.tag) + 1, one.address, *one.invocation
