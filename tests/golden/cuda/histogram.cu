typedef unsigned char uchar;
typedef unsigned int uint;
typedef unsigned long long ulong;
template <class T, int n> struct alignas(n * sizeof(T)) Pack { T at[n]; };

template <bool whole> // whether all are there, and all their elements
static __device__ __forceinline__ void several(
    const uchar *__restrict__ buf_data, // slot 0: data, u8, read
    uint *__restrict__ buf_bins,        // slot 1: bins, u32, read and written
    const uint len_data,                // elements of data
    const uint len_bins,                // elements of bins
    const uint base_x,                  // first workgroup along x
    const uint base_y,                  // first workgroup along y
    const uint base_z,                  // first workgroup along z
    const uint first,                   // global id of the first invocation along x
    const uint most                     // how many come behind it
)
{
    Pack<uchar, 16> in_data;
    if (whole) { in_data = *(const Pack<uchar, 16> *)(buf_data + first); }
#pragma unroll (whole ? 16 : 1)
    for (uint k = 0u; k < 16u; ++k) {
        if (!whole && k > most) { break; }
        const uint gid_x = first + k;
        if (whole || len_data > gid_x) {
            const uint v1 = whole ? in_data.at[k] : buf_data[gid_x];
            if (v1 < len_bins) { atomicAdd(&buf_bins[v1], 1u); }
        }
    }
}

extern "C" __global__ void __launch_bounds__(128)
vyre_kernel(
    const uchar *__restrict__ buf_data, // slot 0: data, u8, read
    uint *__restrict__ buf_bins,        // slot 1: bins, u32, read and written
    const uint len_data,                // elements of data
    const uint len_bins,                // elements of bins
    const uint base_x,                  // first workgroup along x
    const uint base_y,                  // first workgroup along y
    const uint base_z,                  // first workgroup along z
    const uint last_x                   // invocations of the launch along x, less 1
)
{
    const uint at = threadIdx.x * 16u;
    const uint last = last_x - blockIdx.x * 2048u; // of the block
    if (at > last) { return; }
    const uint first = base_x * 64u + blockIdx.x * 2048u + at;
    const uint most = last - at;
    const bool whole = most >= 15u
        && first + 15u < len_data
        && (ulong)(buf_data + first) % sizeof(Pack<uchar, 16>) == 0ull;
    if (whole) { several<true>(buf_data, buf_bins, len_data, len_bins, base_x, base_y, base_z, first, most); }
    else { several<false>(buf_data, buf_bins, len_data, len_bins, base_x, base_y, base_z, first, most); }
}
