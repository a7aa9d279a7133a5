"""The report of the demo: one HTML file with everything in it, and the picture as a PNG."""

from __future__ import annotations

import json
import struct
import zlib
from base64 import b64encode
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

CSS = """
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1c2430; --soft: #55606f; --line: #d5dbe3; --panel: #f4f6f9;
  --link: #0b5cad; --good: #146c3a; --bad: #a8201a; }
@media (prefers-color-scheme: dark) { :root { --paper: #12161d; --ink: #e4e9f0; --soft: #a3adba; --line: #333c48;
  --panel: #1b212b; --link: #7ab8ff; --good: #6fd699; --bad: #ff8f87; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
main { max-width: 68rem; margin: 0 auto; padding: 1.5rem clamp(1rem, 4vw, 2.5rem) 4rem; }
h1 { font-size: clamp(1.6rem, 5vw, 2.3rem); line-height: 1.15; margin: .5rem 0; }
h2 { font-size: 1.3rem; margin: 2.6rem 0 .6rem; padding-top: .9rem; border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.4rem 0 .3rem; }
p { max-width: 46rem; overflow-wrap: anywhere; }
.soft { color: var(--soft); }
.good { color: var(--good); font-weight: 600; }
.bad { color: var(--bad); font-weight: 600; }
figure { margin: 1.2rem 0; }
img { display: block; width: 100%; height: auto; border-radius: .5rem; }
figcaption { color: var(--soft); font-size: .9rem; margin-top: .4rem; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: .5rem; margin: .8rem 0; }
.scroll:focus-visible { outline: 2px solid var(--link); }
table { border-collapse: collapse; width: 100%; font-size: .94rem; }
caption { text-align: left; color: var(--soft); padding: .55rem .8rem; font-size: .9rem; }
th, td { text-align: left; vertical-align: top; padding: .45rem .8rem; border-top: 1px solid var(--line); }
thead th { background: var(--panel); color: var(--soft); font-weight: 600; white-space: nowrap; }
tbody th { font-weight: 600; white-space: nowrap; }
td.long { min-width: 14rem; }
td.text { overflow-wrap: anywhere; min-width: 9rem; }
.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
code, pre { font-family: ui-monospace, "SF Mono", "Cascadia Mono", Menlo, Consolas, monospace; font-size: .88em; }
td code { white-space: nowrap; }
p code { overflow-wrap: anywhere; }
pre { margin: 0; padding: .8rem 1rem; background: var(--panel); line-height: 1.45; }
mark { background: none; color: var(--bad); font-weight: 700; }
summary { cursor: pointer; font-weight: 600; padding: .3rem 0; }
@media (max-width: 40rem) { td.long { white-space: nowrap; } } /* its table scrolls; tall rows would hide why */
@media print {
  :root { --paper: #fff; --ink: #000; --soft: #444; --line: #bbb; --panel: #f4f4f4; --link: #000; --good: #064d24;
    --bad: #8a0f0a; }
  main { max-width: none; padding: 0; }
  .scroll { overflow: visible; border: 0; }
  pre { white-space: pre-wrap; overflow-wrap: anywhere; }
  table { font-size: .8rem; } td code { white-space: normal; overflow-wrap: anywhere; }
  h2, h3 { break-after: avoid; } tr, figure { break-inside: avoid; }
}
"""


def png(rgb: Any) -> bytes:
    """An 8-bit picture, from an array of rows of red, green and blue."""
    height, width, _ = rgb.shape
    rows = b"".join(b"\0" + row.tobytes() for row in rgb)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")


def render(data: dict[str, Any], picture: bytes | None) -> str:
    """The page. Whatever comes from the machine is text in it, never markup."""
    program = data["program"]
    what = (
        f"{program['bodies']} bodies pull at each other for {program['steps']:,} steps, then an option is priced on "
        "where each of them ends. Every row hashes all positions on the way and all prices: equal hashes, equal bytes."
    )
    verdict = f"<span class='{'good' if data['same'] else 'bad'}'>{escape(data['verdict'])}.</span>"
    parts = [
        f'<p class="soft">vyre {escape(data["environment"]["vyre"])} demo report</p>',
        "<h1>One program, one answer</h1>",
        f"<p>{verdict} {escape(what)}</p>",
    ]
    if picture is not None:
        alt = "Glowing curves on a dark ground: the paths of bodies that attract each other, tangled near the centre."
        parts.append(
            f'<figure><img alt="{alt}" src="data:image/png;base64,{b64encode(picture).decode()}">'
            f"<figcaption>Paths of the bodies, drawn by a kernel on {escape(data['drawn_by'])}.</figcaption></figure>"
        )
    parts += [*_answers(data), *_peers(data), *_race(data["race"]), *_selection(data), *_calls(data), *_appendix(data)]
    title = "vyre: one program, one answer"
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{title}</title><style>{CSS}</style>'
    )
    body = "\n".join(parts)
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body><main>\n{body}\n</main></body></html>\n'


def _answers(data: dict[str, Any]) -> Iterable[str]:
    yield "<h2>One answer</h2>"
    rows = []
    for a in data["answers"]:
        where = ' <span class="soft">(on the processor)</span>' if a["emulated"] else ""
        device = _td(escape(a["device"]) + where, kind="long")
        if a["error"]:
            cells = [_td(f'<span class="bad">{escape(a["error"])}</span>', span=3)]
        else:
            cells = [_hash(a["blake3"]), _number(f"{a['price']:.6f}"), _number(f"{a['seconds']:.2f} s")]
        rows.append([_th(a["backend"]), *cells, device])
    for a in data["absent"]:
        rows.append([_th(a["backend"]), _td(f'<span class="soft">not here: {escape(a["reason"])}</span>', span=4)])
    yield _table("Every backend of this machine", ("backend", "blake3", "#first price", "#took", "device"), rows)
    for found in sorted({a["blake3"] for a in data["answers"] if a["blake3"]}):
        yield f"<p>In full: <code>{found}</code></p>"


def _peers(data: dict[str, Any]) -> Iterable[str]:
    yield "<h2>The same maths elsewhere</h2>"
    rows = []
    for p in data["peers"]:
        if p["error"]:
            cells = [_td(f'<span class="bad">{escape(p["error"])}</span>', span=3)]
        else:
            cells = [_td(escape(p["departs"])), _hash(p["blake3"]), _number(f"{p['price']:.6f}")]
        rows.append([_th(p["name"]), *cells, _td(escape(p["version"]))])
    heads = ("library", "departs at", "blake3", "#first price", "version")
    yield _table("The same formulas and constants, in 32-bit floats", heads, rows)
    yield '<p class="soft">Departs at: where the bytes first differ from those above.</p>'
    yield f"<p>{escape(data['why'])}</p>"


def _race(race: dict[str, Any]) -> Iterable[str]:
    yield "<h2>A race, found</h2>"
    yield (
        f"<p>The kernel <code>{escape(race['kernel'])}</code> lacks a barrier. The reference backend runs it with the "
        f"race detector on: <span class='bad'>race on {escape(race['element'])}</span>, between these two lines.</p>"
    )
    sides = {side["line"]: side for side in race["sides"]}
    lines = []
    for number, text in enumerate(race["source"].splitlines(), race["first_line"]):
        line = f"{number:4}  {escape(text)}"
        if side := sides.get(number):
            line = f"<mark>{line}   # {escape(side['kind'])} by invocation {side['invocation'][0]}</mark>"
        lines.append(line)
    yield _pre("\n".join(lines), f"{race['file']}, with the two lines of the race", escaped=True)
    yield f"<p>With the barrier in its place: {race['races_when_repaired']} races. The fix, in the words of the error: "
    yield f"{escape(race['fix'])}.</p>"


def _selection(data: dict[str, Any]) -> Iterable[str]:
    yield "<h2>Why this backend</h2>"
    chosen = data["selection"]["chosen"]
    rows = [
        [_th(name), _td(f"<span class='{'good' if name == chosen else ''}'>{escape(why)}</span>", kind="text")]
        for name, why in data["selection"]["reasons"]
    ]
    yield _table("Who runs a plain call, and why the others do not", ("backend", "verdict"), rows)
    yield f"<details><summary>The whole plan of one call</summary>{_pre(data['selection']['plan'], 'plan')}</details>"


def _calls(data: dict[str, Any]) -> Iterable[str]:
    yield "<h2>First and warm calls</h2>"
    rows = [[_th(c["backend"]), *(_number(_ms(c[key])) for key in ("first", "warm", "many"))] for c in data["calls"]]
    heads = ("backend", "#one step, first", "#one step, warm", f"#{data['program']['options']:,} prices, warm")
    yield _table("On this machine, in this run", heads, rows)
    yield f'<p class="soft">{escape(data["about_calls"])}</p>'


def _appendix(data: dict[str, Any]) -> Iterable[str]:
    yield "<h2>The kernels</h2>"
    for name, source in data["kernels"].items():
        yield f"<h3>{escape(name)}</h3>{_pre(source, name)}"
    yield "<h2>Environment</h2>"
    rows = [[_th(key), _td(escape(str(value)), kind="text")] for key, value in data["environment"].items()]
    yield _table("Where and when this ran", ("what", "is"), rows)
    shown = json.dumps({key: value for key, value in data.items() if key != "kernels"}, indent=1)
    yield f"<details><summary>All data as JSON</summary>{_pre(shown, 'data')}</details>"


# ---- pieces ---------------------------------------------------------------------------------------------------------


def _th(text: str) -> str:
    return f'<th scope="row">{escape(text)}</th>'


def _td(markup: str, *, span: int = 1, kind: str = "") -> str:
    return f'<td class="{kind}" colspan="{span}">{markup}</td>'


def _number(text: str) -> str:
    return f'<td class="number">{escape(text)}</td>'


def _hash(digest: str) -> str:
    return f'<td><code title="{digest}">{digest[:16]}</code></td>'


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.3f} ms"


def _table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table that scrolls by itself where the page is narrow. A # before a head marks a column of numbers."""
    head = "".join(
        f'<th scope="col" class="{"number" if h.startswith("#") else ""}">{escape(h.removeprefix("#"))}</th>'
        for h in heads
    )
    body = "".join(f"<tr>{''.join(row)}</tr>\n" for row in rows)
    region = f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(caption)}">'
    table = f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody>"
    return f"{region}<table>{table}</table></div>"


def _pre(text: str, label: str, *, escaped: bool = False) -> str:
    region = f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(label)}">'
    return f"{region}<pre><code>{text if escaped else escape(text)}</code></pre></div>"
