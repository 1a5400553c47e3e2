"""The protocol over a store: journal, checkpoints, restores, savepoints, garbage. Runs anywhere."""
