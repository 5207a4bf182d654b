"""Models in and out: published weights, engines, source code."""
