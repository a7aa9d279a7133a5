"""Kernel form -> WGSL."""
