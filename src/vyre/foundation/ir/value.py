"""Frozen values: structural equality, a hash paid once at construction, equality and printing without recursion.

The IR has some fifty value classes whose depth is user data. `ValueType` turns annotations into slots and an
``__init__`` the way a frozen dataclass does, at a tenth of the import cost, and records which fields hold expressions
and which hold statement lists, so that visitors need no code per class.
"""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn, TypeVar, dataclass_transform

from ...errors import IRTypeError, VyreError, shown

T = TypeVar("T", bound="Value")
_REQUIRED: Any = object()


class _Field:
    __slots__ = ("compare", "default", "kw_only")

    def __init__(self, default: Any, kw_only: bool, compare: bool) -> None:
        self.default, self.kw_only, self.compare = default, kw_only, compare


def field(*, default: Any = _REQUIRED, init: bool = True, kw_only: bool = False, compare: bool = True) -> Any:
    """A field that is keyword-only, that equality and hash do not see, or (`init=False`) that is only a slot."""
    return _Field(default, kw_only, compare)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class ValueType(type):
    """Builds a frozen slotted class from its annotations."""

    def __new__(mcls, name: str, bases: tuple[type, ...], ns: dict[str, Any]) -> ValueType:
        annotations: dict[str, str] = ns.get("__annotations__", {})
        specs: dict[str, _Field] = {}
        kinds: dict[str, str] = {}
        for base in bases:
            specs.update(getattr(base, "_specs", {}))
            kinds.update(getattr(base, "_kinds", {}))
        own = [n for n, a in annotations.items() if not n.startswith("_") and not a.startswith("ClassVar")]
        for n in own:
            given = ns.pop(n, _REQUIRED)
            specs[n] = given if isinstance(given, _Field) else _Field(given, False, True)
            kinds[n] = annotations[n]
        private = [n for n, a in annotations.items() if n.startswith("_") and not a.startswith("ClassVar")]
        for n in private:
            ns.pop(n, None)
        ns["__slots__"] = (*own, *private)
        order = [n for n, s in specs.items() if not s.kw_only] + [n for n, s in specs.items() if s.kw_only]
        ns["_specs"], ns["_kinds"] = specs, kinds
        ns["fields"] = tuple(order)
        ns["compared"] = tuple(n for n in order if specs[n].compare)
        ns["expr_fields"] = tuple(n for n in order if kinds[n] in ("Expr", "Expr | None", "tuple[Expr, ...]"))
        ns["body_fields"] = tuple(n for n in order if kinds[n] == "tuple[Node, ...]")
        ns["__match_args__"] = tuple(n for n in order if not specs[n].kw_only)
        settles = "_settle" in ns or any(hasattr(b, "_settle") for b in bases)
        ns["__init__"] = _make_init(name, order, specs, kinds, settles)
        return super().__new__(mcls, name, bases, ns)


def _make_init(name: str, order: list[str], specs: dict[str, _Field], kinds: dict[str, str], settle: bool) -> Any:
    """One `exec` per class: straight-line code, because a program is built node by node."""
    scope: dict[str, Any] = {"_set": object.__setattr__, "_refuse": _refuse}
    params, lines, starred = ["self"], [], False
    for n in order:
        s = specs[n]
        if s.kw_only and not starred:
            params.append("*")
            starred = True
        if s.default is _REQUIRED:
            params.append(n)
        else:
            scope[f"_d_{n}"] = s.default
            params.append(f"{n}=_d_{n}")
        lines.append(f"_set(self, {n!r}, {f'tuple({n})' if kinds[n].endswith('...]') else n})")
    if settle:
        lines.append("self._settle()")
    compared = "".join(f"self.{n}, " for n in order if specs[n].compare)
    lines.append(f"_set(self, '_hash', hash(({name!r}, {compared})))")
    lines = [f"def __init__({', '.join(params)}):", "  try:", *(f"    {line}" for line in lines)]
    exec("\n".join([*lines, "  except TypeError as e:", "    _refuse(self, e)"]), scope)
    return scope["__init__"]


def _refuse(value: Value, error: TypeError) -> NoReturn:
    """A field got a list, say, where it needs a value that never changes."""
    if isinstance(error, VyreError):
        raise error
    raise IRTypeError(
        f"a field of {type(value).__name__} got a value of another kind: {shown(error, str)}",
        fix=f"pass what the fields of {type(value).__name__} are declared as",
    ) from error


class Value(metaclass=ValueType):
    """Base of every frozen value. A subclass may define `_settle` to normalise fields before they are hashed."""

    fields: ClassVar[tuple[str, ...]]
    compared: ClassVar[tuple[str, ...]]
    expr_fields: ClassVar[tuple[str, ...]]
    body_fields: ClassVar[tuple[str, ...]]
    _specs: ClassVar[dict[str, _Field]]
    _kinds: ClassVar[dict[str, str]]
    _hash: int = field(init=False)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen; build another with .replace({name}=...)")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen")

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Value) or type(self) is not type(other):
            return NotImplemented
        return self._hash == other._hash and _equal(self, other)

    def __repr__(self) -> str:
        return _render(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), {n: getattr(self, n) for n in self.fields})

    def replace(self: T, **changes: Any) -> T:
        """The same value with some fields changed."""
        return type(self)(**({n: getattr(self, n) for n in self.fields} | changes))


def _rebuild(cls: type[T], values: dict[str, Any]) -> T:
    return cls(**values)


def _equal(a: object, b: object) -> bool:
    stack, seen = [(a, b)], set()
    while stack:
        a, b = stack.pop()
        if a is b or (id(a), id(b)) in seen:
            continue
        if type(a) is not type(b):
            return False
        if isinstance(a, Value):
            assert isinstance(b, Value)
            if a._hash != b._hash:
                return False
            seen.add((id(a), id(b)))
            stack.extend((getattr(a, n), getattr(b, n)) for n in a.compared)
        elif isinstance(a, tuple):
            assert isinstance(b, tuple)
            if len(a) != len(b):
                return False
            stack.extend(zip(a, b, strict=True))
        elif a != b:
            return False
    return True


def _render(root: object) -> str:
    out: list[str] = []
    stack: list[Any] = [(root,)]  # a 1-tuple is a value to print, a str is text
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            out.append(item)
            continue
        (value,) = item
        parts: list[Any] = []
        if isinstance(value, Value) and type(value).__repr__ is Value.__repr__:
            parts.append(f"{type(value).__name__}(")
            shown = [
                n for n in value.fields if value._specs[n].compare and getattr(value, n) != value._specs[n].default
            ]
            for k, n in enumerate(shown):
                parts.append(", " if k else "")
                positional = value.fields[k] == n and not value._specs[n].kw_only
                parts.append("" if positional else f"{n}=")
                parts.append((getattr(value, n),))
            parts.append(")")
        elif isinstance(value, tuple):
            parts.append("(")
            for k, v in enumerate(value):
                parts.append(", " if k else "")
                parts.append((v,))
            parts.append(",)" if len(value) == 1 else ")")
        else:
            parts.append(repr(value))
        stack.extend(reversed(parts))
    return "".join(out)
