"""Kernel form -> the assembler's text."""
