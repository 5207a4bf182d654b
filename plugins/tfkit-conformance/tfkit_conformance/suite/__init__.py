"""The conformance suite of attention backends: `conformance.check_backend` runs what the other files check.

declaration, refusals, layers, probes, grade, known    the checks
by_cell, by_relation                                   which cases they get
run, looks_like, snippet, again                        findings: kept, named, written as code, run again
"""
