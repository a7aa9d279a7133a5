"""Kernel form -> text of languages with braces."""
