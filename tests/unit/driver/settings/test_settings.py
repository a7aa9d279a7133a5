"""The nearest place wins: an argument, config(), the environment, the project's file, the user's file, the default."""

import asyncio
import importlib.util
import os
import pickle
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import platformdirs
import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import vyre
from vyre import In, Out, gid, u32
from vyre.driver import counters
from vyre.driver.contract import BackendCapability, BackendRegistration, VyreBackend
from vyre.driver.contract.values import DEFAULT_CONFIG
from vyre.driver.selection import registry
from vyre.driver.settings import files as settings_files
from vyre.driver.settings import knobs as settings
from vyre.driver.settings.knobs import COUNT, FOLDER, SHADOW, STRICT, Knob, ShadowRate
from vyre.errors import ArgumentTypeError, ArgumentValueError, BackendUnavailable

ROOT = Path(__file__).parents[4]
ENTRIES = settings.PIPELINE_CACHE_ENTRIES


@vyre.kernel(workgroup=64)
def double(x: In[u32], out: Out[u32]) -> None:
    if gid.x < len(out):
        out[gid.x] = x[gid.x] * 2


X = np.arange(4, dtype=np.uint32)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A project folder that is the current one, with no setting anywhere; files are looked at for every read."""
    for name in os.environ:
        if name.startswith("VYRE_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    project, home = tmp_path / "project", tmp_path / "home"
    project.mkdir()
    (project / ".git").mkdir()
    home.mkdir()
    monkeypatch.chdir(project)
    monkeypatch.setattr(settings_files, "user_path", lambda: str(home / "config.toml"))
    monkeypatch.setattr(settings, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(settings, "_files", settings_files.UNREAD)
    monkeypatch.setattr(settings, "_told", {})
    settings.refresh()
    yield project
    monkeypatch.undo()
    settings.refresh()


@pytest.fixture
def home(place):
    return place.parent / "home" / "config.toml"


def seen(knob=ENTRIES):
    found = knob.setting()
    return found.value, found.origin


# ---- who wins -------------------------------------------------------------------------------------------------------


def test_each_place_wins_over_the_next(place, home, monkeypatch):
    assert seen() == (256, "default")
    home.write_text("pipeline_cache_entries = 5\n")
    assert seen() == (5, str(home))
    (place / "vyre.toml").write_text("pipeline_cache_entries = 4\n")
    assert seen() == (4, str(place / "vyre.toml"))
    monkeypatch.setenv("VYRE_PIPELINE_CACHE_ENTRIES", "3")
    assert seen() == (3, "VYRE_PIPELINE_CACHE_ENTRIES")
    with vyre.config(pipeline_cache_entries=2):
        assert seen() == (2, "config()")
        with vyre.config(pipeline_cache_entries=1):
            assert seen() == (1, "config()")
        assert seen() == (2, "config()")
    assert seen() == (3, "VYRE_PIPELINE_CACHE_ENTRIES")


def backend(name):
    class Named(VyreBackend, contract=1):
        id = name
        capability = BackendCapability(max_workgroup_size=(64, 1, 1), max_workgroups_per_dimension=65535)

        def dispatch(self, program, inputs, config=DEFAULT_CONFIG, *, out=None):
            marked = bytes([ord(name)]) * memoryview(inputs[0]).nbytes
            if out is None:
                return [bytearray(marked)]
            memoryview(out[0]).cast("B")[:] = marked
            return list(out)

    return BackendRegistration(id=name, open=lambda device=None: Named(), precedence=ord(name), kind="host")


def ran(kernel=double):
    """The name of the backend that a call ran on."""
    return chr(kernel(X)[0] & 255)


def test_a_warm_kernel_follows_every_place_at_its_next_call(place, home, monkeypatch):
    with registry.isolated(*map(backend, "abcdef")):
        assert ran() == "a", "the first in order"
        home.write_text('backend = "b"')
        assert ran() == "b"
        (place / "pyproject.toml").write_text('[tool.vyre]\nbackend = "c"')
        assert ran() == "c"
        monkeypatch.setenv("VYRE_BACKEND", "d")
        assert ran() == "d"
        with vyre.config(backend="e"):
            assert ran() == "e"
            assert ran(double.on("f")) == "f", "an argument wins over all"
            with vyre.config(backend=None):
                assert ran() == "a", "None asks for the default"
            assert ran() == "e"
        assert ran() == "d"
        monkeypatch.delenv("VYRE_BACKEND")
        assert ran() == "c"
        (place / "pyproject.toml").unlink()
        assert ran() == "b"


def test_a_selection_names_who_asked(place):
    with registry.isolated(backend("a")):
        with vyre.config(backend="x,y"), pytest.raises(BackendUnavailable, match=r"no backend of config\(\) can be"):
            vyre.select(double.program)
        with vyre.config(backend="x,a", strict=True), pytest.raises(BackendUnavailable, match="'x'"):
            vyre.select(double.program)
        with vyre.config(backend="x,a"), pytest.warns(registry.FallbackWarning):
            assert vyre.select(double.program).chosen == "a"
        with vyre.config(backend="a"):
            assert "config(backend='a') asks for it" in str(double.explain(X))
        (place / "vyre.toml").write_text('backend = "a"')
        assert f"backend=a ({place / 'vyre.toml'}) asks for it" in str(double.explain(X))


def test_a_compiled_pipeline_follows_the_shadow_at_every_dispatch(place, monkeypatch):
    def samples(call):
        before = counters.counters()["shadow_samples"]
        call()
        return counters.counters()["shadow_samples"] - before

    with vyre.compile(double.program, backend="cpu") as compiled:

        def every_way():
            compiled.dispatch([X])
            compiled.dispatch_timed([X])
            compiled.dispatch_async([X]).result()

        assert samples(every_way) == 0
        with vyre.config(shadow=1):
            assert samples(every_way) == 3
            with vyre.config(shadow="0"):
                assert samples(every_way) == 0
        assert samples(every_way) == 0
        monkeypatch.setenv("VYRE_SHADOW", "1")
        assert samples(every_way) == 3
        monkeypatch.delenv("VYRE_SHADOW")
        (place / "vyre.toml").write_text("shadow = 0.5")
        assert samples(lambda: [every_way(), every_way()]) == 3
        assert "vyre.toml): an oracle computes this share" in str(compiled.explain([X]))
        (place / "vyre.toml").unlink()
        assert samples(every_way) == 0


def test_a_backend_that_selection_opens_has_the_settings_of_the_caller(place):
    seen_inside = []

    def open_backend(device=None):
        seen_inside.append(ENTRIES.value())
        return backend("a").open()

    only = BackendRegistration(id="a", open=open_backend, kind="host")
    with registry.isolated(only), vyre.config(pipeline_cache_entries=7):
        vyre.select(double.program)
    assert seen_inside == [7]


# ---- config() -------------------------------------------------------------------------------------------------------


def test_a_block_may_be_entered_again_and_ends_when_its_code_fails(place):
    block = vyre.config(pipeline_cache_entries=2)
    for _ in range(2):
        with block, vyre.config(strict=True), block:
            assert (ENTRIES.value(), STRICT.value()) == (2, True)
        assert (ENTRIES.value(), STRICT.value()) == (256, False)
    with pytest.raises(ZeroDivisionError), block:
        1 / 0  # noqa: B018
    assert ENTRIES.value() == 256
    assert repr(block) == "vyre.config(pipeline_cache_entries=2)"


def test_threads_do_not_see_each_others_blocks_even_of_one_object(place):
    shared, meet = vyre.config(strict=True), threading.Barrier(2, timeout=30)
    found = {}

    def work(own):
        found[own, "before"] = ENTRIES.value(), STRICT.value()
        with shared, vyre.config(pipeline_cache_entries=own):
            meet.wait()
            found[own, "inside"] = ENTRIES.value(), STRICT.value()
            meet.wait()
        found[own, "after"] = ENTRIES.value(), STRICT.value()

    with vyre.config(pipeline_cache_entries=9):
        threads = [threading.Thread(target=work, args=(own,)) for own in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for own in (1, 2):
        assert found[own, "before"] == found[own, "after"] == (256, False)
        assert found[own, "inside"] == (own, True)


def test_a_task_keeps_what_held_where_it_was_started(place):
    async def ask(own):
        outer = ENTRIES.value()
        with vyre.config(pipeline_cache_entries=own):
            await asyncio.sleep(0)
            return outer, ENTRIES.value()

    async def main():
        with vyre.config(pipeline_cache_entries=50):
            tasks = [asyncio.create_task(ask(own)) for own in (1, 2, 3)]
        return await asyncio.gather(*tasks), ENTRIES.value()

    assert asyncio.run(main()) == ([(50, 1), (50, 2), (50, 3)], 256)


def test_a_generator_that_ends_inside_a_later_block_ends_its_own_block_only(place):
    def steps():
        with vyre.config(pipeline_cache_entries=1):
            yield

    for end in (lambda generator: next(generator, None), lambda generator: generator.close()):
        running = steps()
        next(running)
        with vyre.config(strict=True), vyre.config(pipeline_cache_entries=2):
            end(running)
            assert (ENTRIES.value(), STRICT.value()) == (2, True)
        assert (ENTRIES.value(), STRICT.value()) == (256, False)


def test_a_block_that_is_left_in_another_thread_changes_nothing_there(place):
    block, found = vyre.config(pipeline_cache_entries=1), []

    def elsewhere():
        block.__exit__()
        found.append(ENTRIES.value())
        with vyre.config(pipeline_cache_entries=2):
            block.__exit__()
            found.append(ENTRIES.value())

    with block:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert ENTRIES.value() == 1
    assert found == [256, 2]


@pytest.mark.parametrize(
    "given, error, text",
    [
        ({"bakend": "cpu"}, ArgumentTypeError, "config() has no setting 'bakend'. Fix: did you mean 'backend'? use"),
        ({"zzz": 1}, ArgumentTypeError, "config() has no setting 'zzz'. Fix: use one of: acquire_timeout, backend"),
        ({"cpu_thread": 1}, ArgumentTypeError, "has no setting 'cpu_thread'. Fix: did you mean 'cpu_threads'?"),
        ({"backend": 5}, ArgumentTypeError, "config(backend=5) is a int, and backend takes names of backends"),
        ({"backend": ""}, ArgumentValueError, "config(backend='') is not a list of backends"),
        ({"backend": "cpu,:1"}, ArgumentValueError, "config(backend='cpu,:1') is not a list of backends"),
        ({"backend": "cpu: "}, ArgumentValueError, "is not a list of backends"),
        ({"strict": 1}, ArgumentTypeError, "strict takes yes or no. Fix: give it true or false"),
        ({"strict": "yes"}, ArgumentTypeError, "config(strict='yes') is a str"),
        ({"shadow": 1.5}, ArgumentValueError, "config(shadow=1.5) is not a share of dispatches. Fix: set shadow to"),
        ({"shadow": True}, ArgumentTypeError, "config(shadow=True) is a bool"),
        ({"shadow": "0.5,loud"}, ArgumentValueError, "is not a share of dispatches"),
        ({"acquire_timeout": 0}, ArgumentValueError, "is not a time to wait"),
        ({"acquire_timeout": float("nan")}, ArgumentValueError, "is not a time to wait"),
        ({"acquire_timeout": "5"}, ArgumentTypeError, "acquire_timeout takes seconds. Fix: give it a number"),
        ({"cache_dir": ""}, ArgumentValueError, "config(cache_dir='') is not a folder. Fix: set cache_dir to the path"),
        ({"cache_dir": 3}, ArgumentTypeError, "cache_dir takes folder"),
        ({"cache_dir": "a\0b"}, ArgumentValueError, "is not a folder"),
        ({"acquire_timeout": 10**400}, ArgumentValueError, "is not a time to wait"),
        ({"shadow": 1 << 20_000}, ArgumentValueError, "config(shadow=(a number of 20001 bits)) is not a share of"),
        ({"pipeline_cache_entries": 10**19}, ArgumentValueError, "is not a positive whole number"),
        ({"pipeline_cache_entries": 0}, ArgumentValueError, "is not a positive whole number"),
        ({"pipeline_cache_bytes": 1.0}, ArgumentTypeError, "takes whole number. Fix: give it a whole number such as"),
        ({"cpu_threads": -1}, ArgumentValueError, "config(cpu_threads=-1) is not a positive whole number"),
    ],
)
def test_a_block_with_a_mistake_is_refused_before_it_begins(place, given, error, text):
    with pytest.raises(error) as caught:
        vyre.config(strict=None, **given) if "strict" not in given else vyre.config(**given)
    assert text in str(caught.value)
    assert "Fix: " in str(caught.value)
    assert pickle.loads(pickle.dumps(caught.value)) == caught.value


def test_show_lists_every_knob_with_its_origin(place, monkeypatch):
    monkeypatch.setenv("VYRE_STRICT", "on")
    (place / "vyre.toml").write_text("cpu_threads = 3")
    with vyre.config(shadow="0.5,log"):
        shown = {s.knob.name: s for s in vyre.config.show()}
    assert set(shown) >= {*settings.TABLE, "cpu_threads"}
    assert (shown["strict"].value, shown["strict"].origin) == (True, "VYRE_STRICT")
    assert (shown["cpu_threads"].value, shown["cpu_threads"].origin) == (3, str(place / "vyre.toml"))
    assert (shown["shadow"].value, str(shown["shadow"])) == (ShadowRate(0.5, ("log",)), "config(shadow='0.5,log')")
    assert shown["backend"].origin == "default"


# ---- the environment ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text, value", [("1", True), (" Yes ", True), ("off", False), ("0", False)])
def test_yes_and_no_have_several_words(place, monkeypatch, text, value):
    monkeypatch.setenv("VYRE_STRICT", text)
    assert seen(STRICT) == (value, "VYRE_STRICT")


@pytest.mark.parametrize("name", ["backend", "strict", "shadow", "acquire_timeout", "cache_dir"])
def test_an_empty_variable_counts_as_not_set(place, monkeypatch, name):
    knob = settings.TABLE[name]
    for text in ("", " "):
        monkeypatch.setenv(knob.variable, text)
        assert seen(knob) == (knob.default, "default")


def test_a_folder_from_a_variable_is_taken_as_it_is(place, monkeypatch):
    monkeypatch.setenv("VYRE_CACHE_DIR", "here")
    assert settings.CACHE_DIR.value() == "here"


def test_a_file_counts_at_once_where_the_variable_is_blank(place, monkeypatch):
    monkeypatch.setenv("VYRE_BACKEND", " ")
    with registry.isolated(*map(backend, "ab")):
        assert ran() == "a"
        (place / "vyre.toml").write_text('backend = "b"')
        assert ran() == "b"


def test_a_replaced_environment_is_read_too(place, monkeypatch):
    monkeypatch.setattr(os, "environ", {"VYRE_SHADOW": "0.5"})
    assert SHADOW.peek() == "0.5"
    assert SHADOW.value() == ShadowRate(0.5, ())


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)


@hypothesis_settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(sorted(settings.TABLE)), TEXTS)
def test_any_text_is_a_value_or_an_error_with_the_variable_and_a_fix(place, name, text):
    knob = settings.TABLE[name]
    blank = not text.strip() and knob.kind.blank_is_unset
    os.environ[knob.variable] = text
    try:
        if blank or knob.kind.parse(text) is not None:
            assert seen(knob) == ((knob.default, "default") if blank else (knob.kind.parse(text), knob.variable))
        else:
            with pytest.raises(ArgumentValueError) as caught:
                knob.setting()
            assert f"{knob.variable}={text!r} {knob.kind.complaint}" == caught.value.message
            assert "{" not in caught.value.fix
    finally:
        del os.environ[knob.variable]


@hypothesis_settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(["config", "variable", "project", "user"]), unique=True))
def test_whatever_is_set_the_nearest_wins(place, home, places):
    values = {"config": 1, "variable": 2, "project": 3, "user": 4}
    blocks = vyre.config(**({"pipeline_cache_entries": 1} if "config" in places else {}))
    if "variable" in places:
        os.environ[ENTRIES.variable] = "2"
    for file, who in ((place / "vyre.toml", "project"), (home, "user")):
        if who in places:
            file.write_text(f"pipeline_cache_entries = {values[who]}")
    try:
        with blocks:
            nearest = next((v for who, v in values.items() if who in places), 256)
            assert ENTRIES.value() == nearest
            assert (ENTRIES.peek() is None) == (not places)
    finally:
        os.environ.pop(ENTRIES.variable, None)
        for file in (place / "vyre.toml", home):
            file.unlink(missing_ok=True)


# ---- files ----------------------------------------------------------------------------------------------------------


def test_the_way_up_ends_at_the_first_file_or_the_repository(place, monkeypatch):
    deep = place / "a" / "b"
    deep.mkdir(parents=True)
    (place.parent / "vyre.toml").write_text("pipeline_cache_entries = 1")  # above the repository
    monkeypatch.chdir(deep)
    assert seen() == (256, "default")
    (place / "vyre.toml").write_text("pipeline_cache_entries = 2\nstrict = true")
    assert seen() == (2, str(place / "vyre.toml"))
    (place / "a" / "pyproject.toml").write_text("[project]\nname = 'vyre-user'\n[tool.other]\nx = 1")
    assert seen()[0] == 2, "a project file without our table is passed by"
    (place / "a" / "pyproject.toml").write_text("[tool.vyre]\npipeline_cache_entries = 3")
    assert seen() == (3, str(place / "a" / "pyproject.toml"))
    assert seen(STRICT)[0] is False, "a file further up adds nothing"
    (place / "a" / "vyre.toml").write_text("pipeline_cache_entries = 4")
    assert seen() == (4, str(place / "a" / "vyre.toml"))
    (deep / "vyre.toml").mkdir()
    assert seen()[0] == 4, "a folder is no file"
    (place / ".git").rmdir()
    (place / ".git").write_text("gitdir: elsewhere")  # as a worktree has it
    (place / "a" / "vyre.toml").unlink()
    (place / "a" / "pyproject.toml").unlink()
    (place / "vyre.toml").unlink()
    assert seen() == (256, "default")
    (place / ".git").unlink()
    assert seen() == (1, str(place.parent / "vyre.toml"))


def test_the_users_file_fills_in_what_the_project_leaves_out(place, home):
    (place / "vyre.toml").write_text("pipeline_cache_entries = 2")
    home.write_text("pipeline_cache_entries = 3\nstrict = true")
    assert seen() == (2, str(place / "vyre.toml"))
    assert seen(STRICT) == (True, str(home))


def test_a_folder_in_a_file_begins_at_the_file_or_at_home(place, monkeypatch):
    (place / "sub").mkdir()
    monkeypatch.chdir(place / "sub")
    monkeypatch.setenv("HOME", str(place / "me"))
    monkeypatch.setenv("USERPROFILE", str(place / "me"))
    for text, path in (("c", place / "c"), ("~/c", place / "me" / "c"), (str(place / "x"), place / "x")):
        (place / "vyre.toml").write_text(f"cache_dir = '{text}'")
        assert settings.CACHE_DIR.value() == str(path)


def test_a_current_folder_that_is_gone_has_no_file(place, monkeypatch):
    def gone():
        raise FileNotFoundError

    monkeypatch.setattr(os, "getcwd", gone)
    assert seen() == (256, "default")


FILE_MISTAKES = {
    "bakend = 'cpu'": "has no setting 'bakend'. Fix: did you mean 'backend'?",
    "strict = 'perhaps'": "strict='perhaps' in {file} is a str, and strict takes yes or no. Fix: give it true or false",
    "shadow = 2": "shadow=2 in {file} is not a share of dispatches. Fix: set shadow to a number from 0 to 1",
    "backend = ['cpu']": "backend=['cpu'] in {file} is a list, and backend takes names of backends",
    "backend.id = 'cpu'": "is a dict, and backend takes names of backends",
    "cpu_threads = 0": "cpu_threads=0 in {file} is not a positive whole number. Fix: set cpu_threads=1 or more",
    "cache_dir = ''": "cache_dir='' in {file} is not a folder. Fix: set cache_dir to the path of a folder",
    "cpu_threads = 0x1" + "0" * 5000: "cpu_threads=(a number of 20001 bits) in {file} is not a positive whole number",
    "cpu_cores = 0": "{file} has no setting 'cpu_cores'",
    "strict = ": "{file} is not TOML: Invalid value (at line {line}, column 10). Fix: correct it at that place",
    "strict = 1; shadow = 1": "{file} is not TOML: Expected newline or end of document after a statement (at",
}


@pytest.mark.parametrize("text", FILE_MISTAKES)
@pytest.mark.parametrize("name, head", [("vyre.toml", ""), ("pyproject.toml", "[tool.vyre]\n")])
def test_a_mistake_in_a_file_is_told_once_with_its_key_and_stops_nothing(place, caplog, name, head, text):
    whole = text.startswith("strict = ") and "'" not in text  # no TOML
    (place / name).write_text(f"{head}{text}\npipeline_cache_entries = 2\n")
    for _ in range(2):
        assert ENTRIES.value() == (256 if whole else 2)
        assert (ENTRIES.peek() is None) == whole
        assert double.on("reference")(X).tolist() == [0, 2, 4, 6]
    (told,) = caplog.records
    assert (told.name, told.levelname) == ("vyre.settings", "WARNING")
    assert FILE_MISTAKES[text].format(file=place / name, line=2 if head else 1) in told.getMessage()
    assert "Fix: " in told.getMessage()
    found = settings.files()
    assert [(str(p), p.path) for p in found.problems] == [(told.getMessage(), str(place / name))]
    assert found.project == str(place / name)
    (place / name).write_text(f"{head}strict = true")
    assert seen(STRICT)[0] is True
    assert settings.files().problems == ()
    assert len(caplog.records) == 1


def test_what_is_wrong_in_the_projects_file_is_taken_from_the_users(place, home, caplog):
    (place / "vyre.toml").write_text("pipeline_cache_entries = 0\nstrict = true")
    home.write_text("pipeline_cache_entries = 3\nshadow = 7")
    assert (seen(), seen(STRICT)) == ((3, str(home)), (True, str(place / "vyre.toml")))
    assert seen(SHADOW) == (ShadowRate(0.0, ()), "default")
    assert len(caplog.records) == 2


def test_a_file_that_is_no_toml_ends_the_way_up(place, monkeypatch, caplog):
    (place / "sub").mkdir()
    (place / "vyre.toml").write_text("pipeline_cache_entries = 2")
    (place / "sub" / "vyre.toml").write_text("no toml at all")
    monkeypatch.chdir(place / "sub")
    assert seen() == (256, "default")
    assert "sub" in caplog.text


@hypothesis_settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.binary(max_size=64), st.text(max_size=64).map(lambda text: text.encode("utf-8", "replace"))))
@example(b"[" * 100_000)
@example(b"cache_dir = " + b"[" * 2000 + b"]" * 2000)
@example(b"strict = " + b"{a=" * 500 + b"1" + b"}" * 500)
@example(b"shadow = nan\nacquire_timeout = inf\npipeline_cache_entries = " + b"9" * 5000)
@example(b"backend = 1979-05-27T07:32:00Z\n[strict]\nshadow = 1\n[[cpu_threads]]\n")
@example(b"\xef\xbb\xbfstrict = true")
@example(b"\0" * 64)
def test_no_file_stops_a_call_whatever_it_holds(place, blob):
    (place / "vyre.toml").write_bytes(blob)
    for knob in (*settings.TABLE.values(), settings.find_knob("cpu_threads")):
        knob.value()
    assert double.on("reference")(X).tolist() == [0, 2, 4, 6]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
def test_a_pipe_or_a_folder_in_place_of_a_file_is_no_file(place, home, caplog):
    os.mkfifo(place / "vyre.toml")
    home.mkdir()
    os.mkfifo(place / "pyproject.toml")
    assert seen() == (256, "default")
    assert not caplog.records


# ---- files of others


OTHERS = "so its settings are not obeyed. Fix: let it belong to this user and be written by no other"


@pytest.mark.skipif(os.name == "nt", reason="mode bits say nothing there")
@pytest.mark.parametrize(
    "mode, group, owner, why",
    [
        (0o644, "mine", "me", None),
        (0o600, "other", "me", None),
        (0o664, "mine", "me", None),
        (0o644, "other", "root", None),
        (0o664, "other", "me", "can be written by others"),
        (0o646, "mine", "me", "can be written by others"),
        (0o622, "mine", "root", "can be written by others"),
        (0o664, "other", "root", "can be written by others"),
        (0o444, "mine", "other", "belongs to another user"),
        (0o666, "mine", "other", "belongs to another user"),
    ],
)
@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("name", ["vyre.toml", "pyproject.toml", "config.toml"])
def test_a_file_is_obeyed_where_no_other_user_can_have_written_it(
    place, home, monkeypatch, caplog, name, mode, group, owner, why, linked
):
    path = home if name == "config.toml" else place / name
    target = place / "elsewhere" if linked else path
    target.write_text(("[tool.vyre]\n" if name == "pyproject.toml" else "") + "pipeline_cache_entries = 2")
    if linked:
        path.symlink_to(target)
    ids = {"me": os.geteuid(), "mine": os.getegid(), "root": 0, "other": 12345}
    real = os.fstat

    def fstat(descriptor):
        info = list(real(descriptor))
        if info[1] == target.stat().st_ino:
            info[0], info[4], info[5] = 0o100000 | mode, ids[owner], ids[group]
        return os.stat_result(info)

    monkeypatch.setattr(settings_files.os, "fstat", fstat)
    (place.parent / "vyre.toml").write_text("strict = true")
    (place / ".git").rmdir()
    for _ in range(2):
        assert seen() == ((2, str(path)) if why is None else (256, "default"))
    assert STRICT.value() is (why is not None or path is home), "the next one on the way up holds"
    assert [r.getMessage() for r in caplog.records if str(path) in r.getMessage()] == (
        [] if why is None else [f"{path} {why}, {OTHERS} (chmod go-w), or remove it"]
    )


@pytest.mark.skipif(os.name == "nt", reason="mode bits say nothing there")
def test_a_file_that_others_can_write_is_obeyed_once_they_no_longer_can(place, caplog):
    file = place / "vyre.toml"
    file.write_text("pipeline_cache_entries = 2")
    file.chmod(0o646)
    assert seen() == (256, "default")
    assert "can be written by others" in caplog.text
    file.chmod(0o644)
    assert seen() == (2, str(file))
    assert settings.files().problems == ()


def test_a_project_of_others_that_is_not_about_us_is_not_mentioned(place, monkeypatch, caplog):
    (place / "pyproject.toml").write_text("[project]\nname = 'x'")
    monkeypatch.setattr(settings_files, "_others", lambda info: "belongs to another user")
    assert seen() == (256, "default")
    assert not caplog.records


@pytest.mark.parametrize(
    "text",
    [
        "[tool.vyre]\npipeline_cache_entries = 2",
        "[ tool . 'vyre' ]\npipeline_cache_entries = 2",
        '["tool"."vyre"]\npipeline_cache_entries = 2',
        "[tool]\nvyre.pipeline_cache_entries = 2",
        "tool.vyre.pipeline_cache_entries = 2",
        "tool = {vyre = {pipeline_cache_entries = 2}}",
        "[tool.other]\nx = 1\n[tool.vyre]\npipeline_cache_entries = 2",
    ],
)
def test_the_table_may_be_written_in_every_way_of_toml(place, text):
    (place / "pyproject.toml").write_text(text)
    assert seen() == (2, str(place / "pyproject.toml"))


def test_a_project_that_is_not_about_us_is_not_even_parsed(place, monkeypatch):
    monkeypatch.setitem(sys.modules, "tomllib", None)
    (place / "pyproject.toml").write_text("[project]\nname = 'x'\ndependencies = ['vyre']\n[tool.ruff]\nx = 1")
    assert seen() == (256, "default")
    (place / "pyproject.toml").write_text("[tool.vyre]")
    with pytest.raises(ImportError):
        ENTRIES.value()


def problem():
    """The only thing that is wrong with the files."""
    assert seen() == (256, "default")
    (found,) = settings.files().problems
    return str(found)


def test_tool_vyre_must_be_a_table(place):
    (place / "pyproject.toml").write_text("[tool]\nvyre = 1")
    assert re.search(r"tool.vyre=1 in .*pyproject.toml is not a table.*Fix: write a table", problem())
    (place / "pyproject.toml").write_text("tool = 1\n# vyre")
    assert seen() == (256, "default")


def test_bytes_that_are_no_text_and_files_that_are_too_long_are_refused(place):
    (place / "vyre.toml").write_bytes(b"\xff\xfe")
    assert "is not TOML: 'utf-8' codec" in problem()
    (place / "vyre.toml").write_bytes(b"#" * (settings_files.MAX_BYTES + 1))
    assert re.search(r"is longer than 1048576 bytes.*Fix: keep only settings", problem())
    (place / "vyre.toml").write_bytes(b"#" * settings_files.MAX_BYTES)
    assert seen() == (256, "default")


def test_a_file_that_cannot_be_read_is_passed_by(place, monkeypatch):
    (place / "vyre.toml").write_text("strict = true")

    def denied(*args, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", denied)
    assert re.search(r"vyre.toml cannot be read: Permission denied.*Fix: let this user", problem())


def test_a_file_is_read_again_once_its_permissions_have_changed(place, monkeypatch):
    file = place / "vyre.toml"
    file.write_text("pipeline_cache_entries = 2")
    with monkeypatch.context() as denying:
        denying.setattr("builtins.open", lambda *args, **options: os.open(place / "none", os.O_RDONLY))
        assert "cannot be read" in problem()
    time.sleep(0.02)  # more than a tick of the file system's clock
    file.chmod(0o600 if file.stat().st_mode & 0o777 != 0o600 else 0o644)
    assert ENTRIES.value() == 2


def test_what_a_nearer_place_sets_needs_no_file(place):
    (place / "vyre.toml").write_text("no toml at all")
    with vyre.config(pipeline_cache_entries=2):
        assert ENTRIES.value() == 2


def test_files_are_looked_at_once_a_second(place, monkeypatch):
    now, looks = [100.0], []
    real = settings_files.look
    monkeypatch.setattr(settings, "_clock", lambda: now[0])
    monkeypatch.setattr(settings, "look", lambda *args: looks.append(now[0]) or real(*args))
    monkeypatch.setattr(settings, "LOOK_EVERY_S", 1.0)
    monkeypatch.setattr(settings, "_next_look", 0.0)
    assert ENTRIES.value() == 256
    (place / "vyre.toml").write_text("pipeline_cache_entries = 2")
    now[0] = 100.9
    assert (ENTRIES.value(), ENTRIES.peek()) == (256, None)
    now[0] = 101.0
    assert (ENTRIES.peek(), ENTRIES.value()) == (2, 2)
    assert looks == [100.0, 101.0]


def test_a_file_that_did_not_change_is_not_read_again(place, monkeypatch):
    (place / "vyre.toml").write_text("pipeline_cache_entries = 2")
    assert ENTRIES.value() == 2
    monkeypatch.setattr(settings_files, "_table", lambda path: pytest.fail("it was read again"))
    assert ENTRIES.value() == 2


def test_threads_that_ask_during_the_first_look_wait_for_what_the_files_say(place, monkeypatch):
    (place / "vyre.toml").write_text("pipeline_cache_entries = 2")
    meet, found = threading.Barrier(2, timeout=30), []
    real = settings_files.look

    def slow(*args):
        if not found:
            meet.wait()
        return real(*args)

    monkeypatch.setattr(settings, "look", slow)
    monkeypatch.setattr(settings, "LOOK_EVERY_S", 1000.0)
    monkeypatch.setattr(settings, "_files", settings_files.UNREAD)
    monkeypatch.setattr(settings, "_found", {})
    monkeypatch.setattr(settings, "_next_look", 0.0)
    threads = [threading.Thread(target=lambda: found.append(ENTRIES.value())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [2, 2]


def test_a_setting_is_whole_while_another_thread_finds_other_files(place, monkeypatch):
    (place / "vyre.toml").write_text("pipeline_cache_entries = 2")

    class Changing(dict):
        def get(self, name, default=None):
            found = super().get(name, default)
            monkeypatch.setattr(settings, "_files", settings_files.UNREAD)
            return found

    settings.refresh()
    monkeypatch.setattr(settings, "LOOK_EVERY_S", 1000.0)
    settings.refresh()
    monkeypatch.setattr(settings, "_files", settings._files._replace(values=Changing(pipeline_cache_entries=2)))
    assert seen() == (2, str(place / "vyre.toml"))


# ---- knobs of backends ----------------------------------------------------------------------------------------------

CORES = Knob("mine_cores", COUNT, default=1, meaning="How many cores.", read="when the backend is opened")


def test_a_backend_brings_its_own_knob(place, monkeypatch):
    with registry.isolated(BackendRegistration(id="mine", open=backend("m").open, knobs=(CORES,))):
        assert settings.find_knob("mine_cores") is CORES
        assert settings.all_knobs()["mine_cores"] is CORES
        (place / "vyre.toml").write_text("mine_cores = 2")
        assert CORES.value() == 2
        monkeypatch.setenv("VYRE_MINE_CORES", "3")
        assert CORES.value() == 3
        with vyre.config(mine_cores=4):
            assert CORES.value() == 4
    assert settings.find_knob("mine_cores") is None


def test_a_file_may_name_a_knob_of_a_backend_that_comes_later_or_goes(place):
    (place / "vyre.toml").write_text("mine_cores = 2")
    for _ in range(2):
        assert "has no setting 'mine_cores'" in problem()
        with registry.isolated(BackendRegistration(id="mine", open=backend("m").open, knobs=(CORES,))):
            assert (STRICT.value(), CORES.value()) == (False, 2)


def test_a_backend_that_reads_a_setting_while_it_is_loaded_for_its_knob_does_not_loop(place):
    asked = []

    def load():
        asked.append(ENTRIES.value())
        return BackendRegistration(id="mine", open=backend("m").open, precedence=1, knobs=(CORES,))

    (place / "vyre.toml").write_text("mine_cores = 2")
    with registry.isolated():
        registry._current._table = registry._Registry(lambda _: [registry.BackendListing("mine", 1, load)]).table()
        assert CORES.value() == 2
    assert asked == [256]


def test_a_knob_that_is_not_named_after_its_backend_disables_it(place):
    with registry.isolated(BackendRegistration(id="other", open=backend("o").open, knobs=(CORES,))):
        (listing,) = registry.registered_backends()
        assert listing.problem() == "the name of its knob 'mine_cores' does not begin with other_"
        assert settings.find_knob("mine_cores") is None
        assert "mine_cores" not in settings.all_knobs()


def test_only_the_backend_that_a_name_begins_with_is_loaded(place):
    loaded = []

    def listing(id):
        return registry.BackendListing(id, 1, lambda: loaded.append(id) or backend(id[0]))

    registered = registry._Registry(lambda _: [listing("aa"), listing("bb")])
    with registry.isolated():
        registry._current._table = registered.table()
        assert settings.find_knob("bb_x") is None
        assert settings.find_knob("backend") is settings.BACKEND
    assert loaded == ["bb"]


# ---- the table, its page, and what it costs -------------------------------------------------------------------------


def test_every_knob_says_what_it_is(place):
    for name, knob in settings.all_knobs().items():
        assert (knob.name, knob.variable) == (name, f"VYRE_{name.upper()}")
        assert knob.meaning.endswith(".")
        assert knob.without
        assert knob.read
        assert repr(knob) == f"<knob {name}>"
        assert knob.default is None or knob.kind is not FOLDER


def test_the_page_of_knobs_is_the_table():
    spec = importlib.util.spec_from_file_location("render_knobs", ROOT / "docs" / "render_knobs.py")
    render_knobs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(render_knobs)
    written = (ROOT / "docs" / "reference" / "knobs.md").read_text("utf-8")
    assert written == render_knobs.render(), "run python docs/render_knobs.py"
    for name in settings.all_knobs():
        assert f"\n## {name}\n" in written


def test_importing_vyre_reads_no_file_and_loads_no_reader():
    code = "import sys, vyre, vyre.driver; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {"tomllib", "platformdirs", "difflib"}.isdisjoint(loaded)
    code = "import sys, vyre; vyre.config(backend='cpu'); print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {"tomllib", "platformdirs", "numpy", "importlib.metadata", "dataclasses"}.isdisjoint(loaded)


@pytest.mark.parametrize("xdg", [None, "", " ", "/somewhere/else"])
@pytest.mark.parametrize("platform", ["linux", "other"])
def test_the_users_file_lies_in_the_platforms_folder(monkeypatch, platform, xdg):
    if xdg is None:
        monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    else:
        monkeypatch.setenv("XDG_CONFIG_HOME", xdg)
    monkeypatch.setattr(settings_files.sys, "platform", platform)
    path = Path(settings_files.user_path())
    assert path == Path(platformdirs.user_config_dir("vyre", appauthor=False)) / "config.toml"
    assert path.is_absolute()
