"""What type checkers see of vyre.

The compiler of kernels knows more than any type checker: these types say what may be written, so that a kernel file
passes a strict check as it stands. Element types are int and float to a checker; the counts of fixed-size buffers are
written `Out[u32, Literal[4]]` where a checker reads them, `Out[u32, 4]` where none does.
"""

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeAlias, overload

from typing_extensions import TypeVar

from .driver.contract import BackendCapability as BackendCapability
from .driver.contract import BackendPrecedence as BackendPrecedence
from .driver.contract import BackendRegistration as BackendRegistration
from .driver.contract import CompiledPipeline as CompiledPipeline
from .driver.contract import DeviceInfo as DeviceInfo
from .driver.contract import PendingDispatch as PendingDispatch
from .driver.contract import VyreBackend as VyreBackend
from .driver.contract import core_supported_ops as core_supported_ops
from .driver.contract.profile import DeviceProfile as DeviceProfile
from .driver.contract.profile import DeviceTimingQuality as DeviceTimingQuality
from .driver.contract.requirement import Check as Check
from .driver.contract.values import DispatchConfig as DispatchConfig
from .driver.contract.values import PersistentThreadMode as PersistentThreadMode
from .driver.contract.values import SpeculationMode as SpeculationMode
from .driver.contract.values import TimedDispatchResult as TimedDispatchResult
from .driver.selection.registry import Selection as Selection
from .driver.selection.registry import acquire as acquire
from .driver.selection.registry import acquire_preferred_dispatch_backend as acquire_preferred_dispatch_backend
from .driver.selection.registry import devices as devices
from .driver.selection.registry import registered_backends as registered_backends
from .driver.selection.registry import registered_backends_by_precedence as registered_backends_by_precedence
from .errors import ArgumentTypeError as ArgumentTypeError
from .errors import ArgumentValueError as ArgumentValueError
from .errors import BackendError as BackendError
from .errors import BackendUnavailable as BackendUnavailable
from .errors import CooperativeResidencyExceeded as CooperativeResidencyExceeded
from .errors import DeadlineExceeded as DeadlineExceeded
from .errors import DeviceLost as DeviceLost
from .errors import DeviceOutOfMemory as DeviceOutOfMemory
from .errors import DiagCode as DiagCode
from .errors import DispatchFailed as DispatchFailed
from .errors import ErrorCode as ErrorCode
from .errors import InvalidProgram as InvalidProgram
from .errors import IRTypeError as IRTypeError
from .errors import IRValueError as IRValueError
from .errors import KernelCompileFailed as KernelCompileFailed
from .errors import KernelError as KernelError
from .errors import PoisonedLock as PoisonedLock
from .errors import RaceDetected as RaceDetected
from .errors import StepLimitExceeded as StepLimitExceeded
from .errors import TextError as TextError
from .errors import Trap as Trap
from .errors import UnsupportedFeature as UnsupportedFeature
from .errors import VyreError as VyreError
from .errors import WireError as WireError
from .errors import WireUnknownOp as WireUnknownOp
from .errors import WireVersionError as WireVersionError
from .foundation.check.validate import Issue as Issue
from .foundation.check.validate import validate as validate
from .foundation.ir.build import Builder as Builder
from .foundation.ir.dtypes import DataType as DataType
from .foundation.ir.program import BufferDecl as BufferDecl
from .foundation.ir.program import Program as Program
from .foundation.meaning.numerics import NUMERICS_VERSION as NUMERICS_VERSION
from .front.compile import compile as compile
from .front.config import config as config
from .front.device.array import DeviceBuffer as DeviceBuffer
from .front.device.array import empty as empty
from .front.device.array import to_device as to_device
from .front.kernel import Kernel as Kernel
from .front.kernel import kernel as kernel
from .front.sequence.function import KernelSequence as KernelSequence
from .front.sequence.function import sequence as sequence

__version__: str

def parse(text: str) -> Program:
    """Read a program from its text form, as `str(program)` writes it; raises `TextError` with line and column."""

# ---- element types

# Plain numbers go where these stand, as they do in kernels.

u8: TypeAlias = int
u16: TypeAlias = int
u32: TypeAlias = int
u64: TypeAlias = int
i8: TypeAlias = int
i16: TypeAlias = int
i32: TypeAlias = int
i64: TypeAlias = int
f16: TypeAlias = float
bf16: TypeAlias = float
f32: TypeAlias = float
f64: TypeAlias = float
bool_: TypeAlias = bool

_T = TypeVar("_T")
_N = TypeVar("_N", default=Any)
_C = TypeVar("_C", bound=Callable[..., Any])

# ---- parameters

class In(Generic[_T, _N]):
    def __getitem__(self, i: int, /) -> _T: ...
    def __len__(self) -> int: ...
    @property
    def size(self) -> u32: ...

class Uniform(In[_T, _N]): ...

class InOut(In[_T, _N]):
    def __setitem__(self, i: int, value: _T | float, /) -> None: ...

class Out(Generic[_T, _N]):
    def __setitem__(self, i: int, value: _T | float, /) -> None: ...
    def __len__(self) -> int: ...
    @property
    def size(self) -> u32: ...

const: TypeAlias = Any

# ---- functions of kernels

class _Ids:
    @property
    def x(self) -> u32: ...
    @property
    def y(self) -> u32: ...
    @property
    def z(self) -> u32: ...

gid: _Ids
lid: _Ids
wg: _Ids

class _FloatFunction:
    def __call__(self, x: float, /) -> float: ...

class _BitFunction:
    def __call__(self, x: int, /) -> int: ...

class _RotateFunction:
    def __call__(self, x: int, amount: int, /) -> int: ...

class _SubgroupFunction:
    def __call__(self, x: _T, /) -> _T: ...

class _AtomicFunction:
    def __call__(self, buf: InOut[_T, Any], i: int, value: int, /) -> _T: ...

sqrt: _FloatFunction
inverse_sqrt: _FloatFunction
reciprocal: _FloatFunction
floor: _FloatFunction
ceil: _FloatFunction
round: _FloatFunction
trunc: _FloatFunction
sign: _FloatFunction

def cos(x: float, /) -> f32: ...
def sin(x: float, /) -> f32: ...
def tan(x: float, /) -> f32: ...
def acos(x: float, /) -> f32: ...
def asin(x: float, /) -> f32: ...
def atan(x: float, /) -> f32: ...
def cosh(x: float, /) -> f32: ...
def sinh(x: float, /) -> f32: ...
def tanh(x: float, /) -> f32: ...
def exp(x: float, /) -> f32: ...
def exp2(x: float, /) -> f32: ...
def log(x: float, /) -> f32: ...
def log2(x: float, /) -> f32: ...
def log1p(x: float, /) -> f32: ...
def expm1(x: float, /) -> f32: ...
def log10(x: float, /) -> f32: ...
def exp10(x: float, /) -> f32: ...
def cbrt(x: float, /) -> f32: ...
def asinh(x: float, /) -> f32: ...
def acosh(x: float, /) -> f32: ...
def atanh(x: float, /) -> f32: ...
def sinpi(x: float, /) -> f32: ...
def cospi(x: float, /) -> f32: ...
def tanpi(x: float, /) -> f32: ...
def erf(x: float, /) -> f32: ...
def erfc(x: float, /) -> f32: ...
def pow(x: float, y: float, /) -> f32: ...
def atan2(y: float, x: float, /) -> f32: ...
def hypot(x: float, y: float, /) -> f32: ...
def fmod(x: float, y: float, /) -> f32: ...
def remainder(x: float, y: float, /) -> f32: ...
def nextafter(x: float, y: float, /) -> f32: ...
def ldexp(x: float, n: int, /) -> f32: ...
def frexp_mantissa(x: float, /) -> f32: ...
def frexp_exponent(x: float, /) -> i32: ...
def fma(a: float, b: float, c: float, /) -> f32: ...
def copysign(x: float, y: float, /) -> float: ...
def is_nan(x: float, /) -> bool: ...
def is_inf(x: float, /) -> bool: ...
def is_finite(x: float, /) -> bool: ...

popcount: _BitFunction
clz: _BitFunction
ctz: _BitFunction
reverse_bits: _BitFunction
rotate_left: _RotateFunction
rotate_right: _RotateFunction

def mul_high(a: int, b: int, /) -> u32: ...
def abs_diff(a: int, b: int, /) -> u32: ...
def saturating_add(a: int, b: int, /) -> u32: ...
def saturating_sub(a: int, b: int, /) -> u32: ...
def saturating_mul(a: int, b: int, /) -> u32: ...
def bitcast(dtype: type[_T], x: float, /) -> _T: ...

class _SelectFunction:
    @overload
    def __call__(self, program: Program, /) -> Selection: ...
    @overload
    def __call__(self, condition: int, if_true: _T, if_false: _T, /) -> _T: ...

select: _SelectFunction

atomic_add: _AtomicFunction
atomic_sub: _AtomicFunction
atomic_min: _AtomicFunction
atomic_max: _AtomicFunction
atomic_and: _AtomicFunction
atomic_or: _AtomicFunction
atomic_xor: _AtomicFunction
atomic_exchange: _AtomicFunction

def atomic_cas(buf: InOut[_T, Any], i: int, expected: int, value: int, /) -> _T: ...

subgroup_add: _SubgroupFunction
subgroup_mul: _SubgroupFunction
subgroup_min: _SubgroupFunction
subgroup_max: _SubgroupFunction
subgroup_and: _SubgroupFunction
subgroup_or: _SubgroupFunction
subgroup_xor: _SubgroupFunction

def subgroup_shuffle(x: _T, lane: int, /) -> _T: ...
def subgroup_ballot(condition: int, /) -> u32: ...
def subgroup_local_id() -> u32: ...
def subgroup_size() -> u32: ...
def shared(dtype: type[_T], count: int, /) -> InOut[_T]: ...
def barrier() -> None: ...
def grid_sync() -> None: ...
def trap(tag: str, address: int = 0, /) -> None: ...
def static_range(start: int, stop: int = ..., step: int = ..., /) -> Sequence[int]: ...
def device(fn: _C, /) -> _C: ...
