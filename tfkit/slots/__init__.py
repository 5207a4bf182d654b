"""The slots: one file for each, with the type of its entries. Nothing here imports torch."""
