"""Compute programs that give the same bytes on every backend."""
