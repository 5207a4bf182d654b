"""The attention contract: its types, its rules A1-A12, the capabilities of backends, their selection, and the call.

`capabilities`, `backend`, `auto_table`, `selection` and `rules` do not import torch; `tfkit check` and `tfkit plan` use them.
"""
