"""One attention call as data, the drawing of calls from a declaration, and the reference.

case, case_data, elements, table          a call as JSON data, its numbers drawn from a seed
cells, strategies, backend_under_test     what a declaration promises, and the drawing of calls that it covers
reference, bound, compare                 the float64 result, the error bound of a correct backend, the error of a backend
evaluated                                 a case and a backend's output for it, computed when first needed
"""
