"""Tests of tfkit/interop."""
