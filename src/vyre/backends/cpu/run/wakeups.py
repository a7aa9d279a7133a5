"""How does a thread wait for machine code to run? In machine code, without the interpreter, where the system lets it.

A thread that is woken in Python needs the interpreter's lock first, which the one that wakes it holds: it goes to sleep
once more, and is often put behind that one on its processor. So an idle thread waits in `serve`: for a while it looks
whether it was told to run something, as the next launch of a loop comes soon, and then it sleeps.
"""

from __future__ import annotations

import platform
import sys
from functools import cache
from typing import Any, NamedTuple

from ..compile import compile_object
from ..device import ffi, link
from ..devices import host

FREE, ASLEEP, TOLD, AWAITED, LEFT = range(5)
"""What a mail says first: nothing to do; nothing to do, and the thread sleeps; run what the other words say; run it,
and wake the caller, which sleeps until it ends; run it, and go back to Python, as the caller has given up waiting."""
STATE, LOOKS = 0, 1
"""Words of 32 bits: the above, and how often the thread looks before it sleeps."""
CODE, SHARED, WORKER = 1, 2, 3
"""Words of 64 bits behind them: a function and its arguments. No function: back to Python."""
MAIL_BYTES = 64
"""A line of the cache."""
WAKE_LOOKS = 2000
"""As many looks take about as long as waking a thread that sleeps: 40 us."""
_FUTEX = {"x86_64": 202, "aarch64": 98, "riscv64": 98}
"""The call of Linux by which a thread sleeps until a word changes."""
_SLEEP, _WAKE = 128, 129


class Wakeups(NamedTuple):
    """Functions of machine code, each of which lets go of the interpreter's lock."""

    serve: Any
    """`serve(mail)` runs what the mail says again and again, until that is to go back to Python."""
    tell: Any
    """`tell(mail)`: its words are there to be run."""
    wait: Any
    """`wait(mail, looks, ns)`: whether it has ended, after so many looks and so much sleep at most."""
    leave: Any
    """`leave(mail)`: whether it runs still; the caller waits for it no longer."""
    library: object


@cache
def wakeups() -> Wakeups | None:
    """None where the system has no such call: threads wait in Python there."""
    number = _FUTEX.get(platform.machine()) if sys.platform == "linux" else None
    if number is None:
        return None
    kinds = {"serve": "void(*)(void *)", "tell": "void(*)(void *)", "leave": "int(*)(void *)"}
    kinds["wait"] = "int(*)(void *, int, int64_t)"
    found = link(compile_object(_text(number, host().x86)), *kinds)
    return Wakeups(**{name: ffi.cast(kind, found[name]) for name, kind in kinds.items()}, library=found)


def _text(number: int, x86: bool) -> str:
    pause = "call void @llvm.x86.sse2.pause()" if x86 else ""
    call = f"call i64 (i64, ...) @syscall(i64 {number}, ptr %mail, i64"
    return f"""\
define void @serve(ptr %mail) {{
  %at_looks = getelementptr i32, ptr %mail, i64 {LOOKS}
  %at_code = getelementptr ptr, ptr %mail, i64 {CODE}
  %at_shared = getelementptr ptr, ptr %mail, i64 {SHARED}
  %at_worker = getelementptr ptr, ptr %mail, i64 {WORKER}
  %looks = load i32, ptr %at_looks
  br label %look
look:
  %left = phi i32 [ %looks, %0 ], [ %looks, %freely ], [ %looks, %wake ], [ %less, %again ]
  %seen = load atomic i32, ptr %mail acquire, align 4
  %told = icmp ne i32 %seen, {FREE}
  br i1 %told, label %work, label %nothing
nothing:
  %over = icmp eq i32 %left, 0
  br i1 %over, label %rest, label %again
again:
  {pause}
  %less = sub i32 %left, 1
  br label %look
rest:
  %swapped = cmpxchg ptr %mail, i32 {FREE}, i32 {ASLEEP} acq_rel acquire
  br label %sleep
sleep:
  %now = load atomic i32, ptr %mail acquire, align 4
  %still = icmp eq i32 %now, {ASLEEP}
  br i1 %still, label %doze, label %work
doze:
  %dozed = {call} {_SLEEP}, i64 {ASLEEP}, ptr null)
  br label %sleep
work:
  %code = load ptr, ptr %at_code
  %python = icmp eq ptr %code, null
  br i1 %python, label %back, label %run
run:
  %shared = load ptr, ptr %at_shared
  %worker = load ptr, ptr %at_worker
  call void %code(ptr %shared, ptr %worker)
  br label %end
end:
  %was = load atomic i32, ptr %mail acquire, align 4
  %is_left = icmp eq i32 %was, {LEFT}
  br i1 %is_left, label %back, label %free
free:
  %freed = cmpxchg ptr %mail, i32 %was, i32 {FREE} acq_rel acquire
  %is_freed = extractvalue {{ i32, i1 }} %freed, 1
  br i1 %is_freed, label %freely, label %end
freely:
  %is_awaited = icmp eq i32 %was, {AWAITED}
  br i1 %is_awaited, label %wake, label %look
wake:
  %woken = {call} {_WAKE}, i64 1)
  br label %look
back:
  ret void
}}
define void @tell(ptr %mail) {{
  %was = atomicrmw xchg ptr %mail, i32 {TOLD} acq_rel
  %asleep = icmp eq i32 %was, {ASLEEP}
  br i1 %asleep, label %wake, label %done
wake:
  %woken = {call} {_WAKE}, i64 1)
  br label %done
done:
  ret void
}}
define i32 @wait(ptr %mail, i32 %looks, i64 %ns) {{
  %until = alloca [2 x i64], align 8
  br label %look
look:
  %left = phi i32 [ %looks, %0 ], [ %less, %again ]
  %seen = load atomic i32, ptr %mail acquire, align 4
  %runs = icmp uge i32 %seen, {TOLD}
  br i1 %runs, label %not_yet, label %ended
not_yet:
  %over = icmp eq i32 %left, 0
  br i1 %over, label %rest, label %again
again:
  {pause}
  %less = sub i32 %left, 1
  br label %look
rest:
  %swapped = cmpxchg ptr %mail, i32 {TOLD}, i32 {AWAITED} acq_rel acquire
  %part = getelementptr i64, ptr %until, i64 1
  store i64 0, ptr %until
  store i64 %ns, ptr %part
  %dozed = {call} {_SLEEP}, i64 {AWAITED}, ptr %until)
  %now = load atomic i32, ptr %mail acquire, align 4
  %gone = icmp ult i32 %now, {TOLD}
  %found = zext i1 %gone to i32
  ret i32 %found
ended:
  ret i32 1
}}
define i32 @leave(ptr %mail) {{
  %told = cmpxchg ptr %mail, i32 {TOLD}, i32 {LEFT} acq_rel acquire
  %first = extractvalue {{ i32, i1 }} %told, 1
  %awaited = cmpxchg ptr %mail, i32 {AWAITED}, i32 {LEFT} acq_rel acquire
  %second = extractvalue {{ i32, i1 }} %awaited, 1
  %either = or i1 %first, %second
  %now = load atomic i32, ptr %mail acquire, align 4
  %left = icmp eq i32 %now, {LEFT}
  %runs = or i1 %either, %left
  %found = zext i1 %runs to i32
  ret i32 %found
}}
declare i64 @syscall(i64, ...)
{"declare void @llvm.x86.sse2.pause()" if x86 else ""}
"""
