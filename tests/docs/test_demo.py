"""The demo: one answer on every backend that is here, a race with both its lines, and a report that stands alone."""

import base64
import io
import json
import os
import re
import signal
import subprocess
import sys
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from vyre.backends.reference.backend import ReferenceBackend
from vyre.driver.contract import BackendRegistration
from vyre.driver.selection.registry import isolated
from vyre.errors import DispatchFailed

from ..support.cli_tool import started
from ..support.device_backends import REQUIRED

pytestmark = pytest.mark.check

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPT = EXAMPLES / "demo.py"


def ran(*arguments, **environment):
    """The demo as somebody runs it."""
    environment = {**os.environ, "PYTHONWARNINGS": "error", **environment}
    command = [sys.executable, str(SCRIPT), "--quick", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100)


@pytest.fixture(scope="module")
def modules():
    """The files of the demo, which find each other as they do when it runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLES)
        yield {name: import_module(name) for name in ("demo", "demo_program", "demo_peers", "demo_report", "nbody")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run on everything that is here, and what it says as JSON."""
    folder = tmp_path_factory.mktemp("demo")
    done = ran("--json", "--output", str(folder))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# ---- what it finds --------------------------------------------------------------------------------------------------


def test_every_backend_gives_the_same_bytes(whole):
    rows = whole["answers"]
    assert all(row["error"] is None for row in rows)
    assert len({row["blake3"] for row in rows}) == 1
    assert re.fullmatch("[0-9a-f]{64}", rows[0]["blake3"])
    assert whole["same"] is True
    assert whole["verdict"] == f"{len(rows)} of {len(rows)} gave the same bytes"


def test_every_backend_is_a_row_or_absent_with_a_reason(whole):
    here = {row["backend"].partition(":")[0] for row in whole["answers"]}
    absent = {row["backend"]: row["reason"] for row in whole["absent"]}
    assert here | absent.keys() >= {"cuda", "wgpu", "opencl", "cpu", "reference"}
    assert here >= {"cpu", "reference"} | REQUIRED
    assert not here & absent.keys()
    assert all(absent.values())


def test_numpy_is_held_against_the_same_steps(whole):
    row = whole["peers"][0]
    assert (row["name"], row["error"]) == ("numpy", None)
    assert re.fullmatch(r"step \d+|the price|nowhere", row["departs"])
    assert (row["blake3"] == whole["answers"][0]["blake3"]) == (row["departs"] == "nowhere")
    assert row["price"] == pytest.approx(
        whole["answers"][0]["price"], rel=1e-3
    )  # 60 steps: the bits have not grown yet


def test_the_race_names_both_lines_of_the_source(whole):
    race = whole["race"]
    source = (EXAMPLES / race["file"]).read_text("utf-8").splitlines()
    assert {side["kind"] for side in race["sides"]} == {"load", "store"}
    assert len({side["line"] for side in race["sides"]}) == 2
    for side in race["sides"]:
        assert source[side["line"] - 1].strip() == side["text"]
        assert "tile[" in side["text"]
    assert len({tuple(side["invocation"]) for side in race["sides"]}) == 2
    assert "barrier" in race["fix"]
    assert race["races_when_repaired"] == 0


def test_one_backend_is_chosen_and_every_other_has_a_reason(whole):
    (first, why), *others = whole["selection"]["reasons"]
    assert first == whole["selection"]["chosen"]
    assert why.startswith("chosen: ")
    assert len(others) == 4
    assert all(reason for _, reason in others)
    assert "decisions:" in whole["selection"]["plan"]


def test_every_answer_has_its_times(whole):
    assert [c["backend"] for c in whole["calls"]] == [a["backend"] for a in whole["answers"]]
    assert all(0 < c[key] < 60 for c in whole["calls"] for key in ("first", "warm", "many"))


def test_the_orbits_are_those_of_the_example(modules):
    program, nbody = modules["demo_program"], modules["nbody"]
    position, _ = nbody.solve(*program.beginning(), program.DT, 20, "cpu")
    assert program.compute("cpu", 20).trail[-1].tobytes() == position.tobytes()


def test_the_bodies_start_with_their_centre_at_rest_in_the_origin(modules):
    mass, *moving = modules["demo_program"].beginning()
    for state in moving:
        assert abs(mass @ state).max() < 1e-6
        assert abs(state).max() > 0.1


def test_a_departure_is_the_first_step_with_another_bit(modules):
    peers, answer = modules["demo_peers"], modules["demo_program"].Answer
    ours = answer(np.ones((5, 2, 3), np.float32), np.ones(2, np.float32))
    other = np.nextafter(np.float32(1), np.float32(2))

    def theirs(step=None, calls=ours.calls):
        trail = ours.trail.copy()
        if step is not None:
            trail[step:, 1, 2] = other
        return answer(trail, calls)

    assert peers.departs(ours, theirs()) == "nowhere"
    assert peers.departs(ours, theirs(step=0)) == "step 1"
    assert peers.departs(ours, theirs(step=4)) == "step 5"
    assert peers.departs(ours, theirs(calls=np.array([1, other]))) == "the price"


# ---- the report -----------------------------------------------------------------------------------------------------

VOID = {"meta", "img", "br"}


class Page(HTMLParser):
    """Elements with their attributes and ancestors; an end that does not match its start fails."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.texts = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs), [(t, dict(a)) for t, a in self.open]))
        if tag not in VOID:
            self.open.append((tag, attrs))

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> ends nothing"
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        self.texts.append(data)

    def all(self, *tags):
        return [(attrs, above) for tag, attrs, above in self.elements if tag in tags]


@pytest.fixture(scope="module")
def page(whole):
    return Page(Path(whole["report"]).read_text("utf-8"))


def test_the_report_needs_nothing_from_elsewhere(whole, page):
    text = Path(whole["report"]).read_text("utf-8")
    assert page.all("script", "link", "iframe", "object", "base") == []
    for _, attrs, _ in page.elements:
        assert not attrs.keys() & {"href", "srcset", "style", "onload"}
        assert attrs.get("src", "data:image/png;").startswith("data:image/png;")
    css = text[text.index("<style>") : text.index("</style>")]
    assert "url(" not in css
    assert "@import" not in css


def test_the_report_has_a_light_and_a_dark_scheme_and_prints(page):
    css = next(text for text in page.texts if "prefers-color-scheme" in text)
    light, dark = css.split("@media (prefers-color-scheme: dark)")
    names = set(re.findall(r"(--\w+):", light))
    assert names == set(re.findall(r"(--\w+):", dark.split("}")[0]))
    assert set(re.findall(r"var\((--\w+)\)", css)) == names
    assert "@media print" in css


def luminance(colour):
    channels = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_every_ink_of_the_report_can_be_read_on_its_paper(modules, scheme):
    blocks = re.findall(r":root \{[^}]*\}", modules["demo_report"].CSS)
    colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", blocks[scheme]))
    for paper in ("paper", "panel"):
        for ink in ("ink", "soft", "link", "good", "bad"):
            low, high = sorted(map(luminance, (colours[paper], colours[ink])))
            assert (high + 0.05) / (low + 0.05) >= 4.5, (paper, ink)


def test_whatever_is_wide_in_the_report_scrolls_by_itself(page):
    assert len(page.all("table")) == 5
    for _, above in page.all("table", "pre"):
        _, attrs = above[-1]
        assert (attrs["class"], attrs["role"], attrs["tabindex"]) == ("scroll", "region", "0")
        assert attrs["aria-label"]


def test_the_report_can_be_heard(page):
    assert page.all("html")[0][0]["lang"] == "en"
    assert len(page.all("h1")) == len(page.all("title")) == len(page.all("main")) == 1
    assert len(page.all("caption")) == len(page.all("table"))
    assert {attrs["scope"] for attrs, _ in page.all("th")} == {"row", "col"}
    assert [len(attrs["alt"]) > 20 for attrs, _ in page.all("img")] == [True]


def test_the_report_shows_what_was_found(whole, page):
    text = "".join(page.texts)
    for row in whole["answers"]:
        assert row["backend"] in text
        assert row["device"] in text
    assert whole["answers"][0]["blake3"] in text
    assert whole["race"]["sides"][0]["text"] in text
    assert whole["environment"]["processor"] in text
    for source in whole["kernels"].values():
        assert source in text
    for word in ("option is priced", "Departs at: "):  # a reader has seen no other page
        assert word in text


def test_the_picture_is_in_the_report_and_beside_it(whole, page):
    ((image, _),) = page.all("img")
    inline = base64.b64decode(image["src"].partition(",")[2], validate=True)
    assert inline == Path(whole["picture"]).read_bytes()
    picture = pytest.importorskip("PIL.Image").open(io.BytesIO(inline))
    picture.load()
    assert (picture.size, picture.mode) == ((960, 600), "RGB")
    assert len(picture.getcolors(1 << 20)) > 100


def test_a_png_gives_its_pixels_back(modules):
    pixels = np.random.default_rng(5).integers(0, 256, (7, 11, 3), dtype=np.uint8)
    again = pytest.importorskip("PIL.Image").open(io.BytesIO(modules["demo_report"].png(pixels)))
    assert np.array_equal(np.asarray(again), pixels)


def hostile(value):
    """The same data with markup in every text of it."""
    match value:
        case dict():
            return {key: hostile(item) for key, item in value.items()}
        case list():
            return [hostile(item) for item in value]
        case str() if not re.fullmatch("[0-9a-f]{64}", value):
            return f"</td></pre><script>'\"&{value}"
    return value


def test_markup_from_the_machine_is_text_in_the_report(modules, whole, page):
    data = hostile({**whole, "absent": [{"backend": "other", "reason": "gone"}]})
    data["answers"].append({**data["answers"][0], "error": "<b>broken</b>", "blake3": None})
    data["peers"].append({**data["peers"][0], "error": "<b>broken</b>", "blake3": None})
    again = Page(modules["demo_report"].render(data, b"\x89PNG"))
    assert again.all("script", "b") == []
    assert "<script>" in "".join(again.texts)
    assert len(again.all("table")) == len(page.all("table"))


def test_a_report_without_an_answer_has_no_picture(modules, whole):
    data = {**whole, "answers": [], "peers": [], "calls": [], "same": False, "verdict": "no backend ran the program"}
    again = Page(modules["demo_report"].render(data, None))
    assert again.all("img") == []
    assert "no backend ran the program" in "".join(again.texts)


# ---- how it behaves -------------------------------------------------------------------------------------------------


def in_process(modules, capsys, tmp_path, *arguments):
    status = modules["demo"].main(["--quick", "--json", "--output", str(tmp_path / "made" / "here"), *arguments])
    return status, json.loads(capsys.readouterr().out)


def test_named_backends_are_the_only_rows(modules, capsys, tmp_path):
    status, data = in_process(modules, capsys, tmp_path, "--backend", "reference", "--backend", "cpu: 0")
    assert status == 0
    assert [row["backend"] for row in data["answers"]] == ["reference", "cpu: 0"]
    assert data["absent"] == []
    assert data["drawn_by"] == "reference"
    assert Path(data["report"]).parent == tmp_path / "made" / "here"


class Failing(ReferenceBackend, contract=1):
    id = "failing"

    def dispatch(self, program, inputs, config=None, *, out=None):
        raise DispatchFailed("its device is on fire", fix="put it out")

    def compile_native(self, program, config):
        return None


class Wrong(ReferenceBackend, contract=1):
    """Flips a bit in the last word of every result."""

    id = "wrong"

    def dispatch(self, program, inputs, config=None, *, out=None):
        found = super().dispatch(program, inputs, config, out=out)
        for buffer in found:
            memoryview(buffer).cast("B")[-4] ^= 1
        return found

    def compile_native(self, program, config):
        return None


def registered(*classes):
    return isolated(*(BackendRegistration(id=c.id, open=lambda device=None, c=c: c()) for c in classes))


def test_a_backend_that_fails_is_a_row_and_the_others_go_on(modules, capsys, tmp_path):
    with registered(Failing, ReferenceBackend):
        status, data = in_process(modules, capsys, tmp_path, "--backend", "failing", "--backend", "reference")
    assert status == 0
    failed, right = data["answers"]
    assert failed["error"].startswith("DispatchFailed: its device is on fire")
    assert failed["error"].endswith("Fix: put it out")
    assert right["error"] is None
    assert data["verdict"] == "1 of 2 gave the same bytes"


class Unartistic(ReferenceBackend, contract=1):
    """Cannot draw."""

    id = "unartistic"

    def dispatch(self, program, inputs, config=None, *, out=None):
        if any(buffer.name == "light" for buffer in program.buffers):
            raise DispatchFailed("its pen is dry", fix="fill it")
        return super().dispatch(program, inputs, config, out=out)

    def compile_native(self, program, config):
        return None


def test_a_backend_that_fails_at_the_picture_leaves_a_report_without_it(modules, capsys, tmp_path):
    with registered(Unartistic):
        status, data = in_process(modules, capsys, tmp_path, "--backend", "unartistic")
    assert status == 0
    assert data["picture"].startswith("no picture: its pen is dry")
    assert Page(Path(data["report"]).read_text("utf-8")).all("img") == []


def test_different_answers_are_an_exit_status_of_one(modules, capsys, tmp_path):
    with registered(Wrong, ReferenceBackend):
        status, data = in_process(modules, capsys, tmp_path, "--backend", "reference", "--backend", "wrong")
    assert status == 1
    assert data["verdict"] == "2 backends gave 2 answers"


def test_no_answer_is_an_exit_status_of_one(modules, capsys, tmp_path):
    with registered(Failing):
        status, data = in_process(modules, capsys, tmp_path, "--backend", "failing")
    assert status == 1
    assert data["verdict"] == "no backend ran the program"
    assert "picture" not in data


@pytest.mark.parametrize("name", ["abacus", "cpu:abacus"])
def test_a_backend_that_is_not_there_is_wrong_usage_with_a_fix(name):
    done = ran("--backend", name)
    assert done.returncode == 2
    assert "Fix: " in done.stderr
    assert "Traceback" not in done.stderr
    assert "abacus" in done.stderr


def test_a_folder_that_cannot_be_made_is_wrong_usage_with_a_fix(modules, capsys, tmp_path):
    (tmp_path / "made").write_text("a file")
    with pytest.raises(SystemExit) as ended:
        in_process(modules, capsys, tmp_path)
    assert ended.value.code == 2
    assert "Fix: name a folder that can be made" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform != "linux", reason="a folder that nobody can write to")
def test_a_folder_that_cannot_be_written_to_is_wrong_usage_before_any_work():
    done = ran("--output", "/proc")
    assert (done.returncode, done.stdout) == (2, "")
    assert "Fix: name a folder that can be made and written to" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_report_that_cannot_be_written_after_all_is_an_error_without_a_traceback(modules, capsys, tmp_path):
    (tmp_path / "report.html").mkdir()
    assert modules["demo"].main(["--quick", "--backend", "reference", "--output", str(tmp_path)]) == 1
    assert "report.html" in capsys.readouterr().err


def test_a_variable_may_hold_bytes_that_are_no_text(tmp_path):
    done = ran("--backend", "reference", "--output", str(tmp_path), VYRE_X="\udcff<b>")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\udcff&lt;b&gt;" in (tmp_path / "report.html").read_text("utf-8")


def test_a_setting_with_a_mistake_is_an_error_with_its_fix(tmp_path):
    done = ran("--backend", "cpu", "--output", str(tmp_path), VYRE_CPU_THREADS="many")
    assert done.returncode == 2
    assert done.stderr.startswith("error: VYRE_CPU_THREADS='many' is not a positive whole number. Fix: set VYRE_CPU_")


@pytest.mark.parametrize("width", [40, 100])
def test_a_screen_of_any_width_and_alphabet_is_kept_to(width, tmp_path):
    arguments = "--backend", "cpu", "--output", str(tmp_path / "d")
    done = ran(*arguments, COLUMNS=str(width), PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= width
    assert "\x1b" not in done.stdout
    shown = " ".join(done.stdout.split())
    for part in ("One answer", "gave the same bytes", "A race, found", "First and warm calls", "What to try next"):
        assert part in shown
    assert len([line for line in lines if re.fullmatch(r"  cpu .* [0-9a-f]{16}", line)]) == 1


def test_no_colour_is_used_where_none_is_wanted(tmp_path):
    arguments = "--backend", "cpu", "--output", str(tmp_path)
    assert "\x1b[3" in ran(*arguments, FORCE_COLOR="1", NO_COLOR="").stdout
    assert "\x1b[3" not in ran(*arguments, FORCE_COLOR="1", NO_COLOR="1").stdout


def test_ctrl_c_ends_it_without_a_traceback(tmp_path):
    command = [sys.executable, "-u", str(SCRIPT), "--backend", "reference", "--output", str(tmp_path)]
    with started(command) as running:
        while "backend" not in running.stdout.readline():  # the heads of the table: the work begins
            assert running.poll() is None
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=60)
    assert running.returncode == 130
    assert said == "stopped\n"
