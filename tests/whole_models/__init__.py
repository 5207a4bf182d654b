"""Whole models to test with: random valid specs, a covering array of all parts, and how far two correct runs may differ."""
