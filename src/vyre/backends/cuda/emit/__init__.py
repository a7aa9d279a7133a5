"""Kernel form -> CUDA C++."""
