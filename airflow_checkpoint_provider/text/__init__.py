"""All texts that people read, as pure functions from state to lines: no I/O, no clock. Runs anywhere."""
