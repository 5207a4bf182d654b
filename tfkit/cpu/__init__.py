"""Everything that knows a CPU: which product is the fastest for which weight and number of rows, packed weights, int8 and
bfloat16 weights, attention of few queries, the allocator. No other package names an instruction set or a library of kernels."""
