"""One list of what a forked process must forget, and all of it runs in the child."""

import ast
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[3] / "src" / "vyre"


@cache
def with_hooks():
    """The modules that name the decorator of what a child forgets."""
    return sorted(
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if "in_child" in (text := path.read_text("utf-8"))
        and any(isinstance(n, ast.Name) and n.id == "in_child" for n in ast.walk(ast.parse(text)))
    )


CHILD = """
import importlib, json, os, sys, threading, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of forking a process with threads
from vyre.foundation import forking
found = []
for name in json.loads(sys.argv[1]):
    try:
        importlib.import_module(name)
        found.append(name)
    except ImportError:  # a library of that backend is not installed
        continue
known = list(forking.hooks)
ran, fails = [], json.loads(sys.argv[2])
for k, hook in enumerate(known):
    def recorded(k=k, hook=hook):
        hook()
        ran.append(k)
    forking.hooks[k] = recorded
def fail():
    raise ValueError("a hook that fails")
if fails:
    forking.hooks.insert(1, fail)
reader, writer = os.pipe()
child = os.fork()
if child == 0:
    os.write(writer, json.dumps(ran).encode())
    os._exit(0)
os.close(writer)
with open(reader, "rb") as told:
    inside = json.loads(told.read())
os.waitpid(child, 0)
print(json.dumps([found, [hook.__module__ for hook in known], inside, ran]))
"""


def dotted(path: str) -> str:
    return "vyre." + path.removesuffix(".py").replace("/", ".")


def forked(fails: bool) -> tuple[list[list[object]], str]:
    modules = json.dumps([dotted(path) for path in with_hooks()])
    words = [sys.executable, "-c", CHILD, modules, json.dumps(fails)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120)
    return json.loads(done.stdout), done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_every_hook_runs_in_the_child_in_order_and_none_in_the_parent():
    (found, homes, inside, ran), _ = forked(fails=False)
    assert set(homes) == set(found)
    assert len(found) >= len(with_hooks()) - 3  # three backends need a library that may not be here
    assert inside == list(range(len(homes)))
    assert ran == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_hook_that_fails_is_reported_and_keeps_no_other_from_running():
    (_, homes, inside, _), printed = forked(fails=True)
    assert inside == list(range(len(homes)))
    assert "a hook that fails" in printed


TWO = """
import os, threading, time, warnings
warnings.simplefilter("ignore", DeprecationWarning)
from vyre.foundation import forking
order = []
def note(what):
    order.append((what, threading.get_ident()))
    time.sleep(0.02)  # another thread would come in between
forking.before.append(lambda: note("before"))
forking.in_parent.append(lambda: note("after"))
def fork():
    for _ in range(5):
        child = os.fork()
        if not child:
            os._exit(0 if forking._one_at_a_time.acquire(blocking=False) else 1)
        assert os.waitpid(child, 0)[1] == 0
threads = [threading.Thread(target=fork) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(order) == 30
for (first, one), (second, other) in zip(order[::2], order[1::2]):
    assert (first, second, one) == ("before", "after", other), order
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_threads_that_fork_at_once_do_so_one_after_the_other():
    subprocess.run([sys.executable, "-c", TWO], check=True, timeout=120)


def test_nothing_else_registers_with_the_system():
    def registers(path: Path) -> bool:
        names = (getattr(n, "attr", None) for n in ast.walk(ast.parse(path.read_text("utf-8"))))
        return "register_at_fork" in names

    assert [p.relative_to(SOURCE).as_posix() for p in SOURCE.rglob("*.py") if registers(p)] == ["foundation/forking.py"]


GARBAGE = """
import gc, os
from vyre.foundation import forking
on = []
forking.in_child(lambda: on.append(gc.isenabled()))
for collects in (True, False):
    (gc.enable if collects else gc.disable)()
    if not (child := os.fork()):
        os._exit(on != [False] or gc.isenabled() is not collects)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, collects
    assert gc.isenabled() is collects
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_garbage_of_the_parent_is_not_collected_before_all_hooks_have_run():
    subprocess.run([sys.executable, "-c", GARBAGE], check=True, timeout=120)
