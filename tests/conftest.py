"""Options of all tests, and the settings under which they run: no file on this machine sets any."""

import gc
import os
import signal
import tempfile
from contextlib import chdir
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from vyre.driver.settings import files as settings_files

signal.signal(signal.SIGINT, signal.default_int_handler)  # a script that starts tests in the background ignores it
os.environ["XDG_CONFIG_HOME"] = os.devnull  # no file of the user lies below; processes that a test starts have it too
CACHE = Path(__file__).parents[1] / "build" / "cache"
CACHE.mkdir(parents=True, exist_ok=True)
os.environ["XDG_CACHE_HOME"] = str(CACHE)  # drivers keep what they compiled, and HOME may not be writable
# Tests compile what they say they compile; those of the cache turn it on, in folders of their own.
os.environ["VYRE_CACHE"] = "off"
if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):  # they would each compile the package, which takes a second
    os.environ["PYTHONPYCACHEPREFIX"] = str(Path(__file__).parents[1] / "build" / "bytecode")
settings.register_profile("vyre", deadline=None, suppress_health_check=[HealthCheck.too_slow])  # on a busy machine
settings.load_profile("vyre")


def pytest_addoption(parser):
    parser.addoption("--refresh-golden", action="store_true", help="write the texts that emitters print anew")


def pytest_configure(config):
    for folder in (config.rootpath, tempfile.gettempdir()):
        with chdir(folder):
            files = settings_files.look(settings_files.UNREAD, lambda name, value, path: value)
        for name, path in files.paths.items():
            raise pytest.UsageError(f"{path} sets {name}, and tests expect the defaults. Fix: move it away meanwhile")


def pytest_collection_finish(session):
    leave_alone()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    if nextitem is None or nextitem.path != item.path:
        leave_alone()


def leave_alone():
    """What is alive now stays until the end, a million objects: the collector need not look at them again and again."""
    gc.collect()
    gc.freeze()
