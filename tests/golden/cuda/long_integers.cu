typedef unsigned int uint;
typedef unsigned long long ulong;
template <class T, int n> struct alignas(n * sizeof(T)) Pack { T at[n]; };

template <bool whole> // whether all are there, and all their elements
static __device__ __forceinline__ void several(
    const ulong *__restrict__ buf_a, // slot 0: a, u64, read
    ulong *__restrict__ buf_out,     // slot 1: out, u64, read and written
    const uint len_a,                // elements of a
    const uint len_out,              // elements of out
    const uint base_x,               // first workgroup along x
    const uint base_y,               // first workgroup along y
    const uint base_z,               // first workgroup along z
    const uint first,                // global id of the first invocation along x
    const uint most                  // how many come behind it
)
{
    Pack<ulong, 2> in_a;
    if (whole) { in_a = *(const Pack<ulong, 2> *)(buf_a + first); }
    Pack<ulong, 2> out_out;
#pragma unroll (whole ? 2 : 1)
    for (uint k = 0u; k < 2u; ++k) {
        if (!whole && k > most) { break; }
        const uint gid_x = first + k;
        const ulong v1 = whole ? in_a.at[k] : gid_x < len_a ? buf_a[gid_x] : 0ull;
        const ulong v2 = ((v1 * 6364136223846793005ull) + (ulong)gid_x) >> 33ull;
        if (whole) { out_out.at[k] = v2; } else if (gid_x < len_out) { buf_out[gid_x] = v2; }
    }
    if (whole) { *(Pack<ulong, 2> *)(buf_out + first) = out_out; }
}

extern "C" __global__ void __launch_bounds__(128)
vyre_kernel(
    const ulong *__restrict__ buf_a, // slot 0: a, u64, read
    ulong *__restrict__ buf_out,     // slot 1: out, u64, read and written
    const uint len_a,                // elements of a
    const uint len_out,              // elements of out
    const uint base_x,               // first workgroup along x
    const uint base_y,               // first workgroup along y
    const uint base_z,               // first workgroup along z
    const uint last_x                // invocations of the launch along x, less 1
)
{
    const uint at = threadIdx.x * 2u;
    const uint last = last_x - blockIdx.x * 256u; // of the block
    if (at > last) { return; }
    const uint first = base_x * 64u + blockIdx.x * 256u + at;
    const uint most = last - at;
    const bool whole = most >= 1u
        && first + 1u < len_a
        && first + 1u < len_out
        && (ulong)(buf_a + first) % sizeof(Pack<ulong, 2>) == 0ull
        && (ulong)(buf_out + first) % sizeof(Pack<ulong, 2>) == 0ull;
    if (whole) { several<true>(buf_a, buf_out, len_a, len_out, base_x, base_y, base_z, first, most); }
    else { several<false>(buf_a, buf_out, len_a, len_out, base_x, base_y, base_z, first, most); }
}
