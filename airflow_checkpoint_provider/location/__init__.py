"""The checkpoint location of a streaming query as files: read, fenced, copied, divided anew. No journal. Runs anywhere."""
