"""Mutants of parts of every slot but attention, and which laws kill them."""
