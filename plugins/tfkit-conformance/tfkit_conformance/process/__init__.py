"""The suite in a process of its own, so that a part may hang, crash or print: `watch` starts `child` and tells how it ended."""
