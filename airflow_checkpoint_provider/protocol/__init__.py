"""The protocol: records, events, commands, and the state machine. Pure: no store, no clock. Runs anywhere."""
