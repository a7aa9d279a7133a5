"""What the kernel language leaves out, and what to write instead."""

from __future__ import annotations

REFUSED_STATEMENTS: dict[str, tuple[str, str]] = {
    "Import": ("imports are not part of kernels", "import above the kernel"),
    "ImportFrom": ("imports are not part of kernels", "import above the kernel"),
    "FunctionDef": ("functions do not nest in kernels", "define it above the kernel and decorate it with @vyre.device"),
    "AsyncFunctionDef": ("functions do not nest in kernels", "define it above the kernel with @vyre.device"),
    "ClassDef": ("classes are not part of kernels", "use numbers and buffers"),
    "Try": ("exceptions are not part of kernels", "test the condition with if"),
    "TryStar": ("exceptions are not part of kernels", "test the condition with if"),
    "Raise": ("exceptions are not part of kernels", 'stop the dispatch with trap("what went wrong")'),
    "Assert": ("assertions are not part of kernels", 'write if not condition: trap("what went wrong")'),
    "With": ("with is not part of kernels", "write the statements one after the other"),
    "AsyncWith": ("with is not part of kernels", "write the statements one after the other"),
    "AsyncFor": ("async is not part of kernels", "write a plain for"),
    "Global": ("kernels change no Python names", "write the result to a buffer"),
    "Nonlocal": ("kernels change no Python names", "write the result to a buffer"),
    "Delete": ("names cannot be deleted in kernels", "leave the line out; a name ends with its block"),
    "Match": ("match is not part of kernels", "use if and elif"),
    "TypeAlias": ("type aliases are not part of kernels", "define it above the kernel"),
}
REFUSED_EXPRESSIONS: dict[str, tuple[str, str]] = {
    "List": ("lists are not part of kernels", "use shared(), a parameter, or one name per value"),
    "Tuple": ("a tuple is not a value of kernels", "use one name per value"),
    "Set": ("sets are not part of kernels", "use one name per value"),
    "Dict": ("dictionaries are not part of kernels", "use one name per value"),
    "ListComp": ("comprehensions are not part of kernels", "write a for loop"),
    "SetComp": ("comprehensions are not part of kernels", "write a for loop"),
    "DictComp": ("comprehensions are not part of kernels", "write a for loop"),
    "GeneratorExp": ("comprehensions are not part of kernels", "write a for loop"),
    "Lambda": ("lambda is not part of kernels", "define a function above the kernel with @vyre.device"),
    "NamedExpr": ("`:=` is not part of kernels", "assign on a line of its own"),
    "Yield": ("yield is not part of kernels", "store results to a buffer"),
    "YieldFrom": ("yield is not part of kernels", "store results to a buffer"),
    "Await": ("await is not part of kernels", "await the kernel's result outside"),
    "JoinedStr": ("strings are not values of kernels", "use numbers"),
    "TemplateStr": ("strings are not values of kernels", "use numbers"),
    "Starred": ("`*` is not part of kernels", "write the values one by one"),
    "Slice": ("slices are not part of kernels", "index one element"),
}
BUILTIN_FIXES: dict[object, str] = {
    print: "store what you want to see to a buffer, or stop with trap()",
    int: "convert with i32(x) or u32(x)",
    float: "convert with f32(x)",
    str: "use numbers",
    round: "call vyre.round, which rounds half away from zero",
    pow: "write x ** y of f32, or multiply: x * x",
    sum: "add in a for loop",
    range: "use it in a for statement",
    divmod: "write x // y and x % y",
    enumerate: "write for i in range(len(x))",
    zip: "write for i in range(len(x))",
    any: "use or",
    all: "use and",
}
FOREIGN_TYPES: dict[str, str] = {
    "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64", "uint8": "u8", "uint16": "u16", "uint32": "u32",
    "uint64": "u64", "float16": "f16", "float32": "f32", "float64": "f64", "bool_": "bool_", "int": "i32",
    "float": "f32",
}  # fmt: skip
"""What others call our types."""
FOREIGN_FUNCTIONS: dict[str, str] = {
    "isnan": "is_nan", "isinf": "is_inf", "isfinite": "is_finite", "where": "select", "rint": "round", "fabs": "abs",
    "absolute": "abs", "maximum": "max", "minimum": "min", "fmax": "max", "fmin": "min", "arcsin": "asin",
    "arccos": "acos", "arctan": "atan", "arctan2": "atan2", "arcsinh": "asinh", "arccosh": "acosh", "arctanh": "atanh",
    "power": "pow", "frexp": "frexp_mantissa", "bitwise_count": "popcount",
}  # fmt: skip
"""What others call our functions."""
