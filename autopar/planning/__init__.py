"""Planning: choices above one completion (memory, mesh shape), and plans kept as files."""
