"""The numeric examples give what other software gives, and the same bytes on every backend that is here."""

import hashlib
import math
import zlib

import numpy as np
import pytest
from blake3 import blake3

from ...support import example_files
from ...support.example_files import load, smaller

sha256, crc32, life, nbody, black_scholes = map(load, ("sha256", "crc32", "life", "nbody", "black_scholes"))


backend = example_files.backend


PADDING = (0, 1, 3, 55, 56, 63, 64, 65, 119, 120, 128)
"""Lengths around which a message needs one more block."""


def messages(lengths):
    rng = np.random.default_rng(1)
    return [rng.bytes(n) for n in lengths]


def test_digests_are_those_of_hashlib(backend):
    made = messages((*PADDING, *smaller(backend, (), range(0, 900, 7))))
    digests = sha256.solve(made, backend)
    assert digests.shape == (len(made), 32)
    assert [row.tobytes() for row in digests] == [hashlib.sha256(message).digest() for message in made]


def test_one_message_of_many_blocks_has_its_digest(backend):
    (message,) = messages([smaller(backend, 500, 20_000)])
    assert sha256.solve([message], backend).tobytes() == hashlib.sha256(message).digest()


def test_checksums_are_those_of_zlib(backend):
    made = messages((*PADDING, *smaller(backend, (), (255, 256, 257, 4096, 20_000))))
    assert crc32.solve(made, backend).tolist() == [zlib.crc32(buffer) for buffer in made]


def test_a_checksum_of_nothing_but_zeros_depends_on_their_number(backend):
    sums = crc32.solve([bytes(n) for n in range(70)], backend)
    assert len(set(sums.tolist())) == 70
    assert sums[0] == 0


def test_no_messages_have_no_digests_and_no_checksums():
    assert sha256.solve([]).shape == (0, 32)
    assert crc32.solve([]).tolist() == []


def rolled(cells, generations):
    """The same game by moving whole arrays."""
    for _ in range(generations):
        moves = [(dy, dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1) if (dy, dx) != (0, 0)]
        alive = sum(np.roll(cells, move, (0, 1)) for move in moves)
        cells = ((alive == 3) | ((cells == 1) & (alive == 2))).astype(np.uint8)
    return cells


@pytest.mark.parametrize("shape", [(1, 32), (2, 32), (9, 64), (30, 96)])
@pytest.mark.parametrize("density", [0.1, 0.3, 0.6])
def test_generations_of_life_are_those_of_rolled_arrays(shape, density, backend):
    cells = (np.random.default_rng(8).random(shape) < density).astype(np.uint8)
    generations = smaller(backend, 3, 25)
    assert np.array_equal(life.solve(cells, generations, backend), rolled(cells, generations))


def test_a_glider_comes_back_around_the_torus(backend):
    cells = np.zeros((32, 32), np.uint8)
    cells[[0, 1, 2, 2, 2], [1, 2, 0, 1, 2]] = 1
    assert np.array_equal(life.solve(cells, 4, backend), np.roll(cells, (1, 1), (0, 1)))
    if backend != "reference":
        assert np.array_equal(life.solve(cells, 4 * 32, backend), cells)


def test_rows_that_do_not_fill_their_words_are_refused():
    with pytest.raises(ValueError, match="a row of 31 cells does not fill its words; use a multiple of 32"):
        life.solve(np.zeros((4, 31), np.uint8), 1)


def leapfrogged(mass, position, velocity, dt, steps):
    """The same steps over arrays: each operation rounds to f32, and sums run over the bodies in their order."""
    position, velocity, dt = position.copy(), velocity.copy(), np.float32(dt)

    def kick(dt):
        pulled = np.zeros_like(position)
        for m, p in zip(mass, position, strict=True):
            d = p - position
            square = d[:, 0] * d[:, 0] + d[:, 1] * d[:, 1] + d[:, 2] * d[:, 2] + np.float32(nbody.SOFTENING)
            pulled += (m / (square * np.sqrt(square)))[:, None] * d
        velocity[:] += pulled * dt

    for step in range(steps):
        kick(dt if step else dt / 2)
        position += velocity * dt
    if steps:
        kick(dt / 2)
    assert position.dtype == velocity.dtype == np.float32
    return position, velocity


@pytest.mark.parametrize("steps", [0, 1, 2, 40])
def test_orbits_are_to_the_bit_those_of_numpy(steps, backend):
    bodies = smaller(backend, 9, 70)
    start = nbody.ball(bodies, seed=steps)
    found = nbody.solve(*start, 1 / 128, steps, backend)
    expected = leapfrogged(*start, 1 / 128, steps)
    assert [a.tobytes() for a in found] == [a.tobytes() for a in expected]
    assert steps == 0 or found[0].tobytes() != start[1].tobytes()


def test_orbits_keep_their_energy_and_two_bodies_their_circle():
    start = nbody.ball(100, seed=9)
    before = nbody.energy(*start)
    position, velocity = nbody.solve(*start, 1 / 128, 300)
    assert abs(nbody.energy(start[0], position, velocity) / before - 1) < 1e-3

    mass = np.full(2, 0.5, np.float32)
    position = np.array([[-0.5, 0, 0], [0.5, 0, 0]], np.float32)
    speed = math.sqrt(0.5 * 0.5 / (1 + nbody.SOFTENING) ** 1.5)
    velocity = np.array([[0, -speed, 0], [0, speed, 0]], np.float32)
    steps = round(math.pi / speed * 128)  # once around a circle of radius 1/2
    after, _ = nbody.solve(mass, position, velocity, 1 / 128, steps)
    assert np.allclose(after, position, atol=0.01)


def formula(spot, strike, years, volatility, rate):
    """The formula in binary64, with the error function of the C library."""

    def normal(x):
        return math.erfc(-x / math.sqrt(2)) / 2

    spread = volatility * math.sqrt(years)
    d1 = (math.log(spot / strike) + (rate + volatility * volatility / 2) * years) / spread
    d2 = d1 - spread
    owed = strike * math.exp(-rate * years)
    return spot * normal(d1) - owed * normal(d2), owed * normal(-d2) - spot * normal(-d1)


@pytest.fixture(scope="module")
def options():
    return black_scholes.market(3000, seed=12)


@pytest.fixture(scope="module")
def prices(options):
    return black_scholes.solve(*options, 0.03, "reference")


def test_prices_are_those_of_the_formula(options, prices):
    expected = np.array([formula(*map(float, option), 0.03) for option in zip(*options, strict=True)]).T
    allowed = black_scholes.TOLERANCE * (options[0].astype(np.float64) + options[1])
    for found, true in zip(prices, expected, strict=True):
        off = abs(found.astype(np.float64) - true) / allowed
        assert off.max() < 1
        assert off.max() > 0.05  # a bound that says something


def test_prices_are_the_same_bytes_everywhere(options, prices, backend):
    assert [a.tobytes() for a in black_scholes.solve(*options, 0.03, backend)] == [a.tobytes() for a in prices]


@pytest.mark.parametrize(
    "module, says",
    [
        (sha256, "2000 digests, as hashlib has them"),
        (crc32, "2000 checksums, as zlib has them"),
        (life, "5478 after 60 generations"),
        (nbody, "256 bodies, 300 steps: energy -0.46"),
        (black_scholes, "20000 options"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_an_example_runs_as_a_program(module, says, capsys):
    assert module.main() == 0
    printed = capsys.readouterr().out
    assert says in printed
    label, checksum = printed.splitlines()[-1].split()
    assert label == "blake3"
    assert len(bytes.fromhex(checksum)) == 16


def test_life_prints_the_checksum_of_what_moving_whole_arrays_gives(capsys):
    cells = (np.random.default_rng(7).random((192, 256)) < 0.3).astype(np.uint8)
    life.main()
    assert capsys.readouterr().out.split()[-1] == blake3(rolled(cells, 60).tobytes()).hexdigest()[:32]
