typedef unsigned char uchar;
typedef unsigned int uint;
typedef unsigned long long ulong;
template <class T, int n> struct alignas(n * sizeof(T)) Pack { T at[n]; };

template <bool whole> // whether all are there, and all their elements
static __device__ __forceinline__ void several(
    uchar *__restrict__ buf_pixels, // slot 0: pixels, u8, read and written
    const uint len_pixels,          // elements of pixels
    const uint base_x,              // first workgroup along x
    const uint base_y,              // first workgroup along y
    const uint base_z,              // first workgroup along z
    const uint first,               // global id of the first invocation along x
    const uint most                 // how many come behind it
)
{
    Pack<uchar, 16> in_pixels;
    if (whole) { in_pixels = *(const Pack<uchar, 16> *)(buf_pixels + first); }
    Pack<uchar, 16> out_pixels;
#pragma unroll (whole ? 16 : 1)
    for (uint k = 0u; k < 16u; ++k) {
        if (!whole && k > most) { break; }
        const uint gid_x = first + k;
        if (whole || len_pixels > gid_x) {
            const uint v1 = whole ? in_pixels.at[k] : buf_pixels[gid_x];
            const uchar v2 = (uchar)(uint)(uchar)min(v1 * 2u, 255u);
            if (whole) { out_pixels.at[k] = v2; } else { buf_pixels[gid_x] = v2; }
        }
    }
    if (whole) { *(Pack<uchar, 16> *)(buf_pixels + first) = out_pixels; }
}

extern "C" __global__ void __launch_bounds__(128)
vyre_kernel(
    uchar *__restrict__ buf_pixels, // slot 0: pixels, u8, read and written
    const uint len_pixels,          // elements of pixels
    const uint base_x,              // first workgroup along x
    const uint base_y,              // first workgroup along y
    const uint base_z,              // first workgroup along z
    const uint last_x               // invocations of the launch along x, less 1
)
{
    const uint at = threadIdx.x * 16u;
    const uint last = last_x - blockIdx.x * 2048u; // of the block
    if (at > last) { return; }
    const uint first = base_x * 64u + blockIdx.x * 2048u + at;
    const uint most = last - at;
    const bool whole = most >= 15u
        && first + 15u < len_pixels
        && (ulong)(buf_pixels + first) % sizeof(Pack<uchar, 16>) == 0ull;
    if (whole) { several<true>(buf_pixels, len_pixels, base_x, base_y, base_z, first, most); }
    else { several<false>(buf_pixels, len_pixels, base_x, base_y, base_z, first, most); }
}
