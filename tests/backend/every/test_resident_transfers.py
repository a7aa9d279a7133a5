"""Transfers of resident memory: neighbours are one copy of the device, and the figures are those of its copies."""

import numpy as np
import pytest

from vyre.driver.contract.values import ResidentReadRange

from ...support.device_backends import IDS, open_or_skip


@pytest.fixture(params=("cpu", *IDS))
def backend(request):
    return open_or_skip(request.param)


def figures(backend, direction):
    metrics = backend.metrics()
    return [metrics.get(f"resident_{direction}_{what}", 0) for what in ("operations", "ranges", "copies", "bytes")]


def changed(backend, direction, work):
    before = figures(backend, direction)
    found = work()
    return found, [b - a for a, b in zip(before, figures(backend, direction), strict=True)]


def counted_copies(backend, monkeypatch, name):
    """Lengths of the copies that batches of the device are asked for."""
    if backend.id == "cpu":
        return None
    batch, lengths = type(backend.session().device.batch()), []
    for method in {"read": ("read",), "write": ("write", "lend")}[name]:
        plain = getattr(batch, method)

        def spied(self, memory, offset, data, plain=plain):
            nested = getattr(spied, "inside", False)
            if not nested:
                lengths.append(data if isinstance(data, int) else data.nbytes)
            spied.inside = True
            try:
                return plain(self, memory, offset, data)
            finally:
                spied.inside = nested

        monkeypatch.setattr(batch, method, spied)
    return lengths


def test_64_ranges_side_by_side_are_one_copy(backend, monkeypatch):
    words = np.arange(64, dtype=np.uint32)
    handle = backend.allocate_resident(words.nbytes)
    uploads = counted_copies(backend, monkeypatch, "write")
    _, told = changed(
        backend, "upload", lambda: backend.upload_resident([(handle, 4 * k, words[k : k + 1]) for k in range(64)])
    )
    copies = 64 if backend.residents.most_fused == 0 else 1
    assert told == [1, 64, copies, 256]
    assert uploads is None or uploads == [256]
    downloads = counted_copies(backend, monkeypatch, "read")
    order = np.random.default_rng(1).permutation(64)
    ranges = [ResidentReadRange(handle, 4 * int(k), 4) for k in order]
    found, told = changed(backend, "download", lambda: backend.download_resident(ranges))
    assert told == [1, 64, copies, 256]
    assert downloads is None or downloads == [256]
    assert [int.from_bytes(f, "little") for f in found] == order.tolist()
    target = [bytearray(4) for _ in order]
    assert backend.download_resident(ranges, out=target) == target == found
    backend.free_resident(handle)


def test_large_ranges_go_straight_to_where_the_caller_wants_them(backend):
    n = 1 << 17
    data = np.random.default_rng(2).integers(0, 256, 2 * n, dtype=np.uint8)
    handle = backend.allocate_resident(2 * n)
    _, told = changed(
        backend, "upload", lambda: backend.upload_resident([(handle, 0, data[:n]), (handle, n, data[n:])])
    )
    assert told == [1, 2, 2, 2 * n]
    target = [np.empty(n, np.uint8), np.empty(n, np.uint8)]
    ranges = [ResidentReadRange(handle, n, n), ResidentReadRange(handle, 0, n)]
    _, told = changed(backend, "download", lambda: backend.download_resident(ranges, out=target))
    assert told == [1, 2, 2, 2 * n]
    assert np.concatenate(target[::-1]).tobytes() == data.tobytes()
    backend.free_resident(handle)


def test_overlapping_uploads_keep_their_order_and_empty_ranges_are_empty(backend):
    handle = backend.allocate_resident(16)
    parts = [(handle, 0, b"aaaaaaaa"), (handle, 4, b"bbbbbbbb"), (handle, 0, b""), (handle, 2, b"cccc")]
    backend.upload_resident(parts)
    ranges = [ResidentReadRange(handle, 8, 8), ResidentReadRange(handle, 3, 0), ResidentReadRange(handle, 0, 10)]
    assert [bytes(b) for b in backend.download_resident(ranges)] == [b"bbbb\0\0\0\0", b"", b"aaccccbbbb"]
    backend.free_resident(handle)
