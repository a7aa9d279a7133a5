"""The catalogue of diagnostic codes, which users know as `vyre.errors.DiagCode`."""

from __future__ import annotations

from enum import StrEnum

TYPE_CHECKING = False  # as in the errors
if TYPE_CHECKING:
    from typing import Self


class DiagCode(StrEnum):
    """The catalogue of diagnostic codes: `V###` validation, `E` error, `B` backend capability, `C` conformance,
    `P` runtime pipeline, `W` warning, `N` note. Append only: the code is the key, the prose may change.
    """

    __module__ = "vyre.errors"

    severity: str
    description: str
    fix: str

    def __new__(cls, code: str, description: str = "", fix: str = "", severity: str = "") -> Self:
        self = str.__new__(cls, code)
        self._value_ = code
        self.severity = severity or {"W": "warning", "N": "note"}.get(code[0], "error")
        self.description = description
        self.fix = fix
        return self

    # Validation; V200 and up are rules of our own
    V008 = "V008", "a let reuses a name of an outer scope", "rename the inner variable"
    V009 = "V009", "atomic on a buffer that cannot be read and written", "declare the buffer read-write"
    V010 = "V010", "barrier in divergent control flow", "move the barrier out of the divergent branch or loop"
    V011 = "V011", "assignment to a loop variable", "copy the loop variable into a local and change the copy"
    V012 = "V012", "no cast exists between these two types", "cast through u32 or i32"
    V013 = "V013", "access to a bytes buffer that did not opt in", "set bytes_extraction, or declare the buffer u8"
    V014 = "V014", "atomic on an element type without atomics", "declare the buffer u32 or i32"
    V015 = "V015", "loop bound has the wrong type", "cast the bound to u32"
    V016 = "V016", "call of an unknown operation", "register the operation, or correct its id"
    V017 = "V017", "calls are nested too deeply", "flatten the chain of calls"
    V018 = "V018", "statements are nested too deeply", "merge nested conditions, or split the program"
    V019 = "V019", "the program has too many nodes", "split it into several programs"
    V020 = "V020", "call with the wrong number of arguments", "pass the arguments that the operation's signature lists"
    V021 = "V021", "a signature names an unknown type", "spell the type as the text form does, such as u32 or f32"
    V022 = "V022", "second is_output buffer, or call argument of the wrong type", "keep one output, cast the argument"
    V023 = "V023", "cast to bytes", "cast to u8 and store the elements"
    V025 = "V025", "the backend has no atomics on workgroup memory", "use a storage buffer, or another backend"
    V027 = "V027", "atomic index is not u32", "cast the index to u32"
    V028 = "V028", "fma operands are not all f32 or all f64", "cast every operand of fma to f32"
    V029 = "V029", "the arms of a select differ in type", "cast one arm to the type of the other"
    V030 = "V030", "opaque expression is malformed or unregistered", "register its kind, or remove the expression"
    V031 = "V031", "opaque statement is malformed or unregistered", "register its kind, or remove the statement"
    V032 = "V032", "second let of one name in the same scope", "assign to the variable, or choose another name"
    V033 = "V033", "expression is nested too deeply", "bind parts of it to names"
    V034 = "V034", "the backend has no cast to this type", "cast to a type in the backend's capability report"
    V035 = "V035", "narrowing cast may drop bits", "mask the value first if the dropped bits do not matter", "warning"
    V036 = "V036", "constant index lies outside the buffer", "use an index below the buffer's count"
    V041 = "V041", "subgroup operation that no backend vouches for", "choose a backend with subgroups, or use shared()"
    V042 = "V042", "memory ordering is not legal for an atomic", "use relaxed, acquire, release, acq_rel or seq_cst"
    V043 = "V043", "memory ordering is not legal for a barrier", "use acquire, release, acq_rel, seq_cst or grid_sync"
    V044 = "V044", "division by a constant zero", "divide by a value that is not zero"
    V045 = "V045", "assignment changes the type of a variable", "cast the value to that type, or use a new name"
    V046 = "V046", "collective operation that cannot run here", "run on a distributed backend, with matching buffers"
    V047 = "V047", "bitwise subgroup reduction of f32", "bitcast the value to u32 first"
    V051 = "V051", "buffer reference used as a value", "load an element of the buffer"
    V052 = "V052", "reference to an undeclared buffer", "declare the buffer"
    V053 = "V053", "value passed where a buffer is expected", "pass a buffer reference"
    V054 = "V054", "buffer reference has another element type", "pass a buffer of the type that the signature names"
    V055 = "V055", "return after the last barrier of a synchronising loop", "guard the statements instead of returning"
    V056 = "V056", "the backend lacks an operation of the program", "choose a backend whose supported_ops() holds it"
    V057 = "V057", "atomic value has the wrong type", "cast the value to the buffer's element type"
    V058 = "V058", "expected value of a compare-exchange has the wrong type", "cast it to the buffer's element type"
    V059 = "V059", "compare-exchange without an expected value", "give the expected value"
    V060 = "V060", "expected value on an atomic that takes none", "drop the expected value, or use compare-exchange"
    V061 = "V061", "atomic on an unknown buffer", "declare the buffer"
    V063 = "V063", "store to a buffer that is not writable", "declare the buffer read-write or write-only"
    V064 = "V064", "store to an unknown buffer", "declare the buffer"
    V065 = "V065", "load from an unknown buffer", "declare the buffer"
    V066 = "V066", "use of an undeclared variable", "bind the variable with let before using it"
    V067 = "V067", "length of an unknown buffer", "declare the buffer"
    V068 = "V068", "axis is not 0, 1 or 2", "use axis 0, 1 or 2"
    V070 = "V070", "buffer is used more or less often than its linear type allows", "match the uses to the type"
    V083 = "V083", "static count breaks the buffer's shape predicate", "change the count or the predicate"
    V084 = "V084", "64-bit arithmetic where the target has none", "use 32-bit values, or a backend with 64-bit integers"
    V085 = "V085", "saturating operation on a type other than u32", "cast the operands to u32"
    V086 = "V086", "absolute difference of i32", "use abs(a - b), or cast the operands to u32"
    V087 = "V087", "arithmetic on bool", "cast the operand to u32"
    V088 = "V088", "arithmetic on two different types", "cast one operand to the type of the other"
    V089 = "V089", "remainder of a value that is not an integer", "cast the operand to an integer type"
    V090 = "V090", "remainder of two different types", "cast one operand to the type of the other"
    V091 = "V091", "left operand of a bitwise operation is not an integer", "cast it to an integer, or bitcast an f32"
    V092 = "V092", "right operand of a bitwise operation is not an integer", "cast it to an integer, or bitcast an f32"
    V093 = "V093", "bitwise operation on two different types", "cast one operand to the type of the other"
    V094 = "V094", "shift operand has the wrong type", "cast the shift count to u32"
    V095 = "V095", "operand of a logical operation is neither bool nor u32", "compare the operand with zero"
    V096 = "V096", "comparison of two different types", "cast one operand to the type of the other"
    V097 = "V097", "subgroup operation written as a binary operator", "use the subgroup expression"
    V098 = "V098", "negation of i32 where the target has none", "subtract from zero"
    V099 = "V099", "negation of a type without a sign", "cast to i32 or f32 first"
    V100 = "V100", "operand of a logical not is neither bool nor u32", "compare the operand with zero"
    V101 = "V101", "operand of a bit operation is not an integer", "cast it to an integer, or bitcast an f32"
    V102 = "V102", "operand of a math function is not f32", "cast the operand to f32"
    V103 = "V103", "operand of an unpack operation is not u32", "cast or bitcast the operand to u32"
    V104 = "V104", "unknown unary operation", "use an operation of the op table"
    V105 = (
        "V105",
        "entry is not a list of regions with at least one",
        "build it with Program(...), which wraps the body",
    )
    V106 = "V106", "workgroup axis is 0", "make every workgroup axis at least 1"
    V107 = "V107", "two buffers have one name", "rename one of them"
    V108 = "V108", "two buffers have one binding slot", "give each buffer its own slot"
    V109 = "V109", "workgroup buffer has no size", "give it a count of at least 1"
    V110 = "V110", "output element is an array or a tensor", "use a scalar element type"
    V112 = "V112", "statements after return", "remove them, or move the return to the end"
    V115 = "V115", "self-exclusive region appears twice", "keep one of the two regions"
    V116 = "V116", "plain and atomic access to one buffer, unordered", "put a barrier between them", "warning"
    V117 = "V117", "async copy has an empty tag", "name the copy"
    V120 = "V120", "assignment to an undeclared name", "bind the name with let first; store to buffers by index"
    V121 = "V121", "stored value has another type than the buffer", "cast the value to the buffer's element type"
    V122 = "V122", "store index is not u32", "cast the index to u32"
    V123 = "V123", "condition is neither bool nor u32", "compare the value with zero"
    V124 = "V124", "loop start is not u32", "cast the start to u32"
    V125 = "V125", "loop end is not u32", "cast the end to u32"
    V126 = "V126", "offset of an indirect dispatch is not a multiple of 4", "align the offset to 4 bytes"
    V127 = "V127", "indirect dispatch reads an unknown buffer", "declare the buffer"
    V128 = "V128", "async wait has an empty tag", "name the copy to wait for"
    V130 = "V130", "nothing can size this output", "give it a count, an output range, or its length at dispatch"
    V200 = "V200", "load index is not u32", "cast the index to u32"
    V201 = "V201", "grid-wide barrier is not at top level", "move it out of every branch and loop"
    V202 = "V202", "local variable is live across a grid-wide barrier", "keep the value in a buffer"
    V203 = "V203", "subgroup operation in divergent control flow", "move it out of the divergent branch or loop"
    V204 = "V204", "select condition is neither bool nor u32", "compare the value with zero"
    V205 = "V205", "two writable buffers share memory", "bind disjoint memory"
    V206 = "V206", "async copy writes a buffer that is not writable", "copy into a read-write or workgroup buffer"
    V207 = "V207", "async copy of an unknown buffer, or wait without start", "declare the buffer, start before waiting"
    V208 = "V208", "workgroup memory exceeds the backend's limit", "declare smaller workgroup buffers"
    V209 = "V209", "workgroup has more invocations than the backend allows", "choose a smaller workgroup"
    V210 = "V210", "name is not an identifier", "use letters, digits and underscores, and start with no digit"
    V211 = "V211", "output range lies outside the buffer", "keep the range inside the buffer's byte length"
    V212 = "V212", "trap address is not u32", "cast the address to u32"
    V213 = "V213", "load from a write-only buffer", "declare the buffer read-write"
    V214 = "V214", "output is never written", "store to the output, or remove it", "warning"
    V215 = "V215", "value type not offered by the backend", "use another type, or a backend that offers this one"
    V216 = "V216", "atomic operator is reserved", "use an operator that programs can execute, such as add or exchange"
    V217 = "V217", "a field holds what it cannot hold", "build the program from IR values of the declared kinds"
    V218 = "V218", "subgroup operand has the wrong type", "cast the value to u32, i32 or f32 and the lane to u32"

    # Programs, wire format and lowering
    E_IR_001 = "E-IR-001", "unknown opaque extension id", "install the package that registers the extension"
    E_IR_002 = "E-IR-002", "buffer of count 0 carries a shape payload", "give the buffer a count, or drop the shape"
    E_IR_003 = "E-IR-003", "code is missing from the catalogue", "add the code to DiagCode"
    E_INLINE_CYCLE = "E-INLINE-CYCLE", "an operation inlines itself", "break the cycle between the operations"
    E_INLINE_UNKNOWN_OP = "E-INLINE-UNKNOWN-OP", "inlining met an unknown operation", "register it, or correct its id"
    E_INLINE_NON_INLINABLE = "E-INLINE-NON-INLINABLE", "operation without a body", "use a backend that runs it natively"
    E_INLINE_ARG_COUNT = "E-INLINE-ARG-COUNT", "wrong number of arguments", "pass what the signature lists"
    E_INLINE_NO_OUTPUT = "E-INLINE-NO-OUTPUT", "operation without an output", "give the operation one output"
    E_INLINE_OUTPUT_COUNT = "E-INLINE-OUTPUT-COUNT", "operation with several outputs", "give the operation one output"
    E_WIRE_VALIDATION = "E-WIRE-VALIDATION", "not a well-formed program", "encode it again, and transfer it unchanged"
    E_WIRE_VERSION = "E-WIRE-VERSION", "unsupported wire revision", "encode the program again with a supported one"
    E_WIRE_UNKNOWN_DIALECT = "E-WIRE-UNKNOWN-DIALECT", "unknown dialect", "install the package that registers it"
    E_WIRE_UNKNOWN_OP = "E-WIRE-UNKNOWN-OP", "unknown or contradictory operation id", "encode again with this version"
    E_LOWERING = "E-LOWERING", "no target code for the program", "validate the program, then read the emitted kernel"
    E_INTERP = "E-INTERP", "the reference engine stopped the program", "correct the program at the place in the context"
    E_GPU = "E-GPU", "the device reported a failure", "read the context for its limits, and retry with smaller buffers"
    E_DECODE_CONFIG = "E-DECODE-CONFIG", "decoder settings contradict each other", "correct the settings in the message"
    E_DECODE = "E-DECODE", "input could not be decoded", "pass input in the declared encoding"
    E_DECOMPRESS = "E-DECOMPRESS", "input could not be decompressed", "pass complete input in the declared format"
    E_DFA = "E-DFA", "automaton could not be built", "simplify the patterns, or raise the state limit"
    E_DATAFLOW = "E-DATAFLOW", "dataflow analysis gave no result", "simplify the graph, or raise the iteration limit"
    E_PREFIX = "E-PREFIX", "prefix structure is inconsistent", "build the prefix arrays again from the source data"
    E_CSR = "E-CSR", "sparse rows are inconsistent", "make row offsets ascend and column indices lie inside the matrix"
    E_SERIALIZATION = "E-SERIALIZATION", "value could not be serialised", "pass plain values, and encode again"
    E_RULE_EVAL = "E-RULE-EVAL", "rule could not be evaluated", "correct the rule named in the message"
    E_UNKNOWN = "E-UNKNOWN", "failure without a code of its own", "follow the fix in the message"

    # Dialect manifests
    E_TOML_PARSE = "E-TOML-PARSE", "manifest is not valid TOML", "correct the line named in the message"
    E_TOML_UNREADABLE = "E-TOML-UNREADABLE", "manifest could not be read", "make the file readable"
    E_TOML_TOO_LARGE = "E-TOML-TOO-LARGE", "manifest is too large", "split the dialect into several manifests"
    E_TOML_EMPTY_DIALECT = "E-TOML-EMPTY-DIALECT", "manifest has no dialect name", "set dialect to a name"
    E_TOML_EMPTY_VERSION = "E-TOML-EMPTY-VERSION", "manifest has no version", "set version to major.minor.patch"
    E_TOML_BAD_VERSION = "E-TOML-BAD-VERSION", "version is not major.minor.patch", "write the version as three numbers"
    E_TOML_BAD_OP_ID = "E-TOML-BAD-OP-ID", "operation id does not start with its dialect", "name it dialect.operation"
    E_TOML_BAD_CATEGORY = "E-TOML-BAD-CATEGORY", "category is not A, B or C", "set category to A, B or C"
    E_TOML_DUPLICATE_OP = "E-TOML-DUPLICATE-OP", "manifest lists an operation twice", "remove one of the two entries"
    E_TOML_OP_CONFLICT = "E-TOML-OP-CONFLICT", "operation is already registered differently", "rename the operation"
    E_TOML_MANIFEST_REJECTED = "E-TOML-MANIFEST-REJECTED", "manifest was rejected", "correct the operations reported"
    E_TOML_EMPTY_DIALECT_PATH = "E-TOML-EMPTY-DIALECT-PATH", "empty entry in the path", "remove the empty entry"
    E_TOML_DIALECT_DIR_MISSING = "E-TOML-DIALECT-DIR-MISSING", "no such directory", "create it, or leave it out"
    E_TOML_DIALECT_DIR_UNREADABLE = "E-TOML-DIALECT-DIR-UNREADABLE", "unreadable directory", "make it readable"
    E_TOML_DIALECT_DIR_ENTRY = "E-TOML-DIALECT-DIR-ENTRY", "unreadable directory entry", "make it readable"
    N_TOML_DIALECT_SHADOWED = "N-TOML-DIALECT-SHADOWED", "a newer manifest was used", "remove the older manifest"

    # Backends, conformance, runtime and deprecation
    B_CAP_001 = "B-CAP-001", "the backend lacks a class of operations", "choose a backend that offers the class"
    B_CAP_002 = "B-CAP-002", "the backend refused to open", "follow the reason that it gives, or choose another backend"
    B_CAP_003 = "B-CAP-003", "the backend lacks a feature", "choose a backend whose capability report has it"
    C_LAW_001 = "C-LAW-001", "output differs from the reference", "report both outputs to the author of the backend"
    C_DET_001 = "C-DET-001", "two runs gave different outputs", "remove the race, or report the backend to its author"
    P_URING_001 = "P-URING-001", "asynchronous I/O ring could not be set up", "raise the locked-memory limit"
    P_URING_002 = "P-URING-002", "asynchronous I/O ring refused a submission", "submit fewer requests at once"
    P_URING_003 = "P-URING-003", "asynchronous I/O request failed", "check the file and retry"
    P_URING_004 = "P-URING-004", "asynchronous I/O buffers could not be registered", "register fewer or smaller buffers"
    P_BACKEND_001 = "P-BACKEND-001", "the runtime lost its backend", "acquire the backend again and compile again"
    W_DEPREC_001 = "W-DEPREC-001", "deprecated feature", "use the replacement named in the message"
    W_OP_DEPRECATED = "W-OP-DEPRECATED", "deprecated operation", "use the replacement named in the message"


# Kept free: codes that had, or were promised, a meaning elsewhere.
RESERVED = ("V024", "V026", "V037", "V038", "V039", "V040")
