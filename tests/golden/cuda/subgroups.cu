typedef unsigned int uint;
typedef unsigned long long ulong;
static __device__ float as_float(unsigned x) { return __uint_as_float(x); }
template <class T, int n> struct alignas(n * sizeof(T)) Pack { T at[n]; };

static __device__ float flush_f32(float x) // a subnormal becomes zero of its sign
{
    float found;
    asm("add.rn.ftz.f32 %0, %1, 0f80000000;" : "=f"(found) : "f"(x));
    return found;
}

static __device__ float add_f32(float a, float b)
{
    float found;
    asm("add.rn.ftz.f32 %0, %1, %2;" : "=f"(found) : "f"(a), "f"(b));
    return found;
}

static __device__ float join_add_f32(float a, float b)
{
    return add_f32(a, b);
}

static __device__ uint subgroup_lanes(uint lid)
{
    return min(48u - lid / 32u * 32u, 32u);
}

static __device__ uint subgroup_mask(uint lid) // lanes that are there
{
    return lid < 32u ? 0xffffffffu : 0xffffu;
}

static __device__ float reduce_add_f32(float x, uint lid)
{
#pragma unroll
    for (uint d = 16u; d > 0u; d >>= 1) {
        const uint from = (lid ^ d) & (2u * d - 1u);
        const float other = __shfl_sync(subgroup_mask(lid), x, from);
        x = join_add_f32(x, from < subgroup_lanes(lid) ? other : (-0.0f));
    }
    return x;
}

static __device__ float quiet_f32(float x)
{
    return x != x ? as_float(0x7fc00000u) : x;
}

static __device__ uint ballot(bool x, uint lid)
{
    return __ballot_sync(subgroup_mask(lid), x);
}

extern "C" __global__ void __launch_bounds__(48)
vyre_kernel(
    const float *__restrict__ buf_a, // slot 0: a, f32, read
    float *__restrict__ buf_out,     // slot 1: out, f32, read and written
    const uint len_a,                // elements of a
    const uint len_out,              // elements of out
    const uint base_x,               // first workgroup along x
    const uint base_y,               // first workgroup along y
    const uint base_z                // first workgroup along z
)
{
    const uint wid_x = (uint)blockIdx.x + base_x;
    const uint lid_x = (uint)threadIdx.x;
    const uint gid_x = wid_x * 48u + lid_x;
    const uint lid = lid_x;
    const float zero = as_float((base_y & base_z) >> 31); // which the compiler does not know
    const uint v1 = gid_x * 2u;
    const float v2 = gid_x < len_a ? buf_a[gid_x] : 0.0f;
    const float v3 = flush_f32(v2);
    const float v4 = reduce_add_f32(v3, lid);
    const float v5 = quiet_f32(v4);
    const uint v6 = ballot(v3 < zero, lid);
    const float v7 = (float)v6;
    const uint at8 = v1;
    if ((ulong)buf_out % sizeof(Pack<float, 2>) == 0ull && at8 + 1u < len_out) { const Pack<float, 2> run9 = {{v5, v7}}; *(Pack<float, 2> *)(buf_out + at8) = run9; }
    else {
        if (at8 + 0u < len_out) { buf_out[at8 + 0u] = v5; }
        if (at8 + 1u < len_out) { buf_out[at8 + 1u] = v7; }
    }
}
