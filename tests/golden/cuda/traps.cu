typedef unsigned int uint;

static __device__ void note_trap(uint *__restrict__ trap, uint code, uint address, uint x, uint y, uint z)
{
    const uint turn = trap[5], bits = trap[4], number = (z * trap[3] + y) * trap[2] + x;
    const uint first = atomicCAS(&trap[0], 0u, turn);
    if (first != 0u && first != turn) return; // an earlier turn has trapped
    atomicAdd(&trap[1], 1u);
    for (uint at = 0u; bits != 0u && at < 64u; at += bits) {
        const uint piece = (at < 32u ? code >> at : address >> (at - 32u)) & ((1u << bits) - 1u);
        const uint begin = 8u + at / bits * 64u, end = begin + 64u;
        uint word = ~(number << bits | piece);
        if (atomicMax(&trap[end - 1u], 0u) > word) continue; // the list is full of lower numbers
        for (uint k = begin; k < end && word != 0u; k++) {
            const uint old = atomicMax(&trap[k], word);
            word = old < word ? old : word;
        }
    }
}

extern "C" __global__ void __launch_bounds__(64)
vyre_kernel(
    const uint *__restrict__ buf_index, // slot 0: index, u32, read
    const int *__restrict__ buf_table,  // slot 1: table, i32, read
    int *__restrict__ buf_out,          // slot 2: out, i32, read and written
    const uint len_index,               // elements of index
    const uint len_table,               // elements of table
    const uint len_out,                 // elements of out
    const uint base_x,                  // first workgroup along x
    const uint base_y,                  // first workgroup along y
    const uint base_z,                  // first workgroup along z
    uint *__restrict__ trap,            // which invocations trapped
    const volatile uint *stop           // not zero: end soon
)
{
    __shared__ int buf_mem[64]; // i32
    __shared__ uint ending; // whether a lane has stopped
    const uint wid_x = (uint)blockIdx.x + base_x;
    const uint lid_x = (uint)threadIdx.x;
    const uint gid_x = wid_x * 64u + lid_x;
    const uint wid_y = (uint)blockIdx.y + base_y;
    const uint lid_y = (uint)threadIdx.y;
    const uint gid_y = wid_y * 1u + lid_y;
    const uint wid_z = (uint)blockIdx.z + base_z;
    const uint lid_z = (uint)threadIdx.z;
    const uint gid_z = wid_z * 1u + lid_z;
    const uint lid = lid_x;
    for (uint k = lid; k < 64u; k += 64u) { buf_mem[k] = 0; }
    ending = 0u;
    __syncthreads();
    bool stopped = *stop != 0u;
    const uint v1 = gid_x < len_index ? buf_index[gid_x] : 0u;
    if (v1 >= len_table) {
        if (!stopped) note_trap(trap, 0u, gid_x, gid_x, gid_y, gid_z); // 'index out of range'
        stopped = true;
    }
    const int v2 = v1 < len_table ? buf_table[v1] : 0;
    buf_mem[lid_x] = v2;
    __syncthreads();
    const uint at4 = 63u - lid_x;
    const int v3 = buf_mem[at4];
    if (gid_x < len_out) { buf_out[gid_x] = v3; }
}
