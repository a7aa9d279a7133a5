"""The documentation site: it builds without a warning, everything has an address, and nothing comes from elsewhere."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import vyre
from vyre.cli import app
from vyre.driver.settings.knobs import all_knobs

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@cache
def renderer(name: str):
    """One of the scripts in docs that write pages."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---- pages made from the code ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["render_api", "render_ops", "render_cli"])
def test_a_generated_page_is_up_to_date(name):
    made = renderer(name)
    assert made.PAGE.read_text("utf-8") == made.render(), f"run python docs/{name}.py"


def test_the_page_of_names_has_each_of_them_once():
    page = renderer("render_api").PAGE.read_text("utf-8")
    found = re.findall(r"^::: vyre\.(\w+)$|<a id=\"vyre\.(\w+)\"></a>", page, re.MULTILINE)
    assert sorted(a or b for a, b in found) == sorted(vars(vyre)["_WHERE"])


def test_the_page_of_names_is_not_made_of_a_module_that_has_none():
    with pytest.raises(LookupError, match=r"no public name lives in front\.arrays\. Fix: correct the module"):
        renderer("render_api").names_of("front.arrays")


def test_the_page_of_backends_is_up_to_date():
    made = renderer("render_backends")
    assert made.PAGE.read_text("utf-8") == made.render(made.load()), "run python docs/render_backends.py"


@pytest.mark.parametrize("id", ["reference", "cpu"])
def test_what_the_page_says_of_a_backend_is_what_it_says_itself(id):
    made = renderer("render_backends")
    backend = vyre.acquire(id)
    told, now = made.load()[id], made.facts(backend)
    backend.shutdown()
    told.pop("exactness"), now.pop("exactness")  # of the processor
    assert now.items() <= told.items(), "run python docs/render_backends.py --record"


def test_every_operation_has_its_words():
    assert renderer("render_ops").missing() == []


# ---- the site -------------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Addresses, links and resources of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.resources: list[str] = []
        self.text: list[str] = []
        self._code = 0
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if given.get("id"):
            self.ids.add(given["id"])
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if tag in ("script", "img", "iframe", "source", "video", "audio", "embed", "object", "link"):
            self.resources += [given[name] for name in ("src", "href", "data", "srcset") if given.get(name)]
        self._code += tag in ("code", "pre", "script")

    def handle_endtag(self, tag: str) -> None:
        self._code -= tag in ("code", "pre", "script")

    def handle_data(self, data: str) -> None:
        if not self._code:
            self.text.append(data)


class Site:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pages = {p.relative_to(folder).as_posix(): Page(p) for p in sorted(folder.rglob("*.html"))}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    if importlib.util.find_spec("mkdocs") is None or importlib.util.find_spec("mkdocstrings") is None:
        if os.environ.get("VYRE_REQUIRE_DOCS"):
            pytest.fail("mkdocs-material and mkdocstrings are required: pip install '.[docs]'")
        pytest.skip("the site needs pip install '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    built = build(ROOT / "mkdocs.yml", folder)
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    return Site(folder)


def build(config: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """As `make docs` does; with --quiet, mkdocs would not count the warnings that it does not show."""
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", config, "--site-dir", folder],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize(
    "text, complaint",
    [
        ("[gone](gone.md)", "the target is not found"),
        ("[gone](index.md#gone)", "no such anchor"),
        ("[gone][gone.reference]", "Could not find cross-reference target"),
    ],
)
@pytest.mark.check
def test_a_broken_link_fails_the_build(text, complaint, tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(f"# A page\n\n{text}\n")
    config = tmp_path / "mkdocs.yml"
    config.write_text(f"INHERIT: {ROOT / 'mkdocs.yml'}\nnav: [index.md]\nhooks: []\nextra_css: []\n")
    built = build(config, tmp_path / "site")
    assert built.returncode == 1
    assert complaint in built.stderr


def test_versions_stand_side_by_side_newest_first(site, tmp_path):
    publish = renderer("publish_version").publish
    folder = tmp_path / "versions"
    for version in ("0.9.0", "0.10.0rc1", "0.2.0", "0.10.0", "0.9.0"):
        publish(site.folder, folder, version)
    listed = json.loads((folder / "versions.json").read_text("utf-8"))
    assert [v["version"] for v in listed] == ["0.10.0", "0.10.0rc1", "0.9.0", "0.2.0"]
    assert [v["aliases"] for v in listed] == [["latest"], [], [], []]
    assert "url=0.10.0/index.html" in (folder / "index.html").read_text("utf-8")
    assert (folder / "0.2.0" / "how-to" / "debug-a-kernel.html").exists()


def test_every_page_asks_for_the_versions_beside_it(site):
    for path in site.pages:
        text = (site.folder / path).read_text("utf-8")
        assert '"provider": "mike"' in text or path == "404.html", path


def test_a_site_that_was_not_built_is_no_version(tmp_path):
    command = [sys.executable, DOCS / "publish_version.py", tmp_path, tmp_path / "versions"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("usage: python docs/publish_version.py SITE FOLDER, where `make docs` has built SITE")


def test_every_error_has_an_address(site):
    ids = site.pages["error-codes.html"].ids
    classes = renderer("render_error_codes").error_classes()
    assert {code.lower() for code in vyre.DiagCode} - ids == set()
    assert {cls.__name__.lower() for cls in classes} - ids == set()


def test_every_knob_has_an_address(site):
    assert set(all_knobs()) - site.pages["reference/knobs.html"].ids == set()


def test_every_command_and_exit_code_has_an_address(site):
    ids = site.pages["reference/cli.html"].ids
    codes = (app.DONE, app.NO, app.USAGE, app.INTERRUPTED, app.PIPE_CLOSED)
    assert {f"exit-{code}" for code in codes} - ids == set()
    assert {command["name"].replace(" ", "-") for command in app.describe()[1:]} - ids == set()


def test_every_public_name_has_an_address(site):
    assert {f"vyre.{name}" for name in vyre._WHERE} - site.pages["reference/api.html"].ids == set()


def test_every_link_inside_the_site_leads_somewhere(site):
    broken = []
    for path, page in site.pages.items():
        for link in page.links:
            target = urlsplit(link)
            if target.scheme or target.netloc or path == "404.html":
                continue
            there = (site.folder / path).parent / unquote(target.path) if target.path else site.folder / path
            inside = there.resolve()
            if not inside.is_file():
                broken.append(f"{path}: {link}")
            elif target.fragment and inside.suffix == ".html":
                name = inside.relative_to(site.folder.resolve()).as_posix()
                if unquote(target.fragment) not in site.pages[name].ids:
                    broken.append(f"{path}: {link}")
    assert broken == []


def test_nothing_is_loaded_from_elsewhere(site):
    outside = re.compile(r"^(?:[a-z]+:)?//")
    assert [r for page in site.pages.values() for r in page.resources if outside.match(r)] == []
    for sheet in site.folder.rglob("*.css"):
        text = sheet.read_text("utf-8")
        assert [url for url in re.findall(r"url\(\s*[\"']?([^)\"']+)", text) if outside.match(url)] == []
        assert "@import" not in text


def test_the_search_brings_all_it_needs(site):
    index = json.loads((site.folder / "search" / "search_index.json").read_text("utf-8"))
    found = {entry["location"] for entry in index["docs"] if "subgroup" in entry["text"]}
    assert any(place.startswith("kernel-language.html") for place in found)
    assert list((site.folder / "assets" / "javascripts" / "workers").glob("search*.js"))


def test_no_code_is_left_in_the_text(site):
    """A fence with options that nobody knows, or an example of a docstring outside of `Examples:`."""
    for mark in ("```", ">>>"):
        assert [path for path, page in site.pages.items() if mark in "".join(page.text)] == []


def test_the_site_speaks_of_files_that_are_there():
    """Paths in backticks, such as `docs/design/cpu.md` or `bench/cpu.py`."""
    quoted = re.compile(r"`((?:src|docs|tests|bench|examples)/[\w./-]+)`")
    missing = [
        f"{page.relative_to(ROOT)}: {name}"
        for page in DOCS.rglob("*.md")
        for name in quoted.findall(page.read_text("utf-8"))
        if not (ROOT / name).exists()
    ]
    assert missing == []
