"""The functions of f64, by the methods of those of f32: exact steps of f64 and of 64-bit integers, `fma` among them."""

from __future__ import annotations

from ....lazy import lazily

__all__ = ["FUNCTIONS"]
__getattr__ = lazily(__name__, {".table": "FUNCTIONS"})
