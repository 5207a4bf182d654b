"""The suite in a child process, so that a part may hang, crash or print: `parent` starts `child` and reports how it ended."""
