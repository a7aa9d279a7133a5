"""The kernels of `examples/beside_numba` over flat arrays of numbers: one index, scalars, no shapes, no small values.

Each `solve` takes what that of the example takes. Every operation is written out in the order in which the small values
of the language are said to do it, so that the bytes are the same.
"""

import numpy as np

import vyre
from vyre import (
    In,
    InOut,
    Out,
    barrier,
    cospi,
    f32,
    floor,
    gid,
    lid,
    reverse_bits,
    rotate_left,
    round,
    shared,
    sinpi,
    sqrt,
    static_range,
    u8,
    u32,
    wg,
)


@vyre.kernel(workgroup=(16, 16))
def sobel_flat(image: In[f32], h: u32, w: u32, out: Out[f32]):
    i, j = gid.y, gid.x
    if i > 0 and i + 1 < h and j > 0 and j + 1 < w:
        at = i * w + j
        right = image[at - w + 1] + 2.0 * image[at + 1] + image[at + w + 1]
        left = image[at - w - 1] + 2.0 * image[at - 1] + image[at + w - 1]
        below = image[at + w - 1] + 2.0 * image[at + w] + image[at + w + 1]
        above = image[at - w - 1] + 2.0 * image[at - w] + image[at - w + 1]
        x = right - left
        y = below - above
        out[at] = sqrt(x * x + y * y)


def sobel(image, backend):
    h, w = image.shape
    return sobel_flat.on(backend)(image, h, w, domain=(w, h), sizes={"out": image.size}).reshape(h, w)


@vyre.kernel(workgroup=(16, 16))
def median_flat(image: In[f32], h: u32, w: u32, out: Out[f32]):
    window = shared(f32, 16 * 16 * 9)
    mine = (lid.y * 16 + lid.x) * 9
    i, j = gid.y, gid.x
    if i < h and j < w:
        for k in range(9):
            y = min(max(i + k // 3, 1) - 1, h - 1)
            x = min(max(j + k % 3, 1) - 1, w - 1)
            v = image[y * w + x]
            at = k
            for back in range(k):
                other = window[mine + k - 1 - back]
                if at == k - back and other > v:
                    window[mine + at] = other
                    at -= 1
            window[mine + at] = v
        out[i * w + j] = window[mine + 4]


def median(image, backend):
    h, w = image.shape
    return median_flat.on(backend)(image, h, w, domain=(w, h), sizes={"out": image.size}).reshape(h, w)


@vyre.kernel
def chacha20_flat(start: In[u32], message: In[u32], out: Out[u32]):
    s = shared(u32, 64 * 16)
    mine = lid.x * 16
    if gid.x < len(message) // 16:
        for k in range(16):
            s[mine + k] = start[k]
        s[mine + 12] += gid.x
        for turn in range(20):
            shift = turn % 2
            for k in range(4):
                a = mine + k
                b = mine + 4 + (k + shift) % 4
                c = mine + 8 + (k + 2 * shift) % 4
                d = mine + 12 + (k + 3 * shift) % 4
                s[a] += s[b]
                s[d] = rotate_left(s[d] ^ s[a], 16)
                s[c] += s[d]
                s[b] = rotate_left(s[b] ^ s[c], 12)
                s[a] += s[b]
                s[d] = rotate_left(s[d] ^ s[a], 8)
                s[c] += s[d]
                s[b] = rotate_left(s[b] ^ s[c], 7)
        s[mine + 12] += gid.x
        for k in range(16):
            out[gid.x * 16 + k] = message[gid.x * 16 + k] ^ (s[mine + k] + start[k])


def chacha20(start, message, backend):
    found = chacha20_flat.on(backend)(start, message, domain=len(message), sizes={"out": message.size})
    return found.reshape(message.shape)


@vyre.kernel(workgroup=(16, 16))
def render_flat(spheres: In[f32], h: u32, w: u32, out: Out[f32]):
    i, j = gid.y, gid.x
    count = len(spheres) // 5
    if i < h and j < w:
        x, y, z = 0.13, 1.0, -3.07
        wx = (f32(j) + 0.5) / f32(w) - 0.5
        wy = 0.5 - (f32(i) + 0.5) / f32(h)
        wz = 1.0
        size = sqrt(wx * wx + wy * wy + wz * wz)
        wx /= size
        wy /= size
        wz /= size
        seen, share = 0.0, 1.0
        going = True
        for _ in range(3):
            k, near = count, 1e9
            if going:
                for n in range(count):
                    tx, ty, tz = spheres[5 * n] - x, spheres[5 * n + 1] - y, spheres[5 * n + 2] - z
                    along = tx * wx + ty * wy + tz * wz
                    square = tx * tx + ty * ty + tz * tz
                    inside = spheres[5 * n + 3] * spheres[5 * n + 3] - (square - along * along)
                    if inside > 0.0 and along - sqrt(inside) > 0.001 and along - sqrt(inside) < near:
                        k, near = n, along - sqrt(inside)
                if k == count and wy >= 0.0:
                    seen += share * (0.3 + 0.7 * wy)
                    going = False
            if going:
                nx, ny, nz, grey = 0.0, 1.0, 0.0, 0.2
                if k == count:
                    along = y / wy
                    x -= wx * along
                    y -= wy * along
                    z -= wz * along
                    if (floor(x) + floor(z)) % 2.0 == 0.0:
                        grey = 0.9
                else:
                    x += wx * near
                    y += wy * near
                    z += wz * near
                    radius = spheres[5 * k + 3]
                    nx = (x - spheres[5 * k]) / radius
                    ny = (y - spheres[5 * k + 1]) / radius
                    nz = (z - spheres[5 * k + 2]) / radius
                    grey = spheres[5 * k + 4]
                behind = count
                near = 1e9
                for n in range(count):
                    tx = spheres[5 * n] - (x + nx * 0.001)
                    ty = spheres[5 * n + 1] - (y + ny * 0.001)
                    tz = spheres[5 * n + 2] - (z + nz * 0.001)
                    along = tx * 0.48 + ty * 0.8 + tz * -0.36
                    square = tx * tx + ty * ty + tz * tz
                    inside = spheres[5 * n + 3] * spheres[5 * n + 3] - (square - along * along)
                    if inside > 0.0 and along - sqrt(inside) > 0.001 and along - sqrt(inside) < near:
                        behind, near = n, along - sqrt(inside)
                lit = 0.0
                if behind == count:
                    lit = max(nx * 0.48 + ny * 0.8 + nz * -0.36, 0.0)
                seen += 0.7 * share * grey * (0.2 + 0.8 * lit)
                share *= 0.3
                turn = 2.0 * (wx * nx + wy * ny + wz * nz)
                wx -= nx * turn
                wy -= ny * turn
                wz -= nz * turn
                x += nx * 0.001
                y += ny * 0.001
                z += nz * 0.001
        out[i * w + j] = seen


def raytracer(spheres, shape, backend):
    h, w = shape
    return render_flat.on(backend)(spheres, h, w, domain=(w, h), sizes={"out": h * w}).reshape(shape)


@vyre.kernel(workgroup=32)
def fft_flat(x: In[f32], out: Out[f32]):
    real = shared(f32, 64)
    imag = shared(f32, 64)
    row, k = wg.x * 64, lid.x
    for part in range(2):
        at = row + (reverse_bits(k + 32 * part) >> 26)
        real[k + 32 * part] = x[2 * at]
        imag[k + 32 * part] = x[2 * at + 1]
    half = 1
    for _ in range(6):
        barrier()
        at = k // half * 2 * half + k % half
        turn = f32(k % half) / f32(half)
        c, s = cospi(turn), -sinpi(turn)
        a, b = real[at + half], imag[at + half]
        p, q = a * c - b * s, a * s + b * c
        a, b = real[at], imag[at]
        real[at] = a + p
        imag[at] = b + q
        real[at + half] = a - p
        imag[at + half] = b - q
        half *= 2
    barrier()
    for part in range(2):
        at = k + 32 * part
        out[2 * (row + at)] = real[at]
        out[2 * (row + at) + 1] = imag[at]


def fft(x, backend):
    found = fft_flat.on(backend)(x.view(np.float32).ravel(), grid=len(x), sizes={"out": 2 * x.size})
    return found.view(np.complex64).reshape(x.shape)


@vyre.kernel(workgroup=16)
def levenshtein_flat(word: In[u8], words: In[u8], longest: u32, lengths: In[u32], out: Out[u32]):
    rows = shared(u32, 16 * 32)
    mine = lid.x * 32
    if gid.x < len(lengths):
        length = min(lengths[gid.x], 31)
        for k in range(length + 1):
            rows[mine + k] = k
        for a in range(len(word)):
            corner = rows[mine]
            rows[mine] = a + 1
            for b in range(length):
                change = corner
                if u32(word[a]) != u32(words[gid.x * longest + b]):
                    change = corner + 1
                corner = rows[mine + b + 1]
                rows[mine + b + 1] = min(change, min(corner, rows[mine + b]) + 1)
        out[gid.x] = rows[mine + length]


def levenshtein(word, words, lengths, backend):
    return levenshtein_flat.on(backend)(word, words.ravel(), words.shape[1], lengths, sizes={"out": len(words)})


@vyre.kernel
def forces_flat(position: In[f32], box: f32, cutoff: f32, out: Out[f32]):
    i = gid.x
    if i < len(position) // 3:
        fx, fy, fz = 0.0, 0.0, 0.0
        for j in range(len(position) // 3):
            dx = position[3 * i] - position[3 * j]
            dy = position[3 * i + 1] - position[3 * j + 1]
            dz = position[3 * i + 2] - position[3 * j + 2]
            dx -= box * round(dx / box)
            dy -= box * round(dy / box)
            dz -= box * round(dz / box)
            square = dx * dx + dy * dy + dz * dz
            if j != i and square < cutoff * cutoff:
                inverse = 1.0 / square
                sixth = inverse * inverse * inverse
                pull = 24.0 * inverse * sixth * (2.0 * sixth - 1.0)
                fx += dx * pull
                fy += dy * pull
                fz += dz * pull
        out[3 * i] = fx
        out[3 * i + 1] = fy
        out[3 * i + 2] = fz


def lennard_jones(position, box, cutoff, backend):
    found = forces_flat.on(backend)(position.ravel(), box, cutoff, domain=len(position), sizes={"out": position.size})
    return found.reshape(position.shape)


@vyre.kernel(workgroup=(16, 16))
def jacobi_flat(x: In[f32], h: u32, w: u32, out: Out[f32]):
    i, j = gid.y, gid.x
    if i < h and j < w:
        at = i * w + j
        if i > 0 and i + 1 < h and j > 0 and j + 1 < w:
            out[at] = 0.25 * (x[at - w] + x[at + w] + x[at - 1] + x[at + 1])
        else:
            out[at] = x[at]


def jacobi(x, steps, backend):
    h, w = x.shape
    flat = x.ravel()
    for _ in range(steps):
        flat = jacobi_flat.on(backend)(flat, h, w, domain=(w, h), sizes={"out": x.size})
    return flat.reshape(x.shape)


@vyre.kernel(workgroup=(8, 8))
def matmul_flat(a: In[f32], b: In[f32], m: u32, n: u32, deep: u32, out: Out[f32]):
    row, column = gid.y * 4, gid.x * 4
    for i in static_range(4):
        for j in static_range(4):
            if row + i < m and column + j < n:
                acc = 0.0
                for k in range(deep):
                    acc += a[(row + i) * deep + k] * b[k * n + column + j]
                out[(row + i) * n + column + j] = acc


def matmul(a, b, backend):
    m, n = len(a), b.shape[1]
    found = matmul_flat.on(backend)(
        a.ravel(), b.ravel(), m, n, a.shape[1], domain=(-(-n // 4), -(-m // 4)), sizes={"out": m * n}
    )
    return found.reshape(m, n)


@vyre.kernel
def kick_flat(bodies: In[f32], dt: f32, velocity: InOut[f32]):
    i = gid.x
    if i < len(bodies) // 4:
        px, py, pz = 0.0, 0.0, 0.0
        for j in range(len(bodies) // 4):
            dx = bodies[4 * j] - bodies[4 * i]
            dy = bodies[4 * j + 1] - bodies[4 * i + 1]
            dz = bodies[4 * j + 2] - bodies[4 * i + 2]
            square = dx * dx + dy * dy + dz * dz + 0.0025
            pull = bodies[4 * j + 3] / (square * sqrt(square))
            px += dx * pull
            py += dy * pull
            pz += dz * pull
        velocity[3 * i] += px * dt
        velocity[3 * i + 1] += py * dt
        velocity[3 * i + 2] += pz * dt


def nbody(bodies, dt, velocity, backend):
    return kick_flat.on(backend)(bodies.ravel(), dt, velocity.ravel(), domain=len(bodies)).reshape(velocity.shape)
