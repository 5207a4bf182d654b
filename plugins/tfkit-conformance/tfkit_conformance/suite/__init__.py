"""The conformance suite of attention backends: `conformance.check_backend` runs what the other files check.

declaration, refusals, layers, probes, grade, known    the checks
by_cell, by_relation                                   which cases they get
runner, looks_like, snippet, again                     findings: recorded, named, written as code, run again
"""
