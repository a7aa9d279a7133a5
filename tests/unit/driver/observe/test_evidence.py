"""Evidence is one file that gives back what was written, and refuses whatever is not."""

import json
import random
import stat
import sys
import tracemalloc
import zipfile
from copy import deepcopy
from functools import partial

import numpy as np
import pytest

import vyre
from vyre import In, InOut, Out, f32, gid, u32
from vyre.conform.programs.wire_noise import mutate
from vyre.driver import DispatchConfig, DispatchTimingEvidence, EvidenceBundle, SourceProvenance
from vyre.driver.observe.evidence import INDEX, Outcome
from vyre.driver.verify.evidence import capture
from vyre.errors import ArgumentTypeError, ArgumentValueError, VyreError

SOURCE = SourceProvenance({"commit": "4c1f", "dirty": "false"}, "git:4c1f:dirty=false", "source-tree-v1:00")


@vyre.kernel(workgroup=64)
def scale(by: f32, x: In[f32], out: Out[f32]) -> None:
    if gid.x < len(out):
        out[gid.x] = by * x[gid.x]


@vyre.kernel(workgroup=64)
def guarded(x: InOut[u32]) -> None:
    assert x[gid.x] < 5, "five"
    x[gid.x] += 1


def made(**changes):
    x = np.arange(5, dtype=np.float32)
    facts = {
        "inputs": (np.float32(2).tobytes(), x.tobytes()),
        "config": DispatchConfig(output_elements={"out": 5}, grid_override=(1, 1, 1), ulp_budget=2),
        "expected": Outcome("reference", (x.tobytes(),)),
        "timing": DispatchTimingEvidence(wall_ns=7, device_ns=None),
    }
    return EvidenceBundle(scale.program, Outcome("cpu", ((2 * x).tobytes(),)), SOURCE, **facts | changes)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"inputs": (), "expected": None, "config": DispatchConfig()},
        {"author": SOURCE, "expected": Outcome("reference", error={"name": "Trap", "message": "it trapped"})},
        {"inputs": (b"", b"")},
    ],
)
def test_a_file_gives_back_what_was_written(tmp_path, changes):
    bundle = made(**changes)
    path = bundle.write(tmp_path / "a.evidence")
    assert EvidenceBundle.read(path) == bundle
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["a.evidence"]


def test_the_same_evidence_is_the_same_file(tmp_path):
    bundle = made()
    a, b = (bundle.write(tmp_path / name).read_bytes() for name in "ab")
    assert a == b


@pytest.mark.row("C-ev-1")
def test_the_index_tells_what_ran_and_how_to_run_it_again(tmp_path):
    bundle = made()
    bundle.validate()
    with zipfile.ZipFile(bundle.write(tmp_path / "a.evidence")) as file:
        told = json.loads(file.read(INDEX))
    assert (told["schema"], told["backend_id"], told["program_digest"]) == (1, "cpu", scale.program.fingerprint)
    assert told["dispatch_policy"] == "ulp_budget=2 grid_override=(1, 1, 1) output_elements={'out': 5}"
    assert told["timing"]["wall_ns"] == 7
    assert bundle.timing.has_timing
    assert told["replay"]["command"].startswith("vyre replay")
    assert [(a["kind"], a["backend_id"]) for a in told["artifacts"]] == [
        ("program", None), ("input by", None), ("input x", None), ("outputs", "cpu"), ("expected", "reference"),
    ]  # fmt: skip


def test_inputs_can_be_left_out_and_keep_their_digests(tmp_path):
    whole = made()
    found = EvidenceBundle.read(whole.without_inputs().write(tmp_path / "a.evidence"))
    assert found.inputs is None
    assert found.replay is None
    assert found.input_digests == whole.input_digests


def test_what_decides_the_result_decides_the_digest_of_the_capsule():
    digests = {
        made(**changes).replay.capsule_digest
        for changes in ({}, {"inputs": (b"\0\0\0\0", b"")}, {"config": DispatchConfig()})
    }
    assert len(digests) == 3
    assert made(expected=None).replay == made().replay


@pytest.mark.row("C-ev-2")
def test_evidence_without_a_source_or_a_backend_is_not_written(tmp_path):
    blank = EvidenceBundle(scale.program, Outcome("cpu"), SourceProvenance({}, " ", "x"))
    with pytest.raises(ArgumentValueError, match="source_fingerprint of the sources is blank"):
        blank.write(tmp_path / "a.evidence")
    with pytest.raises(ArgumentValueError, match=r"names no backend.*Fix: capture it"):
        EvidenceBundle(scale.program, Outcome(" "), SOURCE).write(tmp_path / "a.evidence")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_or_read_says_so(tmp_path):
    with pytest.raises(ArgumentValueError, match=r"cannot be written.*Fix: name another file"):
        made().write(tmp_path / "no" / "such" / "folder.evidence")
    with pytest.raises(ArgumentValueError, match=r"is a folder or a device.*Fix: name another file"):
        made().write(tmp_path)
    with pytest.raises(ArgumentValueError, match=r"cannot be read.*Fix: name a file of yours"):
        EvidenceBundle.read(tmp_path / "absent")
    with pytest.raises(ArgumentTypeError, match=r"read\(\) got a NoneType"):
        EvidenceBundle.read(None)


def rewritten(path, change):
    """The file with its index changed."""
    with zipfile.ZipFile(path) as file:
        parts = {name: file.read(name) for name in file.namelist()}
    told = json.loads(parts[INDEX])
    change(told)
    parts[INDEX] = json.dumps(told).encode()
    with zipfile.ZipFile(path, "w") as file:
        for name, data in parts.items():
            file.writestr(name, data)
    return path


@pytest.mark.parametrize(
    "change, why",
    [
        (lambda told: told.update(schema=2), "has schema '2', and this vyre reads 1.*the version that wrote it: 0"),
        (lambda told: told["config"].update(speed=9), "a config with 'speed'.*version of vyre that wrote it"),
        (lambda told: told["config"].update(ulp_budget="many"), "ulp_budget='many' is not a whole number"),
        (lambda told: told.update(program_digest="00"), "not the one that it names"),
        (lambda told: told["artifacts"][1].update(digest="00"), "inputs/0 is not what was written"),
        (lambda told: told["artifacts"].pop(0), "is no evidence"),
        (lambda told: told["artifacts"][1].update(kind="other"), "is no evidence"),
        (lambda told: told["artifacts"][1].update(path="../../etc/passwd"), "is no evidence"),
        (lambda told: told.pop("timing"), "is no evidence"),
        (lambda told: told.update(error={"name": "Trap"}), "is no evidence"),
        (lambda told: told.update(numerics_version="x"), "'x' is no whole number"),
        (lambda told: told.update(schema=0, vyre_version="0.0.7"), "the version that wrote it: 0.0.7"),
        (lambda told: told["artifacts"].pop(1), "the inputs or the config are not what was written"),
        (lambda told: told["artifacts"][1].update(path=None), "the inputs or the config are not what was written"),
        (lambda told: told["config"].pop("ulp_budget"), "the inputs or the config are not what was written"),
        (lambda told: told.update(replay=None), "is no evidence"),
        (lambda told: told.update(date=7), "'7' is no text"),
        (lambda told: told["timing"].update(wall_ns=float("inf")), "'inf' is no whole number"),
        (lambda told: told["source"].update(source_fingerprint=""), "blank"),
    ],
)
def test_an_index_with_something_else_in_it_is_refused(tmp_path, change, why):
    path = rewritten(made().write(tmp_path / "a.evidence"), change)
    with pytest.raises((ArgumentValueError, ArgumentTypeError), match=f"(?s)(?=.*Fix: ).*{why}"):
        EvidenceBundle.read(path)


def test_a_packed_part_is_refused_since_it_may_be_longer_than_memory(tmp_path):
    path = made().write(tmp_path / "a.evidence")
    with zipfile.ZipFile(path) as file:
        parts = {name: file.read(name) for name in file.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in parts.items():
            file.writestr(name, data)
    with pytest.raises(ArgumentValueError, match="packed, or longer than the file"):
        EvidenceBundle.read(path)


ODD = [
    None, True, -1, 0, 2**70, 1e308, float("inf"), float("nan"), "", "\ud800", "x" * 300, "\x1b[31m", [], {}, [[]],
    {"a": 1}, {"name": "x", "message": "y"}, [1, 2, 3], "outputs/0", INDEX, 10**400,
]  # fmt: skip
"""What may stand in an index where something else belongs."""


def places(told, *path):
    """Where something stands in an index."""
    for key in told if isinstance(told, dict) else range(len(told)) if isinstance(told, list) else ():
        yield (*path, key)
        yield from places(told[key], *path, key)


def odd_index(choose, told):
    """One to three parts of an index that are gone, new, or something else."""
    for _ in range(choose.randint(1, 3)):
        *path, last = choose.choice([*places(told)])
        inside = told
        for key in path:
            inside = inside[key]
        match choose.randrange(3):
            case 0:
                del inside[last]
            case 1 if isinstance(inside, dict):
                inside[str(choose.choice(ODD))[:40]] = deepcopy(choose.choice(ODD))
            case _:
                inside[last] = deepcopy(choose.choice(ODD))
        if not told:
            return


def require_ours_or_the_same(tmp_path, seeds):
    """Files with damage anywhere, and whole ones whose index says something else."""
    bundle = made()
    path = bundle.write(tmp_path / "a.evidence")
    whole, refused = path.read_bytes(), 0
    for seed in seeds:
        choose = random.Random(seed)
        if seed % 2:
            path.write_bytes(mutate(choose, [whole]))
        else:
            path.write_bytes(whole)
            rewritten(path, partial(odd_index, choose))
        try:
            found = EvidenceBundle.read(path)
        except VyreError as e:
            said = str(e)
            refused += 1
        else:  # what is not sealed are texts and numbers about the run
            assert found.program == bundle.program
            assert found.inputs in (bundle.inputs, None)
            said = f"{found.outcome} {found.expected} {found.machine} {found.date}"
        assert "\x1b" not in said
        assert said.encode()
    assert refused > len(seeds) / 2


def test_files_that_were_changed_anywhere_are_refused_or_have_the_same_parts(tmp_path):
    require_ours_or_the_same(tmp_path, range(400))


@pytest.mark.fuzz
@pytest.mark.parametrize("block", range(10))
def test_a_hundred_thousand_changed_files_are_refused_or_have_the_same_parts(tmp_path, block):
    resource = pytest.importorskip("resource")
    require_ours_or_the_same(tmp_path, range(100))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    require_ours_or_the_same(tmp_path, range(block * 10_000, (block + 1) * 10_000))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB


RUNS_CODE = {"exec", "compile", "import", "pickle.find_class", "marshal.loads", "os.system", "subprocess.Popen"}
"""Events by which Python code, or another program, would run."""


def test_reading_runs_nothing(tmp_path):
    path, seen, watched = made(author=SOURCE).write(tmp_path / "a.evidence"), [], []
    sys.addaudithook(lambda event, args: seen.append(event) if watched and event in RUNS_CODE else None)
    EvidenceBundle.read(path)  # imports what it needs
    watched.append(path)
    EvidenceBundle.read(path)
    watched.clear()
    assert seen == []
    exec("1")
    assert seen == []
    watched.append(path)
    exec("1")  # the hook sees such things
    watched.clear()
    assert seen == ["compile", "exec"]


def test_what_an_index_promises_takes_no_memory(tmp_path):
    """Lengths are what the file has, whatever its index and its list of parts say."""
    path = made().write(tmp_path / "a.evidence")
    data = path.read_bytes()
    size = len(made().inputs[1]).to_bytes(4, "little")
    tracemalloc.start()
    try:
        path.write_bytes(data.replace(size * 2, b"\xf0\xff\xff\xff" * 2))
        with pytest.raises(ArgumentValueError, match="packed, or longer than the file"):
            EvidenceBundle.read(path)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_captured_dispatch_has_its_outputs_and_times(backend):
    x = np.arange(70, dtype=np.float32)
    found = scale.on(backend).evidence(3.0, x)
    assert found.outcome == Outcome(backend, ((x * 3).tobytes(),))
    assert found.inputs == (np.float32(3).tobytes(), x.tobytes())
    assert found.timing.wall_ns > 0
    assert found.numerics_version == vyre.NUMERICS_VERSION
    assert found.author is None or found.author.git["commit"]


def test_a_captured_error_is_part_of_the_evidence_and_arrays_stay_as_they_are():
    x = np.full(3, 7, np.uint32)
    found = guarded.on("cpu").evidence(x)
    assert found.outcome.error["name"] == "Trap"
    assert found.outcome.outputs == ()
    assert "five" in found.outcome.error["message"]
    assert x.tolist() == [7, 7, 7]
    y = np.zeros(3, np.uint32)
    assert guarded.on("cpu").evidence(y).outcome.outputs == (np.ones(3, np.uint32).tobytes(),)
    assert y.tolist() == [0, 0, 0]


def test_a_call_without_invocations_has_no_evidence():
    with pytest.raises(ArgumentValueError, match=r"runs no invocation.*Fix: pass arrays"):
        guarded.on("cpu").evidence(np.zeros(0, np.uint32))


def test_a_program_can_be_captured_without_a_kernel():
    x = np.arange(4, dtype=np.float32)
    with vyre.acquire("cpu") as backend:
        found = capture(backend, scale.program, [np.float32(2).tobytes(), x])
    assert found.author is None
    assert found.outcome.outputs == ((2 * x).tobytes(),)
