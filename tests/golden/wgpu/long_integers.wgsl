struct Params {
    len_a: u32,
    len_out: u32,
    base_x: u32,
    base_y: u32,
    base_z: u32,
    row: u32,
    z0: u32,
    z1: u32,
}
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> buf_a: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read_write> buf_out: array<vec2<u32>>;

fn select_u32(test: bool, a: u32, b: u32) -> u32 {
    return select(b, a + (params.z0 & params.z1), test);
}
fn mulhi_u32(a: u32, b: u32) -> u32 {
    let al = a & 0xFFFFu;
    let ah = a >> 16u;
    let bl = b & 0xFFFFu;
    let bh = b >> 16u;
    let middle = ah * bl + ((al * bl) >> 16u);
    let other = al * bh + (middle & 0xFFFFu);
    return ah * bh + (middle >> 16u) + (other >> 16u);
}
fn shift_down(x: vec2<u32>, n: u32) -> vec2<u32> {
    let k = n & 31u;
    let low = (x.x >> k) | ((x.y << 1u) << (31u - k));
    let high = x.y >> k;
    return select(vec2<u32>(low, high), vec2<u32>(high, 0u), n > 31u);
}
fn add_u64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = a.x + b.x;
    return vec2<u32>(low, a.y + b.y + convert_bool_u32(low < a.x));
}
fn mul_u64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return vec2<u32>(a.x * b.x, mulhi_u32(a.x, b.x) + a.x * b.y + a.y * b.x);
}
fn shr_u64(x: vec2<u32>, n: vec2<u32>) -> vec2<u32> {
    return shift_down(x, n.x);
}
fn convert_bool_u32(x: bool) -> u32 {
    return select_u32(x, 1u, 0u);
}
fn convert_u32_u64(x: u32) -> vec2<u32> {
    return vec2<u32>(x, 0u);
}

@compute @workgroup_size(64, 1, 1)
fn vyre_kernel(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) lid: vec3<u32>) {
    let wid_x = group.x + group.y * params.row + params.base_x;
    let gid_x = wid_x * 64u + lid.x;
    let v1 = select(vec2<u32>(0u, 0u), buf_a[select(0u, gid_x, gid_x < params.len_a)], gid_x < params.len_a);
    let v2 = add_u64(mul_u64(v1, vec2<u32>(0x4c957f2du, 0x5851f42du)), convert_u32_u64(gid_x));
    if (gid_x < params.len_out) { buf_out[gid_x] = shr_u64(v2, vec2<u32>(33u, 0u)); }
}
