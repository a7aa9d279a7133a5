"""What the kernel language leaves out, and what to write instead."""

from __future__ import annotations

REFUSED_STATEMENTS: dict[str, tuple[str, str]] = {
    "Import": ("imports are not part of kernels", "import above the kernel"),
    "ImportFrom": ("imports are not part of kernels", "import above the kernel"),
    "FunctionDef": ("functions do not nest in kernels", "define it above the kernel and decorate it with @vyre.device"),
    "AsyncFunctionDef": ("functions do not nest in kernels", "define it above the kernel with @vyre.device"),
    "ClassDef": ("classes are not part of kernels", "define a NamedTuple of numbers above the kernel"),
    "Try": ("exceptions are not part of kernels", "test the condition with if"),
    "TryStar": ("exceptions are not part of kernels", "test the condition with if"),
    "Raise": ("exceptions are not part of kernels", 'stop the dispatch with trap("what went wrong")'),
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
    "List": ("lists are not part of kernels", "make a local array: acc = local(f32, 8)"),
    "Tuple": ("a tuple is not a value of kernels", "use one name per value, or a NamedTuple from above the kernel"),
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
    print: "write print(...) on a line of its own",
    int: "convert with i32(x) or u32(x)",
    float: "convert with f32(x); math.inf and math.nan are numbers too",
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
    sorted: "sort before the kernel with np.sort, or swap elements in a for loop",
    reversed: "write for i in range(n - 1, -1, -1)",
    map: "write a for loop",
    filter: "write a for loop with an if",
    list: "make a local array: acc = local(f32, 8)",
    tuple: "use one name per value",
    dict: "use one name per value",
    set: "use one name per value",
    complex: "write c64(real, imag)",
    isinstance: "types are known while compiling: annotate the parameter",
    type: "types are known while compiling: annotate the parameter",
    input: "pass it as a parameter",
    open: "read the file before the kernel, and pass an array",
    hash: "mix the bits of a u32 with *, ^ and >>",
    bin: "use popcount(x), clz(x) or x >> k & 1",
}
FOREIGN_TYPES: dict[str, str] = {
    "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64", "uint8": "u8", "uint16": "u16", "uint32": "u32",
    "uint64": "u64", "float16": "f16", "float32": "f32", "float64": "f64", "bool_": "bool_", "int": "i32",
    "float": "f32",
}  # fmt: skip
"""Names of our types in other libraries."""
FOREIGN_FUNCTIONS: dict[str, str] = {
    "isnan": "is_nan", "isinf": "is_inf", "isfinite": "is_finite", "where": "select", "rint": "round", "fabs": "abs",
    "absolute": "abs", "maximum": "max", "minimum": "min", "fmax": "max", "fmin": "min", "arcsin": "asin",
    "arccos": "acos", "arctan": "atan", "arctan2": "atan2", "arcsinh": "asinh", "arccosh": "acosh", "arctanh": "atanh",
    "power": "pow", "frexp": "frexp_mantissa", "bitwise_count": "popcount",
}  # fmt: skip
"""Names of our functions in other libraries."""
_PIXEL = "declare the rank, In[f32, D2], and index x[row, column]"
_LINE = "declare it without a rank, In[f32], and use one index"
_ONE = "a kernel says what one invocation does: use gid.x for its place"
_AHEAD = "compute it before the kernel, and pass numbers or an array"
FOREIGN_FIXES: dict[str, str] = {
    "threadIdx": "use lid.x, .y or .z: the invocation in its workgroup",
    "blockIdx": "use wg.x, .y or .z: the workgroup",
    "blockDim": "name the number that stands in @vyre.kernel(workgroup=...), and use that name in both places",
    "gridDim": "pass the number of workgroups as a parameter: n: u32",
    "laneid": "call subgroup_local_id()",
    "warpsize": "call subgroup_size(), which is 32 on every machine",
    "grid": "use gid.x, and gid.y and gid.z for more axes",
    "gridsize": "pass the number of invocations as a parameter: n: u32",
    "shared.array": "write tile = shared(f32, 256) on a line of its own",
    "local.array": "write acc = local(f32, 8) on a line of its own",
    "const.array_like": "pass a table as Uniform[f32, 4], or capture a tuple of numbers",
    "atomic": "call atomic_add(buf, i, value), atomic_max, atomic_cas, ...",
    "syncthreads": "call barrier()",
    "__syncthreads": "call barrier()",
    "syncwarp": "call barrier(); the 32 of a subgroup have no barrier of their own",
    "shfl_sync": "call subgroup_shuffle(x, lane)",
    "ballot_sync": "call subgroup_ballot(condition)",
    "atomicAdd": "call atomic_add(buf, i, value)",
    "atomicMax": "call atomic_max(buf, i, value)",
    "atomicMin": "call atomic_min(buf, i, value)",
    "atomicCAS": "call atomic_cas(buf, i, expected, value)",
    "printf": "call print(\"x =\", x), which reference and cpu show",
    "get_global_id": "use gid.x, gid.y or gid.z",
    "get_local_id": "use lid.x, lid.y or lid.z",
    "get_group_id": "use wg.x, wg.y or wg.z",
    "get_global_size": "pass the number of invocations as a parameter: n: u32",
    "get_local_size": "name the number that stands in @vyre.kernel(workgroup=...), and use that name in both places",
    "tl.load": "read one element: x[i]; outside of x it is 0, so no mask is needed",
    "tl.store": "write one element: x[i] = value; outside of x nothing is written, so no mask is needed",
    "tl.program_id": "use wg.x for the workgroup, or gid.x for the invocation",
    "tl.num_programs": "pass the number of workgroups as a parameter: n: u32",
    "tl.arange": _ONE,
    "tl.zeros": "write acc = local(f32, 8), which begins as zero",
    "tl.full": "write acc = local(f32, 8), and store to it in a for loop",
    "tl.sum": "add over the workgroup with shared() and barrier(), or over 32 with subgroup_add(x)",
    "tl.max": "call max(a, b) for two, subgroup_max(x) for 32",
    "tl.dot": "write the loop over k: total += a[i * n + k] * b[k * m + j]",
    "tl.constexpr": "write *, N: const = 8 as a parameter",
    "tl.cdiv": "write (n + m - 1) // m",
    "tl.atomic_add": "call vyre.atomic_add(buf, i, value)",
    "gamma": _AHEAD, "lgamma": _AHEAD, "comb": _AHEAD, "perm": _AHEAD, "factorial": _AHEAD,
    "gcd": "write the while loop",
    "pow": "write x ** y of f32, or multiply: x * x",
    "prod": "multiply in a for loop",
    "mean": "add in a for loop, and divide by f32(len(x))",
    "cumsum": "add in a for loop, or scan with shared() and barrier()",
    "argmax": "compare in a for loop, and keep the index", "argmin": "compare in a for loop, and keep the index",
    "dot": "call vyre.dot(a, b) of two vec3, or add the products in a for loop",
    "matmul": "add the products in a for loop",
    "clip": "write max(low, min(x, high))", "clamp": "write max(low, min(x, high))",
    "zeros": "write acc = local(f32, 8), which begins as zero, or declare an Out parameter",
    "ones": "write acc = local(f32, 8), and store 1 to it in a for loop",
    "empty": "write acc = local(f32, 8), or declare an Out parameter",
    "zeros_like": "declare an Out parameter, which begins as zero",
    "arange": _ONE, "linspace": _ONE, "meshgrid": "use gid.x and gid.y", "ndindex": "use gid.x and gid.y",
    "array": "write acc = local(f32, 8), capture a tuple of numbers, or pass a parameter",
    "sort": "sort before the kernel with np.sort, or swap elements in a for loop",
    "random": "pass random numbers as In[f32], or mix the bits of u32(gid.x) with *, ^ and >>",
    "square": "write x * x", "divmod": "write x // y and x % y",
    "logical_and": "write a and b", "logical_or": "write a or b", "logical_not": "write not a",
    "bitwise_and": "write a & b", "bitwise_or": "write a | b", "bitwise_xor": "write a ^ b",
    "left_shift": "write x << n", "right_shift": "write x >> n", "floor_divide": "write x // y",
    "isclose": "write abs(x - y) <= tolerance", "allclose": "compare in a for loop",
    "add": "write a + b", "subtract": "write a - b", "multiply": "write a * b", "divide": "write a / b",
    "prange": "write range(n); invocations run side by side already: one for each gid.x",
    "time": "measure around the call; a kernel sees no clock",
    "sleep": "leave it out; a kernel sees no clock",
}  # fmt: skip
"""Features of other libraries that kernels lack, by the name that people write, and what to write instead."""
BUFFER_FIXES: dict[str, str] = {
    "shape": "declare the rank, In[f32, D2], for x.shape[0], or use len(x)",
    "ndim": "declare the rank: In[f32, D2]",
    "T": _PIXEL, "reshape": _PIXEL, "transpose": _PIXEL, "ravel": _LINE, "flatten": _LINE,
    "sum": "add in a for loop, or with atomic_add(total, 0, x[i])",
    "mean": "add in a for loop, and divide by f32(len(x))",
    "max": "compare in a for loop, or with atomic_max(best, 0, x[i])",
    "min": "compare in a for loop, or with atomic_min(best, 0, x[i])",
    "dtype": "it is the type that the parameter declares", "astype": "convert one element: f32(x[i])",
    "copy": "copy one element: out[i] = x[i]", "fill": "store one element: x[i] = value",
    "add": "call atomic_add(x, i, value), or store x[i] = x[i] + value",
    "append": "buffers have one length: store to x[atomic_add(count, 0, 1)]",
    "sort": "sort before the kernel with np.sort, or swap elements in a for loop",
    "item": "index one element: x[0]", "tolist": "index one element: x[i]",
}  # fmt: skip
"""Features of arrays that buffers lack."""


def foreign_fix(dotted: str) -> str | None:
    """What to write instead of a name of another library: `cuda.threadIdx.x`, `np.mean`; None for an unknown one."""
    parts = dotted.split(".")
    for size in range(len(parts), 0, -1):  # shared.array tells more than array
        for start in range(len(parts) - size + 1):
            found = FOREIGN_FIXES.get(".".join(parts[start : start + size]))
            if found is not None:
                return found
    return None
