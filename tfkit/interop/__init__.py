"""Weights in and out: models of other libraries become tfkit's, and the other way round."""
