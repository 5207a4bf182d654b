"""One attention call as data, how calls are drawn from a declaration, and what the right answer to one is.

case, fields, elements, table    a call as JSON data, its numbers drawn from a seed
cells, strategies, subject       what a declaration promises, and the drawing of calls that it covers
reference, bound, compare        the float64 answer, how far a correct backend may be from it, and how far one is
evaluated                           a case and a backend's answer to it, computed when first asked for
"""
