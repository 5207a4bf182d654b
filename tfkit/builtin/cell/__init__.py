"""The built-in recurrent cells."""
