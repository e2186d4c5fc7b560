"""What a program is: ops, values, layouts on meshes, rank expressions, and their forms in files."""
