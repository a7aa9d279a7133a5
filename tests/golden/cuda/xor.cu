typedef unsigned int uint;
typedef unsigned long long ulong;
template <class T, int n> struct alignas(n * sizeof(T)) Pack { T at[n]; };

template <bool whole> // whether all are there, and all their elements
static __device__ __forceinline__ void several(
    const uint *__restrict__ buf_a, // slot 0: a, u32, read
    const uint *__restrict__ buf_b, // slot 1: b, u32, read
    uint *__restrict__ buf_out,     // slot 2: out, u32, read and written
    const uint len_a,               // elements of a
    const uint len_b,               // elements of b
    const uint len_out,             // elements of out
    const uint base_x,              // first workgroup along x
    const uint base_y,              // first workgroup along y
    const uint base_z,              // first workgroup along z
    const uint first,               // global id of the first invocation along x
    const uint most                 // how many come behind it
)
{
    Pack<uint, 4> in_a;
    if (whole) { in_a = *(const Pack<uint, 4> *)(buf_a + first); }
    Pack<uint, 4> in_b;
    if (whole) { in_b = *(const Pack<uint, 4> *)(buf_b + first); }
    Pack<uint, 4> out_out;
#pragma unroll (whole ? 4 : 1)
    for (uint k = 0u; k < 4u; ++k) {
        if (!whole && k > most) { break; }
        const uint gid_x = first + k;
        if (whole || len_out > gid_x) {
            const uint v1 = whole ? in_a.at[k] : gid_x < len_a ? buf_a[gid_x] : 0u;
            const uint v2 = whole ? in_b.at[k] : gid_x < len_b ? buf_b[gid_x] : 0u;
            const uint v3 = v1 ^ v2;
            if (whole) { out_out.at[k] = v3; } else { buf_out[gid_x] = v3; }
        }
    }
    if (whole) { *(Pack<uint, 4> *)(buf_out + first) = out_out; }
}

extern "C" __global__ void __launch_bounds__(128)
vyre_kernel(
    const uint *__restrict__ buf_a, // slot 0: a, u32, read
    const uint *__restrict__ buf_b, // slot 1: b, u32, read
    uint *__restrict__ buf_out,     // slot 2: out, u32, read and written
    const uint len_a,               // elements of a
    const uint len_b,               // elements of b
    const uint len_out,             // elements of out
    const uint base_x,              // first workgroup along x
    const uint base_y,              // first workgroup along y
    const uint base_z,              // first workgroup along z
    const uint last_x               // invocations of the launch along x, less 1
)
{
    const uint at = threadIdx.x * 4u;
    const uint last = last_x - blockIdx.x * 512u; // of the block
    if (at > last) { return; }
    const uint first = base_x * 64u + blockIdx.x * 512u + at;
    const uint most = last - at;
    const bool whole = most >= 3u
        && first + 3u < len_out
        && first + 3u < len_a
        && first + 3u < len_b
        && (ulong)(buf_a + first) % sizeof(Pack<uint, 4>) == 0ull
        && (ulong)(buf_b + first) % sizeof(Pack<uint, 4>) == 0ull
        && (ulong)(buf_out + first) % sizeof(Pack<uint, 4>) == 0ull;
    if (whole) { several<true>(buf_a, buf_b, buf_out, len_a, len_b, len_out, base_x, base_y, base_z, first, most); }
    else { several<false>(buf_a, buf_b, buf_out, len_a, len_b, len_out, base_x, base_y, base_z, first, most); }
}
