"""How long something took, for people."""


def duration(ns: float) -> str:
    """
    >>> duration(1_234_567), duration(950), duration(2_500_000_000)
    ('1.23 ms', '0.95 us', '2.5 s')
    """
    for unit, size in (("s", 1e9), ("ms", 1e6)):
        if ns >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns / 1e3:.3g} us"
