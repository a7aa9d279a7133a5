"""Random kernels at the level at which users write them, and an exact model of what each has to compute.

`make.random_kernel` makes a small tree; `write` prints it as Python source under `@vyre.kernel`, and `model` evaluates
the same tree with integers and exact fractions, following the documents and none of the engines. `check` runs the one
against the other, and `shrink` makes a kernel that differs small enough to read.
"""
