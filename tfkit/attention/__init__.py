"""The attention contract: its types, its rules A1-A12, what a backend declares, how one is chosen, and how it is called.

`capabilities`, `backend`, `auto_table`, `selection` and `rules` do not import torch; `tfkit check` and `tfkit plan` use them.
"""
