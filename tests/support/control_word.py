"""The floating-point control word of x86, which other packages may change under us."""

import ctypes
import mmap
import platform
import sys


def flush_control():
    """Functions that read and write the x86 floating-point control word, or None."""
    if platform.machine() not in ("x86_64", "AMD64") or sys.platform != "linux":
        return None
    try:
        page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except OSError:
        return None
    page.write(b"\x0f\xae\x1f\xc3" + b"\x0f\xae\x17\xc3")  # stmxcsr [rdi]; ret; ldmxcsr [rdi]; ret
    start = ctypes.addressof(ctypes.c_char.from_buffer(page))
    prototype = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_uint32))
    return page, prototype(start), prototype(start + 4)
