"""Conformance: programs and inputs that hold every engine to one meaning."""
