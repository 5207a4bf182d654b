"""What the commands show: pure functions from a graph, a plan or the catalogue to data, to text, and to rich renderables.

Modules named `*_data` give what `--json` prints; those that draw for people import rich.
"""
