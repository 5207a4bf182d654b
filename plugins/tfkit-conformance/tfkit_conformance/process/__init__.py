"""The suite in a process of its own, so that a part may hang, crash or print: `parent` starts `child` and reports how it ended."""
