"""The examples on graphs, pictures, texts, matrices and points give, byte by byte, what plain Python and NumPy give."""

from importlib import import_module
from itertools import pairwise

import numpy as np
import pytest

from vyre.backends import reference

from ...support import example_files
from ...support.example_files import load

floyd_warshall, image_filter, kmeans, multi_scan, spmv = MODULES = [
    load(name) for name in ("floyd_warshall", "image_filter", "kmeans", "multi_scan", "spmv")
]

backend = example_files.backend


def same(found, expected):
    """Type, shape and every byte."""
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert found.tobytes() == expected.tobytes()


# ---- shortest paths -------------------------------------------------------------------------------------------------


def shortest(weights):
    """Distances by joining paths in pairs, until none gets shorter."""
    distance = np.where(weights == floyd_warshall.NEVER, np.inf, weights)
    np.fill_diagonal(distance, 0)
    while True:
        better = np.minimum(distance, (distance[:, :, None] + distance[None, :, :]).min(axis=1))
        if np.array_equal(better, distance):
            return np.where(np.isinf(distance), floyd_warshall.NEVER, distance).astype(np.uint32)
        distance = better


@pytest.mark.parametrize("density", [0.0, 0.06, 0.5])
def test_distances_are_those_of_joining_paths_in_pairs(density, backend):
    weights = floyd_warshall.random_graph(41, density, seed=1)
    before = weights.copy()
    distance, _ = floyd_warshall.solve(weights, backend)
    same(distance, shortest(weights))
    same(weights, before)


def test_paths_follow_edges_and_are_as_long_as_the_distance(backend):
    vertices = 33
    weights = floyd_warshall.random_graph(vertices, 0.08, seed=3)
    distance, follow = floyd_warshall.solve(weights, backend)
    for start, end in np.ndindex(vertices, vertices):
        way = floyd_warshall.path(follow, start, end)
        if distance[start, end] == floyd_warshall.NEVER:
            assert way == []
            continue
        assert (way[0], way[-1]) == (start, end)
        edges = [int(weights[a, b]) for a, b in pairwise(way)]
        assert floyd_warshall.NEVER not in edges
        assert sum(edges) == distance[start, end]


def test_sums_of_weights_that_reach_never_count_as_no_path(backend):
    weights = np.full((3, 3), floyd_warshall.NEVER, np.uint32)
    weights[0, 1], weights[1, 2] = 0xFFFFFFFE, 2
    distance, follow = floyd_warshall.solve(weights, backend)
    assert distance[0, 2] == floyd_warshall.NEVER
    assert floyd_warshall.path(follow, 0, 2) == []


def test_passes_over_the_graph_have_no_race():
    vertices = 6
    distance = floyd_warshall.random_graph(vertices, 0.5, seed=7)
    np.fill_diagonal(distance, 0)
    for k in range(vertices):
        inputs = [np.array([vertices], np.uint32), distance, np.zeros_like(distance), np.array([k], np.uint32)]
        result = reference.run(floyd_warshall.through.program, inputs, grid=(1, 1, 1), detect_races=True)
        assert result.races == ()


def test_distances_are_those_of_scipy():
    graphs = pytest.importorskip("scipy.sparse.csgraph")
    weights = floyd_warshall.random_graph(41, 0.06, seed=1)
    edges = np.where(weights == floyd_warshall.NEVER, 0, weights).astype(float)  # 0 is no edge
    expected = graphs.floyd_warshall(edges)
    distance, _ = floyd_warshall.solve(weights, "cpu")
    same(distance, np.where(np.isinf(expected), floyd_warshall.NEVER, expected).astype(np.uint32))


# ---- pictures -------------------------------------------------------------------------------------------------------


def filtered(image, weights):
    """Shifted copies of a padded picture, weighted and added up."""
    height, width, _ = image.shape
    side = len(weights)
    padded = np.pad(image.astype(np.int64), [(side // 2, side // 2)] * 2 + [(0, 0)], mode="edge")
    total = sum(weights[y, x] * padded[y : y + height, x : x + width] for y, x in np.ndindex(side, side))
    divisor = max(int(weights.sum()), 1)
    return np.clip((np.maximum(total, 0) + divisor // 2) // divisor, 0, 255).astype(np.uint8)


@pytest.mark.parametrize("name", image_filter.FILTERS)
@pytest.mark.parametrize("shape", [(1, 1), (2, 17), (33, 1), (19, 37)])
def test_a_filter_is_a_sum_of_shifted_pictures(name, shape, backend):
    image = np.random.default_rng(2).integers(0, 256, (*shape, 3), dtype=np.uint8)
    weights = np.array(image_filter.FILTERS[name], np.int32)
    same(image_filter.solve(image, weights, backend), filtered(image, weights))


def test_a_filter_is_not_mirrored(backend):
    image = image_filter.drawing(21, 10)
    weights = np.zeros((3, 3), np.int32)
    weights[0, 2] = 1  # what is above and to the right
    shifted = image_filter.solve(image, weights, backend)
    same(shifted[1:, :-1].copy(), image[:-1, 1:].copy())


def test_a_blur_leaves_one_colour_as_it_is(backend):
    image = np.full((9, 20, 3), (0, 127, 255), np.uint8)
    same(image_filter.solve(image, np.array(image_filter.FILTERS["blur"], np.int32), backend), image)


@pytest.mark.parametrize("weights", [np.ones((2, 2)), np.ones((1, 3))])
def test_a_filter_that_is_no_odd_square_is_refused(weights):
    with pytest.raises(ValueError, match="square with an odd side"):
        image_filter.solve(image_filter.drawing(4, 4), weights.astype(np.int32))


def test_a_filter_with_a_negative_sum_is_refused():
    with pytest.raises(ValueError, match="sum of 0 or more"):
        image_filter.solve(image_filter.drawing(4, 4), np.full((1, 1), -1, np.int32))


@pytest.mark.parametrize("name", ["blur", "sharpen"])
def test_inside_its_edges_a_filtered_picture_is_that_of_pillow(name):
    pillow = pytest.importorskip("PIL.Image")
    filters = import_module("PIL.ImageFilter")
    image = image_filter.drawing(64, 48)
    weights = np.array(image_filter.FILTERS[name], np.int32)
    theirs = np.asarray(pillow.fromarray(image).filter(filters.Kernel(weights.shape, weights.ravel().tolist())))
    inner = np.s_[2:-2, 2:-2]  # it leaves the edges as they are
    same(image_filter.solve(image, weights, "cpu")[inner].copy(), theirs[inner].copy())


def test_a_picture_goes_from_file_to_file(tmp_path, capsys):
    pillow = pytest.importorskip("PIL.Image")
    image = image_filter.drawing(30, 20)
    pillow.fromarray(image).save(tmp_path / "in.png")
    assert image_filter.main(str(tmp_path / "in.png"), str(tmp_path / "out.png")) == 0
    with pillow.open(tmp_path / "out.png") as written:
        same(np.asarray(written), filtered(image, np.array(image_filter.FILTERS["sharpen"])))
    assert "30 x 20" in capsys.readouterr().out


# ---- words in texts -------------------------------------------------------------------------------------------------


def occurrences(text, words):
    """By `find`, word by word: (start, number), sorted by end and then by start."""
    found = []
    for number, word in enumerate(words):
        start = text.find(word)
        while start >= 0:
            found.append((start + len(word), start, number))
            start = text.find(word, start + 1)
    return [(start, number) for _, start, number in sorted(found)]


def scanned(text, words, backend):
    times, matches = multi_scan.solve(text, words, backend)
    expected = occurrences(text, words)
    same(matches, np.array(expected, np.uint32).reshape(-1, 2))
    same(times, np.bincount([number for _, number in expected], minlength=len(words)).astype(np.uint32))
    return matches


WORDS = [b"ab", b"abab", b"b", b"bca", b"ca", b"cabc", b"ab", b"aaa"]


@pytest.mark.parametrize("words", [WORDS, [b"a"], [bytes([0, 255]), b"\0"], [b"nowhere"]])
def test_every_occurrence_is_found_as_find_does(words, backend):
    letters = sorted(set(b"".join(words)))[:3]
    text = bytes(np.random.default_rng(3).choice(letters, 5000).astype(np.uint8))
    scanned(text, words, backend)


def test_words_across_pieces_are_found_once(backend):
    long = bytes(range(256)) + b"!"  # spans three pieces
    text = b"." * (multi_scan.PIECE - 1) + b"edge" + long + b"edge"
    matches = scanned(text, [long, b"edge", b"ge"], backend)
    assert matches[:, 1].tolist() == [1, 2, 0, 1, 2]


@pytest.mark.parametrize("length", [0, 1, multi_scan.PIECE, multi_scan.PIECE + 1, 64 * multi_scan.PIECE + 1])
def test_texts_end_anywhere(length):
    matches = scanned(b"x" * length, [b"x", b"xx"], "cpu")
    assert len(matches) == max(2 * length - 1, 0)


@pytest.mark.parametrize("words", [[], [b"a", b""]])
def test_there_are_words_to_look_for_and_none_is_empty(words):
    with pytest.raises(ValueError, match="no word is empty"):
        multi_scan.solve(b"text", words)


def test_occurrences_are_those_of_pyahocorasick():
    ahocorasick = pytest.importorskip("ahocorasick")
    words = list(dict.fromkeys(WORDS))
    text = bytes(np.random.default_rng(4).choice(list(b"abc"), 2000).astype(np.uint8))
    theirs = ahocorasick.Automaton()
    for number, word in enumerate(words):
        theirs.add_word(word.decode(), number)
    theirs.make_automaton()
    expected = {(end + 1 - len(words[number]), number) for end, number in theirs.iter(text.decode())}
    _, matches = multi_scan.solve(text, words, "cpu")
    assert set(map(tuple, matches.tolist())) == expected


# ---- sparse matrices ------------------------------------------------------------------------------------------------


def row_by_row(first, columns, values, vector):
    """The sums in the order that the kernel gives."""
    out = np.zeros(len(first) - 1, np.float32)
    for row, (start, stop) in enumerate(pairwise(first.tolist())):
        lanes = np.zeros(32, np.float32)
        for k in range(start, stop):
            lanes[(k - start) % 32] += values[k] * vector[columns[k]]
        while len(lanes) > 1:
            lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
        out[row] = lanes[0]
    return out


def test_a_product_is_summed_in_the_order_that_is_written_down(backend):
    first, places, values = spmv.random_matrix(203, 150, longest=150, seed=1)
    vector = np.random.default_rng(2).standard_normal(150, dtype=np.float32)
    product = spmv.solve(first, places, values, vector, backend)
    same(product, row_by_row(first, places, values, vector))
    dense = np.zeros((len(first) - 1, 150))
    dense[np.repeat(np.arange(len(first) - 1), np.diff(first)), places] = values
    bound = 1e-6 * (np.abs(dense) @ np.abs(vector.astype(float)))
    assert np.all(np.abs(product - dense @ vector.astype(float)) <= bound)


@pytest.mark.parametrize("lengths", [[0], [0, 0, 0], [31, 32, 33, 0, 1], [0, 64, 65]])
def test_rows_may_be_empty_or_of_any_length(lengths, backend):
    first = np.cumsum([0, *lengths]).astype(np.uint32)
    places = (np.arange(first[-1]) % 70).astype(np.uint32)
    ones = np.ones(first[-1], np.float32)
    product = spmv.solve(first, places, ones, np.ones(70, np.float32), backend)
    same(product, np.array(lengths, np.float32))


def test_a_product_is_close_to_that_of_scipy():
    sparse = pytest.importorskip("scipy.sparse")
    first, places, values = spmv.random_matrix(203, 150, longest=150, seed=1)
    vector = np.random.default_rng(2).standard_normal(150, dtype=np.float32)
    matrix = sparse.csr_matrix((values.astype(float), places.astype(int), first.astype(int)), shape=(203, 150))
    np.testing.assert_allclose(spmv.solve(first, places, values, vector, "cpu"), matrix @ vector, rtol=0, atol=1e-4)


# ---- groups of points -----------------------------------------------------------------------------------------------


def lloyd(points, centres, passes):
    """The same algorithm in NumPy, with 64-bit integers for the sums."""
    scale = np.float32(kmeans.fixed_point(points))
    wide = points.astype(np.float64) * scale
    fixed = (np.sign(wide) * np.floor(np.abs(wide) + 0.5)).astype(np.int64)
    for _ in range(passes):
        square = np.zeros((len(points), len(centres)), np.float32)
        for axis in range(points.shape[1]):
            square += (points[:, None, axis] - centres[None, :, axis]) ** 2
        group = square.argmin(axis=1).astype(np.uint32)
        moved = centres.copy()
        for c in set(group.tolist()):
            sums = fixed[group == c].sum(axis=0)
            assert np.all(np.abs(sums) < 2**31)
            moved[c] = sums.astype(np.float32) / np.float32(np.count_nonzero(group == c)) / scale
        if np.array_equal(moved, centres):
            break
        centres = moved
    return centres, group


@pytest.mark.parametrize("passes", [1, 3, 12])
@pytest.mark.parametrize("axes", [1, 3])
def test_centres_move_as_in_numpy(passes, axes, backend):
    points = kmeans.clouds(700, 4, axes, seed=5) - np.float32(5)
    centres, group = kmeans.solve(points, points[:5], passes, backend)
    expected, members = lloyd(points, points[:5], passes)
    same(centres, expected)
    same(group, members)


def test_a_centre_without_points_stays(backend):
    points = kmeans.clouds(70, 2, 2, seed=6)
    start = np.array([[0, 0], [5, 5], [1000, 1000]], np.float32)
    centres, group = kmeans.solve(points, start, 5, backend)
    assert centres[2].tolist() == [1000, 1000]
    assert 2 not in group


def test_a_point_halfway_joins_the_first_of_its_centres(backend):
    points = np.array([[0], [2], [4]], np.float32)
    centres, group = kmeans.solve(points, points[[0, 2]], 1, backend)
    assert group.tolist() == [0, 0, 1]
    assert centres.tolist() == [[1], [4]]


def test_clouds_that_lie_apart_are_told_apart(backend):
    rng = np.random.default_rng(7)
    belongs = rng.integers(0, 3, 900)
    corners = np.array([[0, 0], [9, 0], [0, 9]], np.float32)
    points = corners[belongs] + rng.uniform(-1, 1, (len(belongs), 2)).astype(np.float32)
    centres, group = kmeans.solve(points, kmeans.far_apart(points, 3), 10, backend)
    assert len(set(zip(belongs.tolist(), group.tolist(), strict=True))) == 3
    means = [points[group == c].astype(float).mean(axis=0) for c in range(3)]
    np.testing.assert_allclose(centres, means, rtol=0, atol=1e-5)


@pytest.mark.parametrize("largest", [1e-30, 0.0, 0.7, 1.0, 3e9])
@pytest.mark.parametrize("count", [1, 2, 1000, 4096])
def test_sums_in_fixed_point_stay_within_32_bits(count, largest):
    points = np.full((count, 1), largest, np.float32)
    scale = kmeans.fixed_point(points)
    most = count * (float(points[0, 0]) * scale + 0.5)
    assert most < 2**31
    assert np.isfinite(np.float32(scale))
    if largest > 1e-20:
        assert most > 2**29  # and no bit is wasted


# ---- all of them ----------------------------------------------------------------------------------------------------


def test_nothing_gives_nothing(backend):
    empty = np.zeros(0, np.float32)
    none = np.zeros(0, np.uint32)
    distance, follow = floyd_warshall.solve(np.zeros((0, 0), np.uint32), backend)
    assert distance.shape == follow.shape == (0, 0)
    assert image_filter.solve(np.zeros((0, 5, 3), np.uint8), np.ones((3, 3), np.int32), backend).shape == (0, 5, 3)
    scanned(b"", [b"word"], backend)
    assert spmv.solve(np.zeros(1, np.uint32), none, empty, empty, backend).shape == (0,)
    start = np.ones((2, 3), np.float32)
    centres, group = kmeans.solve(np.zeros((0, 3), np.float32), start, 2, backend)
    same(centres, start)
    assert group.shape == (0,)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_an_example_runs_as_a_program_and_tells_its_checksum(module, monkeypatch, capsys):
    monkeypatch.setenv("VYRE_BACKEND", "cpu")
    assert module.main() == 0
    assert "blake3 " in capsys.readouterr().out
