"""The output of the commands: pure functions from a graph, a plan or the catalogue to data, text and rich renderables.

Modules named `*_data` return what `--json` prints. Modules that draw tables and trees import rich.
"""
