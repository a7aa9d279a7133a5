"""Backends, one folder each. Nobody imports one: it is reached by its registered id."""
