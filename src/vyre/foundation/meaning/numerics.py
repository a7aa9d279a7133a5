"""Which results are the defined ones? One number for all of them."""

NUMERICS_VERSION = 1
"""Changes when any defined result does: of an operator, a conversion, a function, an atomic or a subgroup operation,
for any operands. Equal numbers mean equal bytes. It is part of every key: code with other results is never used."""
