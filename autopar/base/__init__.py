"""What knows nothing of programs: errors, arguments, units, files.

errors        what a user can cause, and where
arguments     of which kind a Python caller's arguments must be
units         figures as people write them
file, folder  written whole or not at all
claim         who is filling a folder
yaml_tree     the one way into files of users
minimum_cut   of a directed graph
package       where the source files are
collector     Python's collector of cycles, paused
"""
