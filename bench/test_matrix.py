"""The quick tests on machines in other states: do they pass, and do they leave anything behind?

    python bench/test_matrix.py                    every state, each in a fresh clone of HEAD
    python bench/test_matrix.py gl-only --json     one state; its row in bench/results/test_matrix.json is written anew
    python bench/test_matrix.py --short            some states and the tests that they concern, in this checkout
    python bench/test_matrix.py --budgets          how long make test, check and states take here, alone on the machine

A machine is a small Debian in a folder of its own, with Python, make and what the state names: this needs root,
debootstrap and its mirror. A state that cannot be made here is skipped, with the reason. `--short` instead hides the
drivers of this machine from the tests, which needs a mount namespace and nothing more.

A state holds if `make test` passes, no process outlives it, and no file has changed outside of the clone and the
cache folder of the user. Exit status 1: a state does not hold, or a budget. Rows are recorded of states that hold, and
those of others stay as they were.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from record import RESULTS, record, stamp

REPOSITORY = Path(__file__).parents[1]
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
CLONE = "srv/vyre"  # these two below the machine's root
CACHE = "root/.cache"
BARE = ("python3", "python3-venv", "make", "ca-certificates")
GL = ("libegl1", "libegl-mesa0", "libgl1-mesa-dri", "libgles2")
DRIVERS = ("mesa-vulkan-drivers", "pocl-opencl-icd")
HIDE_VULKAN = ("/usr/share/vulkan/icd.d", "/usr/local/share/vulkan/icd.d", "/etc/vulkan/icd.d")
HIDE_OPENCL = ("/etc/OpenCL/vendors",)
HIDE_GL = ("/usr/share/glvnd/egl_vendor.d", "/etc/glvnd/egl_vendor.d")
SHORT = (
    "tests/contract/test_faults.py",
    "tests/unit/driver/selection/test_absent_devices.py",
    "tests/unit/runtime/test_capability_claims.py",
    "tests/unit/cli/test_cli_doctor.py",
    "tests/unit/cli/test_cli_frame.py",
    "tests/unit/cli/test_cli_hostile.py",
    "tests/unit/cli/test_cli_listing.py",
    "tests/unit/cli/test_cli_run.py",
    "tests/docs/test_docs.py",
    "tests/unit/runtime/test_requirements_of_backends.py",
    "tests/docs/test_readme.py",
    "tests/backend/wgpu/test_wgpu_backend.py",
)
LONGEST_S = 3600.0
BUDGETS = {"test": 6.0, "check": 24.0, "states": None}
"""Minutes for each target of the Makefile on two idle cores, after `make venv`."""
GRACE_S = 5.0  # for processes that are about to end
SHOWN_FILES = 20
SHOWN_CHARACTERS = 20_000
PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class State:
    """A machine, and how the tests are started on it."""

    about: str
    packages: tuple[str, ...] = ()
    suite: str = "bookworm"
    background: bool = False
    busy: int = 0
    offline: bool = False
    hidden: tuple[str, ...] | None = None
    """What `--short` hides of this machine; None: the state has no short form."""


STATES = {
    "no-drivers": State("nothing but Python and make", hidden=(*HIDE_VULKAN, *HIDE_OPENCL, *HIDE_GL)),
    "no-drivers-background": State("the same, in the background of a script: SIGINT is ignored", background=True),
    "gl-only": State("Mesa's OpenGL and EGL, no Vulkan and no OpenCL", GL, hidden=(*HIDE_VULKAN, *HIDE_OPENCL)),
    "background": State("lavapipe and PoCL, in the background of a script", DRIVERS, background=True, hidden=()),
    "python3.13": State("lavapipe and PoCL, Python 3.13", DRIVERS, suite="trixie"),
    "offline": State("lavapipe and PoCL; no network after installing, HOME is read-only", DRIVERS, offline=True),
    "busy": State("lavapipe and PoCL, two busy loops beside the tests", DRIVERS, busy=2),
    "drivers": State("lavapipe and PoCL", DRIVERS),
}


class CannotMake(Exception):
    """The state cannot be made on this machine."""


def required(*tools: str, root: bool) -> None:
    if sys.platform != "linux":
        raise CannotMake("machines in folders need Linux")
    if root and os.getuid():
        raise CannotMake("making a machine needs root")
    for tool in tools:
        if shutil.which(tool) is None:
            raise CannotMake(f"{tool} is not installed. Fix: apt-get install {tool}")


def status(command: list[str], log: Path, **options: Any) -> int:
    """The command's exit status, 124 if it was ended; what it says goes to the log."""
    with log.open("a") as out:
        try:
            return subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, timeout=LONGEST_S, **options
            ).returncode
        except subprocess.TimeoutExpired:
            return 124


def make(command: list[str], log: Path, **options: Any) -> None:
    """Run a command without which there is no machine."""
    if status(command, log, **options):
        raise CannotMake(f"{' '.join(command)} failed: {log.read_text(errors='replace')[-SHOWN_CHARACTERS:]}")


def base(state: State, folder: Path) -> Path:
    """The Debian that the state's machine is a copy of, made once."""
    required("debootstrap", "unshare", root=True)
    bare, log = folder / state.suite, folder / f"{state.suite}.log"
    if not (folder / f"{state.suite}.made").exists():
        shutil.rmtree(bare, ignore_errors=True)
        words = ["debootstrap", "--variant=minbase", f"--include={','.join(BARE)}", state.suite, str(bare)]
        make(["unshare", "--mount", *words], log)
        certificates = Path("etc/ssl/certs/ca-certificates.crt")  # what pip trusts here, it trusts there
        if ("/" / certificates).exists():
            shutil.copyfile("/" / certificates, bare / certificates)
        (folder / f"{state.suite}.made").touch()
    if not state.packages:
        return bare
    name = "-".join((state.suite, *state.packages))
    if not (folder / f"{name}.made").exists():
        shutil.rmtree(folder / name, ignore_errors=True)
        make(["cp", "--archive", "--reflink=auto", str(bare), str(folder / name)], log)
        options = "--yes --quiet --no-install-recommends -o APT::Sandbox::User=root"
        install = f"apt-get update && apt-get install {options} {' '.join(state.packages)} && apt-get clean"
        make(entered(folder / name, install), log, env={"PATH": PATH, "DEBIAN_FRONTEND": "noninteractive"})
        (folder / f"{name}.made").touch()
    return folder / name


def entered(root: Path, command: str, offline: bool = False) -> list[str]:
    """The command on the machine below `root`; what it mounts is gone with it."""
    steps = [
        "mount -t proc proc $0/proc",
        "mount --rbind /sys $0/sys",
        "mount --rbind /dev $0/dev",
        "mkdir -p $0/run/shm && mount --bind $0/run/shm $0/dev/shm",
    ]
    if offline:
        steps += ["mount --bind $0/root $0/root", "mount -o remount,bind,ro $0/root"]
    steps.append('exec chroot $0 sh -c "$1"')
    return ["unshare", "--mount", *["--net"] * offline, "sh", "-ec", "\n".join(steps), str(root), command]


def hidden(paths: tuple[str, ...], command: str) -> list[str]:
    """The command on this machine with empty folders in place of some."""
    steps = [f"mount -t tmpfs none {path}" for path in paths if os.path.isdir(path)]
    if not steps:
        return ["sh", "-c", command]
    required("unshare", root=False)
    unshare = ["unshare", "--mount", *["--map-root-user"] * (os.getuid() != 0)]
    if subprocess.run([*unshare, "sh", "-ec", steps[0]], capture_output=True).returncode:
        raise CannotMake("hiding drivers needs root, or a mount namespace for every user")
    return [*unshare, "sh", "-ec", "\n".join((*steps, 'exec sh -c "$0"')), command]


def files(root: Path, *beside: Path) -> dict[str, tuple[int, int]]:
    """Size and time of change of all files below, without some folders."""
    found: dict[str, tuple[int, int]] = {}
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if Path(folder, name) not in beside]
        for name in names:
            path = os.path.join(folder, name)
            status = os.lstat(path)
            found[path] = status.st_size, status.st_mtime_ns
    return found


def survivors() -> list[str]:
    """Processes of the run that outlived it, which this ends: orphans are children of this process."""
    end = time.monotonic() + GRACE_S
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return []
        if pid == 0 and time.monotonic() > end:
            break
        if pid == 0:
            time.sleep(0.1)
    found = []
    for pid in map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()):
        found.append(Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip() or f"process {pid}")
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    return found


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Loops that keep this many processors busy."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def environment(home: str, temporary: str) -> dict[str, str]:
    """A fresh user's, and how this machine reaches packages."""
    kept = {k: v for k, v in os.environ.items() if k.startswith("PIP_") or k.lower().endswith("_proxy")}
    return {"PATH": PATH, "HOME": home, "TMPDIR": temporary, **kept}


def outcome(said: str) -> dict[str, int]:
    """How many tests passed, failed and so on: what the last line counts."""
    lines = [line for line in said.splitlines() if re.search(r"\d+ (passed|failed|skipped|errors?)\b.* in ", line)]
    counts = lines[-1].rpartition(" in ")[0] if lines else ""
    return {word: int(count) for count, word in re.findall(r"(\d+) ([a-z]+)", counts)}


def tested(command: list[str], state: State, log: Path, **options: Any) -> dict[str, Any]:
    """The row of a run: minutes, counts, processes that outlived it, and whether it passed."""
    start = time.monotonic()
    with busy(state.busy):
        done = status(command, log, **options)
    minutes = (time.monotonic() - start) / 60
    row = {"minutes": round(minutes, 1), **outcome(log.read_text(errors="replace")), "processes": survivors()}
    return row | {"exit_status": done}


def whole(name: str, folder: Path) -> dict[str, Any]:
    """`make test` in a fresh clone on a machine in this state."""
    state, root, log = STATES[name], folder / f"machine-{name}", folder / f"{name}.log"
    shutil.rmtree(root, ignore_errors=True)  # of a run that was ended
    make(["cp", "--archive", "--reflink=auto", str(base(state, folder)), str(root)], log)
    try:
        make(["git", "clone", "--quiet", str(REPOSITORY), str(root / CLONE)], log)
        commit = subprocess.check_output(["git", "-C", str(root / CLONE), "rev-parse", "HEAD"], text=True).strip()
        environ = environment("/root", "/tmp")
        beside = [root / CLONE, root / CACHE, root / "proc", root / "dev", root / "sys"]
        before = files(root, *beside)
        if failed := status(entered(root, f"cd /{CLONE} && make venv"), log, env=environ):
            return {"exit_status": failed, "processes": survivors(), "files": []}
        test = f"cd /{CLONE} && make test" + " & wait $!" * state.background
        row = tested(entered(root, test, state.offline), state, log, env=environ)
        after = files(root, *beside)
        row["files"] = sorted(path.removeprefix(str(root)) for path in after if after[path] != before.get(path))
        row["commit"] = commit
        row["python"] = subprocess.check_output(["chroot", str(root), "python3", "--version"], text=True).split()[-1]
    finally:
        shutil.rmtree(root)
    return row


def short(name: str, folder: Path) -> dict[str, Any]:
    """The tests that the state concerns, in this checkout."""
    state, log = STATES[name], folder / f"{name}.log"
    home, temporary = folder / name / "home", folder / name / "tmp"
    shutil.rmtree(folder / name, ignore_errors=True)
    for each in (home, temporary):
        each.mkdir(parents=True)
    test = f"{sys.executable} -m pytest -n auto --dist worksteal {' '.join(SHORT)}" + " & wait $!" * state.background
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("VYRE_", "XDG_"))}
    environ |= environment(str(home), str(temporary)) | {"PATH": os.environ["PATH"]}
    row = tested(hidden(state.hidden or (), test), state, log, env=environ, cwd=REPOSITORY)
    row["files"] = sorted(path.removeprefix(f"{folder / name}/") for path in files(folder / name, home / ".cache"))
    return row


def timed(folder: Path) -> dict[str, Any]:
    """The minutes of each target here, the load before it, and whether it passed."""
    rows = {}
    for target, most in BUDGETS.items():
        log, load, start = folder / f"{target}.log", os.getloadavg()[0], time.monotonic()
        failed = status(["make", "--directory", str(REPOSITORY), target], log)
        minutes = (time.monotonic() - start) / 60
        holds = not failed and (most is None or minutes <= most)
        rows[target] = {"minutes": round(minutes, 1), "budget": most, "load before": round(load, 1), "holds": holds}
        print(f"make {target}: {rows[target]}", flush=True)
        if failed:
            print(log.read_text(errors="replace")[-SHOWN_CHARACTERS:], flush=True)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("states", nargs="*", metavar="STATE", help=f"{', '.join(STATES)}; default: all")
    parser.add_argument("--short", action="store_true", help="in this checkout, with its drivers hidden")
    parser.add_argument("--budgets", action="store_true", help="time make test, check and states in this checkout")
    parser.add_argument("--json", action="store_true", help="also write rows into bench/results/test_matrix.json")
    parser.add_argument("--folder", type=Path, help="where machines are made, and kept for another time")
    options = parser.parse_args()
    if unknown := sorted(set(options.states) - set(STATES)):
        parser.error(f"unknown state {', '.join(unknown)}; states: {', '.join(STATES)}")
    names = options.states or [n for n, state in STATES.items() if not options.short or state.hidden is not None]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    held = True
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if options.budgets:
            rows = timed(folder)
            if options.json and all(row["holds"] for row in rows.values()):
                keep(budgets={**stamp(), "cores": os.cpu_count(), "targets": rows})
            return 0 if all(row["holds"] for row in rows.values()) else 1
        for name in names:
            (folder / f"{name}.log").unlink(missing_ok=True)
            try:
                row = short(name, folder) if options.short else whole(name, folder)
            except CannotMake as e:
                print(f"{name}: skipped: {e}", flush=True)
                continue
            holds = row["exit_status"] == 0 and not row["processes"] and not row["files"]
            held = held and holds
            shown = row | {"files": row["files"][:SHOWN_FILES]}
            print(f"{name}: {'holds' if holds else 'DOES NOT HOLD'}: {shown}", flush=True)
            if not holds:
                print((folder / f"{name}.log").read_text(errors="replace")[-SHOWN_CHARACTERS:], flush=True)
            elif options.json and not options.short:
                shown = {k: row[k] for k in ("commit", "python", "minutes", "passed", "skipped")}
                today = datetime.datetime.now(datetime.UTC).date().isoformat()
                keep(states={name: {"about": STATES[name].about, "date": today, **shown}})
    return 0 if held else 1


def keep(states: dict[str, Any] | None = None, budgets: dict[str, Any] | None = None) -> None:
    """Write these rows; other rows stay."""
    path = RESULTS / "test_matrix.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    rows = kept.get("states", {}) | (states or {})
    ordered = {name: rows[name] for name in STATES if name in rows}
    record("test_matrix", {"states": ordered, "budgets": budgets or kept.get("budgets", {})})


if __name__ == "__main__":
    raise SystemExit(main())
