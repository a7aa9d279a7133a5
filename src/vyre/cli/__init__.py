"""The command line: `vyre`, or `python -m vyre`."""

from __future__ import annotations

__all__ = ["main"]


def main() -> int:
    """Run the command in `sys.argv`; the exit code."""
    import gc

    gc.set_threshold(100_000)  # nearly all that a start makes stays: looking through it is 10 ms of 140
    try:
        from .app import main as run
    except KeyboardInterrupt:  # imports take a moment, and a traceback of them is of no use
        return 130
    code = run()
    gc.freeze()  # nor need it be looked through at the exit: 18 ms
    return code
