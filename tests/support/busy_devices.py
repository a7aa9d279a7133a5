"""Work that still runs when a test looks at it, however slow the machine is just now."""


def under_way(start, amounts):
    """What `start(amount)` gives, handle first, for the least amount of work that has not ended by then."""
    for amount in amounts:
        handle, *rest = begun = start(amount)
        ended = handle.is_ready if hasattr(handle, "is_ready") else handle.done
        if not ended():
            return begun
    raise AssertionError(f"even {amount} had ended when it was looked at: {handle, *rest}")
