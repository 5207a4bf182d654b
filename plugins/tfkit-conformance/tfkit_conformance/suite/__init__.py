"""The conformance suite of attention backends: `conformance.check_backend` runs what the other files check.

declaration, refusals, layers, probes, grade    the checks
by_cell, by_relation                            the cases of the checks
runner, looks_like, again                       findings: collected, named, run again
"""
