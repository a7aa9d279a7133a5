"""Modules in the assembler's text that keep to the kernels' ABI, written by hand: what the runtime runs, seen alone."""

HEAD = """
define void @vyre_run(ptr %shared, ptr %worker) {
entry:
  %buffers = load ptr, ptr %shared
  %lengths.at = getelementptr i64, ptr %shared, i64 1
  %lengths = load ptr, ptr %lengths.at
  %total.at = getelementptr i64, ptr %shared, i64 5
  %total = load i64, ptr %total.at
  %chunk.at = getelementptr i64, ptr %shared, i64 6
  %chunk = load i64, ptr %chunk.at
  %next.at = getelementptr i64, ptr %shared, i64 7
  %stop.at = getelementptr i64, ptr %shared, i64 8
  %trap.at = getelementptr i64, ptr %shared, i64 9
  br label %take
take:
  %stop = load atomic i64, ptr %stop.at monotonic, align 8
  %stopped = icmp ne i64 %stop, 0
  br i1 %stopped, label %done, label %look
look:
  %first = atomicrmw add ptr %next.at, i64 %chunk monotonic
  %none = icmp uge i64 %first, %total
  br i1 %none, label %done, label %work
"""
TAIL = """
done:
  ret void
}
"""


def module(body: str) -> str:
    """`body` begins in the block `work`, with workgroups from %first on, and goes back to `take` or to `done`."""
    return f"{HEAD}work:\n{body}\n{TAIL}"


ADD = module("""
  %last.0 = add i64 %first, %chunk
  %over = icmp ugt i64 %last.0, %total
  %last = select i1 %over, i64 %total, i64 %last.0
  %from = mul i64 %first, 64
  %to.0 = mul i64 %last, 64
  %length.at = getelementptr i64, ptr %lengths, i64 2
  %length = load i64, ptr %length.at
  %beyond = icmp ugt i64 %to.0, %length
  %to = select i1 %beyond, i64 %length, i64 %to.0
  %a = load ptr, ptr %buffers
  %b.at = getelementptr ptr, ptr %buffers, i64 1
  %b = load ptr, ptr %b.at
  %out.at = getelementptr ptr, ptr %buffers, i64 2
  %out = load ptr, ptr %out.at
  br label %loop
loop:
  %i = phi i64 [ %from, %work ], [ %i.next, %lane ]
  %more = icmp ult i64 %i, %to
  br i1 %more, label %lane, label %take
lane:
  %x.at = getelementptr i32, ptr %a, i64 %i
  %x = load i32, ptr %x.at
  %y.at = getelementptr i32, ptr %b, i64 %i
  %y = load i32, ptr %y.at
  %z = add i32 %x, %y
  %z.at = getelementptr i32, ptr %out, i64 %i
  store i32 %z, ptr %z.at
  %i.next = add i64 %i, 1
  br label %loop""")
"""out[i] = a[i] + b[i] over workgroups of 64; slots 0, 1 and 2."""

SPIN = module("""
  br label %spin
spin:
  %seen = load atomic i64, ptr %stop.at monotonic, align 8
  %over = icmp ne i64 %seen, 0
  br i1 %over, label %done, label %spin""")
"""Until somebody stops it."""

DEAF = module("""
  br label %spin
spin:
  %ends.at = load ptr, ptr %buffers
  %ends = load atomic i32, ptr %ends.at monotonic, align 4
  %over = icmp ne i32 %ends, 0
  br i1 %over, label %done, label %spin""")
"""Until the first word of slot 0 is not 0, whatever the stop flag says."""

TRAP = module("""
  store i64 1, ptr %trap.at
  %lists.at = getelementptr i64, ptr %shared, i64 10
  %lists = load ptr, ptr %lists.at
  %list0 = getelementptr i64, ptr %lists, i64 0
  store i64 -46333954, ptr %list0
  %list1 = getelementptr i64, ptr %lists, i64 64
  store i64 -46333953, ptr %list1
  %list2 = getelementptr i64, ptr %lists, i64 128
  store i64 -46334030, ptr %list2
  %list3 = getelementptr i64, ptr %lists, i64 192
  store i64 -46333953, ptr %list3
  store atomic i64 1, ptr %stop.at monotonic, align 8
  br label %done""")
"""Traps with the second tag and address 77, in invocation (3, 4, 5) of a grid of 16 x 8 of them."""

TALLY = module("""
  %last.0 = add i64 %first, %chunk
  %over = icmp ugt i64 %last.0, %total
  %last = select i1 %over, i64 %total, i64 %last.0
  %some = sub i64 %last, %first
  %some.32 = trunc i64 %some to i32
  %privates.at = getelementptr ptr, ptr %worker, i64 1
  %privates = load ptr, ptr %privates.at
  %mine = load ptr, ptr %privates
  %shared.one = icmp eq ptr %mine, null
  br i1 %shared.one, label %together, label %alone
together:
  %all = load ptr, ptr %buffers
  %old = atomicrmw add ptr %all, i32 %some.32 monotonic
  br label %take
alone:
  %before = load i32, ptr %mine
  %after = add i32 %before, %some.32
  store i32 %after, ptr %mine
  br label %take""")
"""Adds the number of workgroups to the first element of slot 0, in the worker's own copy where it has one."""

SCRATCH = module("""
  %scratch = load ptr, ptr %worker
  %address = ptrtoint ptr %scratch to i64
  %out = load ptr, ptr %buffers
  store i64 %address, ptr %out
  %last.at = getelementptr i8, ptr %scratch, i64 999
  store i8 1, ptr %last.at
  br label %take""")
"""Stores where its scratch memory lies into slot 0, and writes to byte 999 of it."""
