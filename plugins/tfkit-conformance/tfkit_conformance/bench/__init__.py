"""Measuring attention backends on this device: every backend on every kind of call, in one run, beside the device's ceilings.

`cells` says what is measured and `run` measures it; `classes` and `auto` make the table that `auto` chooses by.
"""
