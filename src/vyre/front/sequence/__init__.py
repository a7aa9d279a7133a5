"""Functions that call kernels, recorded once and repeated as one dispatch."""
