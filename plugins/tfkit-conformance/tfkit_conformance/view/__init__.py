"""Reports as text, tables and pages."""
