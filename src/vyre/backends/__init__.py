"""Backends, one folder each. A program reaches one by its registered id, not by an import."""
