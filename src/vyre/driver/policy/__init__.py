"""Which way is cheapest? Pure: facts in, a decision out, with its reason and numbers.

These modules import nothing of the driver, so that every room, the runtime and the backends may ask them.
"""
