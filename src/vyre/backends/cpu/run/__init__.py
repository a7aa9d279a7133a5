"""Machine code on the threads of this process, over memory of the host."""
