"""A dispatch that is repeated, on a device that has no faster way to do that."""

from vyre.runtime.device import SmallDispatch


class ByBatch(SmallDispatch):
    """Of a device that has no such thing: memory that is kept, and a batch."""

    def __init__(self, device, code, slots, lengths, launches):
        self.device, self.code, self.slots, self.lengths, self.launches = device, code, slots, lengths, launches
        self.memories = [device.allocate(-(-max(s.nbytes, 256) // 256) * 256) for s in slots]
        self.inputs = [memoryview(bytearray(s.nbytes)) for s in slots if s.filled]
        self.outputs = [memoryview(bytearray(s.nbytes)) for s in slots if s.read]

    def go(self):
        batch, given = self.device.batch(), iter(self.inputs)
        for memory, slot in zip(self.memories, self.slots, strict=True):
            if slot.filled:
                batch.write(memory, 0, next(given))
            elif slot.zero:
                batch.zero(memory, 0, -(-slot.nbytes // 4) * 4)
        for base, grid in self.launches:
            batch.launch(self.code, self.memories, self.lengths, base, grid)
        for memory, slot in zip(self.memories, self.slots, strict=True):
            if slot.read:
                batch.read(memory, 0, slot.nbytes)
        ticket = batch.submit()
        ticket.take(self.outputs)
        return ticket
