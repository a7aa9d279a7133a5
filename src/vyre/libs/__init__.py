"""Functions over arrays, written as kernels: the same bytes on every backend, by a definition that the docs state."""
