"""What a compiler made of GPU kernels: reads before writes, and other defects, in the machine code of a cubin."""
