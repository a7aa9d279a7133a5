"""Commands for a device: streams, graphs, copies, and memory shared with other libraries."""
