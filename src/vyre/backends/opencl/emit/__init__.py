"""Kernel form -> OpenCL C."""
